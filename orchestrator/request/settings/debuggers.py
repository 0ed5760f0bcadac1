"""Checks --debug: which tasks it means, and whether a debugger can run in them."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import EngineName, NetworkOption
from orchestrator.core.job.spec import Command, JobSpec
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.plan.plan import takes_bootstrap
from orchestrator.host.importable import require_modules
from orchestrator.host.installed import is_own
from orchestrator.request.command.resolve import CommandPlace, program_directory
from orchestrator.request.settings.given import Given
from orchestrator.request.settings.readers import ALL_TASKS

_DEBUGGER = "debugpy"


def debugged_tasks(given: Mapping[str, Given], roles: Mapping[str, int]) -> tuple[TaskRef, ...]:
    """The tasks of --debug. They need not be in the run."""
    if "debug" not in given:
        if "debug_no_wait" in given and given["debug_no_wait"].value:
            raise UsageError(f"{given['debug_no_wait'].source} needs --debug, which names the tasks")
        return ()
    wanted = given["debug"].value
    if wanted == ALL_TASKS:
        return tuple(TaskRef(type=role, index=index) for role in roles for index in range(roles[role]))
    return tuple(task.among(roles) for task in wanted)


def interactive_task(given: Mapping[str, Given], roles: Mapping[str, int]) -> TaskRef | None:
    """The task of --interactive. It need not be in the run."""
    if "interactive" not in given:
        return None
    source, tasks = given["interactive"].source, given["interactive"].value
    if len(tasks) != 1:
        raise UsageError(f"{source}: one task can have the terminal, not {len(tasks)}; name one")
    task: TaskRef = tasks[0]
    return task.among(roles)


def require_terminal(source: str, spec: JobSpec, *, detached: bool) -> None:
    """Raise a UsageError if no terminal of this process can be connected to a task."""
    if spec.hosts or spec.engine is not EngineName.LOCAL:
        raise UsageError(
            f"{source}: a terminal of this machine cannot be passed to a task on another host (--hosts); run the tasks"
            " on this machine"
        )
    if detached:
        raise UsageError(f"{source}: a detached `orch up` has no terminal; leave out --detach and --wait")


def require_post_mortem(source: str, spec: JobSpec, *, detached: bool) -> None:
    """Raise a UsageError if pdb cannot be opened in this terminal after a failure."""
    require_terminal(source, spec, detached=detached)
    if spec.interactive is not None:
        raise UsageError(f"{source} and --interactive both need this terminal; leave one of them out")
    if not any(takes_bootstrap(command) for command in spec.commands):
        program = spec.command.program
        raise UsageError(f"{source}: {program} is not a Python program that orch can bring a debugger into")


def require_debuggers(source: str, spec: JobSpec, place: CommandPlace) -> None:
    """Raise a UsageError if a task of --debug cannot run a debugger, or nothing could reach it there."""
    if spec.hosts or spec.engine is not EngineName.LOCAL:
        raise UsageError(
            f"{source}: the debugger of a task listens on 127.0.0.1 of the task's machine only, so it cannot be reached"
            " with --hosts; debug the tasks on one machine"
        )
    if spec.network is NetworkOption.PRIVATE:
        raise UsageError(
            f"{source}: with --network private, nothing outside this run reaches a debugger; use --network host"
        )
    for task in spec.debug:
        command = spec.command_of(task.type)
        if not takes_bootstrap(command):
            raise UsageError(
                f"{source}: {task} runs {command.program}, which is not a Python program that orch can bring a debugger"
                " into"
            )
    there = CommandPlace(spec.cwd, place.environ, place.may_start)
    for command in {spec.command_of(task.type): None for task in spec.debug}:
        _require_debugger(source, command, spec, there)


def _require_debugger(source: str, command: Command, spec: JobSpec, place: CommandPlace) -> None:
    python = command.interpreter[0]
    if not place.asks(python):
        return
    extra = "'tf-orch[debug]'" if is_own(python) else _DEBUGGER
    require_modules(
        (_DEBUGGER,),
        source,
        command.interpreter,
        first=program_directory(command, place.cwd),
        cwd=place.cwd,
        environ={**place.environ, **spec.env},
        otherwise=f"{python} -m pip install {extra}",
    )
