"""The context of `orch doctor`: the job that `orch up` would start with the same words here, and its Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from orchestrator.cli.parameters import read_option
from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import DEFAULT_WORKERS
from orchestrator.core.job.spec import CommandKind, JobSpec
from orchestrator.core.job.tf_config import WORKER
from orchestrator.host.checks.context import Context
from orchestrator.host.cores import usable_cores
from orchestrator.host.installed import Interpreter, ask_interpreter
from orchestrator.host.programs import is_on_path
from orchestrator.request.command.program import find_program
from orchestrator.request.command.resolve import CommandPlace, resolve_command
from orchestrator.request.command.role_hints import cluster_hint
from orchestrator.request.settings import settings
from orchestrator.request.settings.given import read_value
from orchestrator.request.settings.options import COMMAND, SETTINGS
from orchestrator.request.settings.toml_file import read_toml

# Stands for any training script: a module that does not exist, and is expected to use TensorFlow.
_ANY_SCRIPT = ("-m", "any_training_script")


def doctor_context(
    workers: str | None,
    words: Sequence[str],
    environ: Mapping[str, str],
    directory: Path,
    flags: Mapping[str, str | None] = MappingProxyType({}),
) -> tuple[Context, str | None]:
    """The context of the checks, and the command as text (None: any script). `workers`, `words` and the other `flags`
    as they were typed.

    UsageError for a wrong `workers`. Other wrong settings are the context's `settings_error`.
    """
    count = _count(workers)
    may_start = partial(_may_start, list(words), environ)
    try:
        is_named = bool(words or environ.get(COMMAND.variable) or COMMAND.name in read_toml(directory))
        command = tuple(words) if is_named else _ANY_SCRIPT
        spec = settings.load(
            {**flags, "workers": count, "command": command}, environ, directory, may_start
        ).spec
    except UsageError as error:
        spec = _unchecked_job(count or DEFAULT_WORKERS, environ, directory)
        python = _python_of(spec, CommandPlace(directory, environ, may_start))
        return Context(spec, environ, settings_error=str(error), python=python), None
    tasks = {**environ, **spec.env}
    is_read = not is_named or spec.command.kind is not CommandKind.MODULE
    is_read = is_read or find_program(spec.command.argv[1:], spec.cwd, tasks).start is not None
    context = Context(
        spec,
        environ,
        python=_python_of(spec, CommandPlace(directory, tasks, may_start)),
        is_source_known=is_read,
        separate_training=cluster_hint(spec, tasks),
    )
    return context, str(spec.masked().command) if is_named else None


def may_start_there(
    words: Sequence[str], environ: Mapping[str, str], directory: Path, typed: Mapping[str, str | None]
) -> Callable[[str], bool]:
    """Return which interpreters of tasks may be started on hosts: as here, and that of `--remote-python`.

    UsageError if a file of the directory names a program that reaches the hosts or runs on them."""
    for name in ("ssh_command", "remote_python"):
        option, found = SETTINGS[name], read_toml(directory).get(name)
        if found is not None and typed[name] is None and not environ.get(option.variable):
            raise UsageError(
                f"{found.where}: {option.key}: `orch doctor` starts no program that a file of the directory names;"
                f" type {option.flag} if you trust it"
            )
    own = (sys.executable, typed["remote_python"] or environ.get(SETTINGS["remote_python"].variable))
    return lambda python: python in own or _may_start(words, environ, python)


def _count(workers: str | None) -> int | None:
    count = read_option("--workers", workers, partial(read_value, SETTINGS["workers"]))
    if count is not None and (not isinstance(count, int) or count < 1):
        raise UsageError(f"--workers: must be at least 1, not {count}")
    return count


def _unchecked_job(workers: int, environ: Mapping[str, str], directory: Path) -> JobSpec:
    """A job with so many workers of any training script. It is not validated: the number may be what was refused."""
    return JobSpec.model_construct(
        roles={WORKER: workers},
        name="any",
        command=resolve_command(_ANY_SCRIPT, CommandPlace(directory, environ)),
        directory=directory,
        cwd=directory,
        cores=usable_cores(),
    )


def _may_start(words: Sequence[str], environ: Mapping[str, str], python: str) -> bool:
    """True for an interpreter on the user's PATH, and for one whose whole path was typed.

    Any other may be a program of the directory, which only `orch up` starts.
    """
    return is_on_path(python, environ) or words[:1] == [python]


def _python_of(spec: JobSpec, place: CommandPlace) -> Interpreter:
    """The Python that runs the tasks; for another program the one that would run a script."""
    python = spec.command.interpreter
    if not python:
        python = resolve_command(_ANY_SCRIPT, place).argv[:1]
    if not place.asks(python[0]):
        return Interpreter(python[0], error="was not asked", was_asked=False)
    return ask_interpreter(python, place.environ, place.cwd)
