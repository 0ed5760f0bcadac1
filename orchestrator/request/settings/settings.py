"""Makes one checked request of flags, ORCH_* variables and orch.toml."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.core.diagnosis.distribution import cluster_advice
from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import EngineName, FailurePolicy
from orchestrator.core.job.fault import with_targets
from orchestrator.core.job.run_name import default_name, element_name
from orchestrator.core.job.spec import Command, CommandKind, JobSpec, RoleSettings
from orchestrator.core.job.strategy import StrategyChoice, example_strategy
from orchestrator.core.job.tf_config import EVALUATOR, PS, TaskRef
from orchestrator.core.plan.plan import takes_bootstrap
from orchestrator.core.text.counted import counted
from orchestrator.host.cores import usable_cores
from orchestrator.host.devices import gpu_inventory
from orchestrator.host.directories import existing_directories
from orchestrator.host.importable import require_modules
from orchestrator.host.installed import find_tensorboard, is_own
from orchestrator.request.command.resolve import (
    CommandOptions,
    CommandPlace,
    not_asked_note,
    program_directory,
    resolve_command,
)
from orchestrator.request.command.role_hints import cluster_hint, role_hints
from orchestrator.request.settings.debuggers import (
    debugged_tasks,
    interactive_task,
    require_debuggers,
    require_post_mortem,
    require_terminal,
)
from orchestrator.request.settings.declaration import Part
from orchestrator.request.settings.given import (
    COMMAND_SOURCE,
    INSIDE_A_TASK,
    Given,
    collect,
    misspelt_variables,
    require_plain,
)
from orchestrator.request.settings.options import COMMAND, ENGINE, GROUPS, SETTINGS, SLURM
from orchestrator.request.settings.request import DisplayOptions, UpRequest, WaitFor
from orchestrator.request.settings.roles import (
    CommonCommand,
    gpu_notices,
    resolve_roles,
    role_counts,
    strategy_choice,
    with_strategy,
    worker_range,
)
from orchestrator.store.ownership import open_place

# Seeds of faults are below: short enough to type again.
_SEEDS = 10**6
# Digits of an element of a job array.
_LONGEST_ELEMENT = 10


def load(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    directory: Path,
    may_start: Callable[[str], bool] = lambda python: True,
) -> UpRequest:
    """Return the checked request. `flags` are values or texts by option; None means not given.

    `flags["command"]` are the words after `--`; without a command an example of orch runs. UsageError names the
    source of a mistake: the flag, the variable, or the file and line. Reads files and writes nothing. `may_start` says
    which interpreters may be asked for their packages.
    """
    directory = directory.absolute()
    given = collect(flags, environ, directory)
    place = CommandPlace(directory, environ, may_start)
    spec = _spec(given, place)
    if spec.chaos:
        _require_tasks(given["chaos"].source, tuple(fault.task for fault in spec.chaos if fault.task), spec)
    if spec.debug:
        _require_tasks(given["debug"].source, spec.debug, spec)
        require_debuggers(given["debug"].source, spec, place)
    display = _display(given, spec)
    if spec.interactive is not None:
        source = given["interactive"].source
        _require_tasks(source, (spec.interactive,), spec)
        require_terminal(source, spec, detached=display.detach)
    if spec.pdb:
        require_post_mortem(given["pdb"].source, spec, detached=display.detach)
    if spec.expect_cluster:
        _require_cluster(given["expect_cluster"].source, spec)
    if spec.profile is not None:
        _require_profiler(given["profile"].source, spec)
    notices = (
        *_notices(spec, given, place),
        *role_hints(spec, {**environ, **spec.env}),
        *_cluster_notices(spec, environ),
        *(() if spec.is_remote else gpu_notices(given, spec, environ)),
    )
    existing = existing_directories(spec.log_dir, spec.checkpoint_dir)
    return UpRequest(spec=spec, display=display, notices=notices, existing=existing)


def _values(given: Mapping[str, Given], *parts: Part) -> dict[str, Any]:
    """Return the given values of these parts by the names of their fields."""
    return {
        option.field: given[name].value
        for name, option in SETTINGS.items()
        if option.part in parts and name in given
    }


def _spec(given: Mapping[str, Given], place: CommandPlace) -> JobSpec:
    """Return the job. `place` is that of `orch` itself."""
    directory, environ = place.cwd, place.environ
    require_plain(str(directory), "the current directory")
    cwd = given.get("cwd", Given(directory, "the current directory"))
    _require_directory(cwd)
    strategy = strategy_choice(given)
    roles = role_counts(given, strategy)
    command, role_settings = _commands(given, strategy, roles, replace(place, cwd=cwd.value))
    fields = {
        "name": default_name(directory),
        **_values(given, Part.JOB),
        **_values(given, Part.START),
        "roles": roles,
        "role_settings": role_settings,
        "command": command,
        "name_is_explicit": "name" in given,
        "directory": directory,
        "cwd": cwd.value,
        "inherited_tf_config": bool(environ.get("TF_CONFIG")),
        "cores": usable_cores(),
        "gpu_inventory": gpu_inventory(environ),
        "debug": debugged_tasks(given, roles),
        "interactive": interactive_task(given, roles),
        "fixes": "no_fixes" not in given or not given["no_fixes"].value,
    }
    fields.pop("no_fixes", None)
    if "chaos" in given:
        fields["chaos"] = with_targets(fields["chaos"], roles, lambda: secrets.randbelow(_SEEDS))
    if "on_failure" not in given and fields.get("max_restarts") and PS not in roles:
        # A number of restarts asks for restarts. With parameter servers, it is for their workers, which restart anyway.
        fields["on_failure"] = FailurePolicy.RESTART
    if workers := worker_range(given):
        fields["fewest_workers"] = workers.fewest
        fields.setdefault("on_failure", FailurePolicy.RESTART)
    if element := _array_element(environ):
        fields["name"] = element_name(fields["name"], element)
        if (shared := fields.get("checkpoint_dir")) is not None and shared.name != element:
            fields["checkpoint_dir"] = shared / element
    if "engine" not in given and "hosts" in given:
        fields["engine"] = EngineName.SSH
    if fields.pop("tensorboard", False):
        own = (role.command for role in role_settings.values())
        fields["tensorboard"] = find_tensorboard([command, *filter(None, own)], place.installed)
    try:
        spec = JobSpec(**fields)
    except ValidationError as error:
        raise _with_source(error, given) from error
    if spec.is_remote and spec.remote_python is not None:
        spec = with_python(spec, spec.remote_python)
    return with_strategy(given, strategy, spec)


def _array_element(environ: Mapping[str, str]) -> str:
    """The index of the element of Slurm's job array that this is; empty for another job, and for a task of a run."""
    element = environ.get("SLURM_ARRAY_TASK_ID", "")
    return (
        element
        if element.isdecimal() and len(element) <= _LONGEST_ELEMENT and not environ.get(INSIDE_A_TASK)
        else ""
    )


