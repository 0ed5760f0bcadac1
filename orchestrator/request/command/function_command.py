"""The command of a run whose tasks call a function of the process that starts it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import StartOption
from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.core.job.start_method import StartMethod
from orchestrator.host.shadowing import find_shadow
from orchestrator.request.command.program import python_line
from orchestrator.request.command.source_tree import TENSORFLOW, SourceTree, TooLarge
from orchestrator.request.command.start_choice import import_setting, spawned, tensorflow_modules

_PROGRAM = Path(__file__).resolve().parents[3] / "worker/programs/call_function.py"


@dataclass(frozen=True)
class Function:
    """`name`: as messages have it, `train()`. `modules`: what it may import. `names_keras`: its code has the word."""

    name: str
    modules: Collection[str]
    names_keras: bool


def function_words() -> list[str]:
    """The command that calls a function, with this interpreter and its options."""
    if not sys.executable:
        raise UsageError("a function needs a Python interpreter for its tasks, and sys.executable names none")
    # multiprocessing uses it for the same purpose.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *options, str(_PROGRAM)]


def with_function(spec: JobSpec, function: Function, environ: Mapping[str, str]) -> JobSpec:
    """Return the job of function_words() as a job that calls `function` in every task. UsageError."""
    if spec.hosts:
        raise UsageError(
            f"{function.name} runs on this machine only: its code and its values pass through this machine's memory;"
            " leave out `hosts`, or start a script"
        )
    roots = [Path.cwd() / entry for entry in takewhile(_is_of_user, sys.path)]
    use = _use_of_tensorflow(function, SourceTree(tuple(roots), spec.cwd))
    for role in spec.roles:
        _require_function(role, spec.command_of(role), function)
    settings = {}
    for role, its in spec.role_settings.items():
        if its.command is not None:
            environ_of_role = {**environ, **spec.env_of(role)}
            command = _command(its.command, function, use, spec, roots, environ_of_role)
            its = its.model_copy(update={"command": command})
        settings[role] = its
    command = _command(spec.command, function, use, spec, roots, {**environ, **spec.env})
    return spec.model_copy(update={"command": command, "role_settings": settings})


def _require_function(role: str, command: Command, function: Function) -> None:
    if command.argv[-1] != str(_PROGRAM):
        raise UsageError(
            f"{role} has a command of its own, and {function.name} runs in every task: leave the command out"
        )


def _is_of_user(entry: str) -> bool:
    """False from Python's own directories on: what comes after them on sys.path replaces no installed module."""
    return entry not in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
    ) and not entry.endswith(".zip")


@dataclass(frozen=True)
class _Use:
    tensorflow: bool
    keras: bool


def _use_of_tensorflow(function: Function, tree: SourceTree) -> _Use:
    tops = {name.partition(".")[0] for name in function.modules}
    uses, names_keras = bool(tops & TENSORFLOW), function.names_keras
    for module in sorted(function.modules):
        try:
            source = tree.module(module)
            if source is not None:
                uses = uses or tree.imports_tensorflow(source)
                names_keras = names_keras or any(b"keras" in each.text for each in tree.reachable(source))
        except TooLarge:
            continue
    return _Use(uses, uses and (names_keras or bool(tops & (TENSORFLOW - {"tensorflow"}))))


def _command(
    command: Command,
    function: Function,
    use: _Use,
    spec: JobSpec,
    roots: list[Path],
    environ: Mapping[str, str],
) -> Command:
    return command.model_copy(
        update={
            "kind": CommandKind.FUNCTION,
            "words": (function.name,),
            "serves": use.tensorflow,
            "start": _start(command, use, spec, roots, environ),
        }
    )


def _start(
    command: Command, use: _Use, spec: JobSpec, roots: list[Path], environ: Mapping[str, str]
) -> StartMethod:
    """A fork only with TensorFlow: what else a function imports, it imports in its own time."""
    if spec.start is StartOption.SPAWN:
        return spawned("start='spawn' asks for it")
    if not use.tensorflow and not spec.preload:
        return spawned("it does not import tensorflow, so a fork would not be faster")
    if setting := import_setting(python_line(command.argv[1:]), environ):
        return spawned(f"{setting} changes how modules are imported")
    tops = frozenset(name.partition(".")[0] for name in spec.preload)
    if shadow := find_shadow(roots, tops):
        return spawned(f"{shadow} takes the place of a module that TensorFlow imports")
    modules = tensorflow_modules(environ, command.legacy_keras, use.keras) if use.tensorflow else []
    return StartMethod(
        fork=True,
        reason="what a function imports is known",
        modules=tuple(dict.fromkeys((*modules, *spec.preload))),
    )
