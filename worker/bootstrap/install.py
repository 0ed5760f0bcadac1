"""Puts every part of the bootstrap in place, before the script's first line; none of them can stop the script."""

from __future__ import annotations

from . import exceptions, leaving, stacks, stopping, tensorflow_hooks
from .options import Options
from .telling import ProgressPipe, say_broken

TYPE_CHECKING = False  # typing costs more to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def install(options: Mapping[str, object]) -> None:
    """Equip this process, a task, as `options` says (see options.py). Never raises.

    Call it once, in the main thread, before the script; in a forked task after the fork, when os.environ is the
    task's own. tensorflow and keras may already have been imported.
    """
    wanted = Options(options)
    pipe = ProgressPipe()
    exception_file, stacks_file = wanted.exception_file, wanted.stacks_file
    if exception_file is not None:
        _try("writing down exceptions", lambda: exceptions.install(exception_file))
    _try("printing stacks at a crash", stacks.print_crashes)
    if stacks_file is not None:
        _try("writing stacks on request", lambda: stacks.listen(stacks_file, pipe))
    tracer = wanted.tracer
    if tracer is not None:
        _try("letting py-spy in", lambda: stacks.allow(tracer))
    if wanted.hooks:
        _try("a quick end", leaving.install)
        _try("an orderly stop", stopping.install)
        _try("watching TensorFlow", lambda: tensorflow_hooks.install(pipe, wanted.fixes))


def _try(part: str, put_in_place: Callable[[], None]) -> None:
    try:
        put_in_place()
    except Exception as error:
        say_broken(part, error)