def with_python(spec: JobSpec, python: str) -> JobSpec:
    """Return the job as it is run elsewhere: by `python` instead of orch's own interpreter."""
    settings = {
        role: its if its.command is None else its.model_copy(update={"command": _run_by(its.command, python)})
        for role, its in spec.role_settings.items()
    }
    return spec.model_copy(update={"command": _run_by(spec.command, python), "role_settings": settings})


def _run_by(command: Command, python: str) -> Command:
    if not command.interpreter or not is_own(command.interpreter[0]):
        return command
    return command.model_copy(
        update={
            "argv": (python, *command.argv[1:]),
            "interpreter": (python, *command.interpreter[1:]),
        }
    )


def _require_directory(given: Given) -> None:
    path: Path = given.value
    try:
        found = path.is_dir()
        exists = found or path.exists()
    except OSError as error:
        raise UsageError(f"{given.source}: {path}: {error.strerror}") from error
    if not exists:
        raise UsageError(f"{given.source}: {path} does not exist; name an existing directory, or create it")
    if not found:
        raise UsageError(f"{given.source}: {path} is not a directory")


def _commands(
    given: Mapping[str, Given], strategy: StrategyChoice, roles: Mapping[str, int], place: CommandPlace
) -> tuple[Command, dict[str, RoleSettings]]:
    """Return the command of all tasks, and the settings of the roles that differ."""
    chosen = example_strategy(strategy, roles).strategy
    options = CommandOptions(**_values(given, Part.START), strategy=chosen)

    def resolve(words: tuple[str, ...], env: Mapping[str, str], source: str) -> Command:
        there = replace(place, environ={**place.environ, **env})
        try:
            command = resolve_command(words, there, options)
        except UsageError as error:
            # The user has just typed the words after `--`, but may have forgotten those of a file or a variable.
            if source == COMMAND_SOURCE:
                raise
            raise UsageError(f"{source}: {error}") from error
        if options.preload and command.interpreter and there.asks(command.interpreter[0]):
            require_modules(
                options.preload,
                given["preload"].source,
                command.interpreter,
                first=program_directory(command, there.cwd),
                cwd=there.cwd,
                environ=there.environ,
            )
        return command

    env = given["env"].value if "env" in given else {}
    command = given[COMMAND.name]
    return resolve_roles(given, roles, CommonCommand(command.value, command.source, env, resolve))


