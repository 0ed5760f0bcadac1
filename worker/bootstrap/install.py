"""Installs every part of the bootstrap before the script's first line. A part that fails does not stop the script."""

from __future__ import annotations

from . import debugging, exceptions, stacks, stopping, task_facts, tensorflow_hooks, tf_config
from .messages import ProgressPipe, attempt

TYPE_CHECKING = False  # importing typing takes longer than importing the whole bootstrap
if TYPE_CHECKING:
    from collections.abc import Mapping


class Options:
    """The options that the agent passes in ORCH_BOOTSTRAP. A missing or invalid value turns its part off.

    `task`: its name. `exception_file`, `stacks_file`: absolute paths in directories of the run, whose own directory
    must be `run_directory` (device and inode), if given. `tracer`: pid of a process that, with its descendants, may
    trace this one. `fixes`: repair Keras 3. `keep_tf_config`: the script cannot change TF_CONFIG.
    `debugger`: the `port` that debugpy tries first, and whether the script `waits` for its client. `patient`:
    TensorFlow waits for tasks that are being debugged. `post_mortem`: pdb opens when an exception ends the task.
    `profile`: the `first` and `last` step that TensorFlow's profiler records, and the `directory` for it.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.task = _text(values, "task") or "TASK"
        self.exception_file = _text(values, "exception_file")
        self.stacks_file = _text(values, "stacks_file")
        place = values.get("run_directory")
        self.run_directory = place if isinstance(place, list) else None
        tracer = values.get("tracer")
        self.tracer = tracer if isinstance(tracer, int) else None
        debugger = values.get("debugger")
        self.debugger = debugger if isinstance(debugger, dict) else None
        self.post_mortem = values.get("post_mortem") is True
        self.patient = values.get("patient") is True
        self.fixes = values.get("fixes") is True
        self.keep_tf_config = values.get("keep_tf_config") is True
        profile = values.get("profile")
        self.profile = profile if isinstance(profile, dict) else None


def _text(values: Mapping[str, object], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) and value else None


def install(options: Mapping[str, object]) -> None:
    """Install the parts that `options` asks for (see Options). Never raises.

    Call it once, in the main thread, before the script. In a forked task call it after the fork, when os.environ is
    the task's own. TensorFlow and Keras may already be imported.
    """
    wanted = Options(options)
    pipe = ProgressPipe()
    if exception_file := wanted.exception_file:
        attempt("writing exceptions", lambda: exceptions.install(exception_file, wanted.run_directory))
    attempt("printing stacks at a crash", stacks.print_crashes)
    if wanted.post_mortem:
        attempt("--pdb", lambda: _install_post_mortem(pipe))
    attempt("advice at breakpoint()", lambda: debugging.advise(wanted.task))
    if stacks_file := wanted.stacks_file:
        attempt("writing stacks on request", lambda: stacks.listen(stacks_file, pipe, wanted.run_directory))
    tracer = wanted.tracer
    if tracer is not None:
        attempt("tracing by py-spy", lambda: stacks.allow(tracer))
    if wanted.keep_tf_config:
        attempt("keeping TF_CONFIG", tf_config.keep)
    attempt("reporting versions", lambda: task_facts.report_versions(pipe))
    attempt("noticing saved checkpoints", lambda: task_facts.report_saves(pipe))
    profile = None
    if wanted.profile is not None:
        from . import profiling  # not imported for every task

        profile = profiling.install(wanted.profile, wanted.task)
    attempt("an orderly stop", stopping.install)
    attempt("watching TensorFlow", lambda: tensorflow_hooks.install(pipe, wanted.fixes, profile))
    if wanted.patient:
        attempt("waiting for tasks that are debugged", tensorflow_hooks.wait_for_debugged)
    if (debugger := wanted.debugger) is not None:
        attempt("the debugger", lambda: debugging.listen(pipe, **debugger))


def _install_post_mortem(pipe: ProgressPipe) -> None:
    from .post_mortem import PostMortem  # of no use to other runs

    PostMortem(pipe).install()