def _with_source(error: ValidationError, given: Mapping[str, Given]) -> UsageError:
    """Return the first problem of a JobSpec, with the source of the value."""
    problem = error.errors(include_url=False)[0]
    field = str(problem["loc"][0]) if problem["loc"] else ""
    name = next((name for name, option in SETTINGS.items() if option.field == field), "")
    source = given[name].source if name in given else field or "the request"
    cause = problem.get("ctx", {}).get("error")
    return UsageError(f"{source}: {cause if cause is not None else problem['msg']}")


def _display(given: Mapping[str, Given], spec: JobSpec) -> DisplayOptions:
    values = _values(given, Part.DISPLAY, Part.SCREEN)
    if "tasks" in given:
        values["tasks"] = tuple(task.among(spec.roles) for task in given["tasks"].value)
        _require_tasks(given["tasks"].source, values["tasks"], spec)
    if "wait" in values:
        values["detach"] = True
    if values.get("ui") and values.get("detach"):
        raise UsageError(
            f"{given['ui'].source}: the page is served while `orch up` follows the run, and a detached `orch up` exits"
            " before; start `orch ui` beside it"
        )
    if values.get("watch") and values.get("detach"):
        raise UsageError(
            f"{given['watch'].source}: the files are watched while `orch up` follows the run; leave out --detach and"
            " --wait"
        )
    if "junit" in values:
        _require_file(given["junit"])
        if values.get("detach") and values.get("wait") is not WaitFor.DONE:
            raise UsageError(
                f"{given['junit'].source}: the file is written when the run has ended, and a detached `orch up` exits"
                " before; use --wait done"
            )
    return DisplayOptions(**values)


def _require_file(given: Given) -> None:
    """Refuse a file that cannot be written at the end of the run."""
    path: Path = given.value
    try:
        if path.is_dir():
            problem = "is a directory; name a file"
        elif path.exists() and not path.is_file():
            problem = "is not a regular file; name another one"
        elif not path.parent.is_dir():
            problem = f"{path.parent} is not a directory; create it"
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            problem = f"{path.parent} cannot be written; name another directory"
        else:
            os.close(open_place(path)[0])
            return
    except OSError as error:
        problem = f"{error.strerror}"
    raise UsageError(f"{given.source}: {path}: {problem}")


def _require_tasks(source: str, tasks: tuple[TaskRef, ...], spec: JobSpec) -> None:
    for task in tasks:
        if task.index >= spec.roles.get(task.type, 0):
            has = ", ".join(_span(role, count) for role, count in spec.roles.items())
            raise UsageError(f"{source}: there is no {task} in this run; it has {has}")


def _require_cluster(source: str, spec: JobSpec) -> None:
    if not spec.has_cluster:
        raise UsageError(f"{source}: this run has no cluster of several tasks; use --workers 2 or more")
    for role in spec.roles:
        command = spec.command_of(role)
        if role != EVALUATOR and not command.interpreter:
            raise UsageError(
                f"{source}: {command.program} is not a Python program, so orch cannot see whether it joins a cluster"
            )


def _require_profiler(source: str, spec: JobSpec) -> None:
    for command in spec.commands:
        if not takes_bootstrap(command):
            raise UsageError(
                f"{source}: {command.program} is not a Python program in which orch can start TensorFlow's profiler"
            )


def _span(role: str, count: int) -> str:
    return f"{role}:0" if count == 1 else f"{role}:0 to {role}:{count - 1}"


def _notices(spec: JobSpec, given: Mapping[str, Given], place: CommandPlace) -> tuple[str, ...]:
    environ, notices = place.environ, []
    policies = {spec.policy_of(role) for role in spec.roles}
    if "max_restarts" in given and policies <= {FailurePolicy.ABORT, FailurePolicy.CONTINUE}:
        source = given["max_restarts"].source
        notices.append(f"{source} has no effect: --on-failure {spec.on_failure} never restarts")
    if not environ.get(INSIDE_A_TASK):
        notices += misspelt_variables(environ)
    if spec.inherited_tf_config:
        notices.append("TF_CONFIG is set in this environment; each task gets its own instead")
    notices += _idle_options(spec, given)
    if element := _array_element(environ):
        checkpoints = "" if spec.checkpoint_dir is None else f", checkpoints in {spec.checkpoint_dir}"
        notices.append(f"element {element} of a job array: run {spec.name}{checkpoints}")
    if spec.fewest_workers is not None and not spec.is_elastic:
        always = counted(spec.workers, "worker")
        notices.append(f"{given['workers'].source}: on one machine the run always has {always}")
    if spec.tensorboard is not None and (unserved := spec.tensorboard.note(spec.network)):
        notices.append(unserved)
    if spec.tensorboard is not None and (python := spec.tensorboard.python) and not place.asks(python):
        notices.append(not_asked_note(python, "tensorboard"))
    notes = dict.fromkeys(note for command in spec.commands for note in command.notes)
    return (*notices, *_chaos_notices(spec), *notes)


def _idle_options(spec: JobSpec, given: Mapping[str, Given]) -> Iterator[str]:
    """Yield which flags about hosts and Slurm change nothing. In a file or a variable they may be for other runs."""
    for option in GROUPS["Hosts"]:
        needed = "--engine slurm" if option in SLURM else "--hosts"
        is_idle = spec.engine is not EngineName.SLURM and (option in SLURM or not spec.hosts)
        was_typed = option.name in given and given[option.name].source == option.flag
        if is_idle and was_typed and option is not ENGINE:
            yield f"{option.flag} has no effect without {needed}"


def _cluster_notices(spec: JobSpec, environ: Mapping[str, str]) -> Iterator[str]:
    if hint := cluster_hint(spec, {**environ, **spec.env}):
        yield f"{hint}; {cluster_advice(spec)}"


def _chaos_notices(spec: JobSpec) -> Iterator[str]:
    """Yield a sentence for each fault that probably never comes."""
    is_silent = spec.command.kind is CommandKind.EXECUTABLE and not spec.command.interpreter
    for fault in spec.chaos:
        if is_silent and fault.waits_for_progress:
            yield (
                f"--chaos: `{fault}` waits for progress, and {spec.command.words[0]} is not a Python program:"
                " its tasks have to report it (ORCH_PROGRESS_FD)"
            )
        if fault.attempt > 1 and FailurePolicy.RESTART not in map(spec.policy_of, spec.roles):
            yield f"--chaos: `{fault}` needs another attempt: --on-failure restart, or `orch restart`"
