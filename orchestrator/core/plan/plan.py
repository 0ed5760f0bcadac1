"""Makes the plan of an attempt: exactly what each task is started with, from the spec and the addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING

from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.cpu_budget import Cores, CpuBudget, cpu_budget
from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.core.job.tensorboard import DIRECTORY_VARIABLE
from orchestrator.core.job.tf_config import ClusterSpec, TaskRef, TFConfig, check_length
from orchestrator.core.plan.gpu_plan import GpuPlan
from orchestrator.core.plan.places import HostFacts, RunLayout, TaskPlace
from orchestrator.core.plan.task_devices import gpu_plan_of, gpu_plan_of_hosts, task_devices_env
from orchestrator.core.text.secrets import mask_secrets, mask_words
from worker.wire.facts import HoldMode
from worker.wire.messages import IN_BUNDLE, PreloadOrder, TaskOrder

if TYPE_CHECKING:
    from orchestrator.core.state.events import PlannedTask

_LOCAL_HOSTS = ("localhost", "127.0.0.1")
_NO_PROXY = ("no_proxy", "NO_PROXY")
# gRPC reads this one first, and ignores the two above if it is set.
_GRPC_NO_PROXY = "no_grpc_proxy"
_REUSE_PORT = "TF_GRPC_REUSE_PORT"
_UNBUFFERED = "PYTHONUNBUFFERED"
_PYTHON_PATH = "PYTHONPATH"
_COLUMNS = "COLUMNS"
GLOBAL_BATCH = "ORCH_GLOBAL_BATCH"
DEPTH = "ORCH_DEPTH"
_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
# The port of the first debugger, if it is free: the one that examples of debugpy have.
_DEBUGGER_PORT = 5678
# Steps that planned faults and the profile wait for. A task that reports its own progress must report these at once.
_AWAITED_STEPS = "ORCH_PROGRESS_AT"
# Common to all tasks, but not known before an attempt. No import reads it.
_NOT_PRELOADED = frozenset({"ORCH_ATTEMPT"})
# The bootstrap needs PYTHONPATH and the start-up code of site, which -I, -E and -S turn off.
_CLOSED_TO_BOOTSTRAP = frozenset("IES")
_OPTIONS_WITH_VALUE = "WX"


@dataclass(frozen=True)
class TaskPlan:
    """The order that starts a task on `host` (None: this machine), with paths there, and its `address` (host:port).
    `interactive`: it has the user's terminal."""

    task: TaskRef
    host: str | None
    address: str
    order: TaskOrder
    interactive: bool = False


@dataclass(frozen=True)
class RunPlan:
    """The plan of an attempt; the first is 1. `tasks` are in the order of their start, `cluster` has all their
    addresses, `budgets` are their shares of the cores by host, `gpus` the GPUs that each task sees. A host whose facts
    are not known has no budget."""

    run_id: str
    attempt: int
    hold_mode: HoldMode
    tasks: tuple[TaskPlan, ...]
    cluster: ClusterSpec
    budgets: Mapping[str | None, CpuBudget]
    gpus: GpuPlan

    def tf_config_of(self, task: TaskRef) -> TFConfig:
        """The TF_CONFIG that the agent makes for a task."""
        return TFConfig(cluster=self.cluster.seen_by(task.type), task=task)


def build_plan(
    spec: JobSpec,
    places: Sequence[TaskPlace],
    layout: RunLayout,
    attempt: int,
    environ: Mapping[str, str],
    facts: Mapping[str, HostFacts] = MappingProxyType({}),
) -> RunPlan:
    """Plan an attempt. `places` are those of `spec.tasks`, in order; tasks inherit `environ`. `facts` are those of the
    hosts, by name; this machine's are in the spec.

    Raises ValueError (pydantic's) if an address is wrong or repeated, TFConfigTooLong, and SettingMisfit if a host's
    GPUs cannot be split as asked."""
    refs = spec.tasks
    if len(places) != len(refs):
        raise ValueError(f"{len(refs)} tasks need as many addresses, not {len(places)}")
    addresses = [place.address for place in places]
    by_role: dict[str, list[str]] = {}
    by_host: dict[str | None, list[TaskRef]] = {}
    for ref, place in zip(refs, places, strict=True):
        by_role.setdefault(ref.type, []).append(place.address)
        by_host.setdefault(place.host, []).append(ref)
    cluster = ClusterSpec(addresses={role: tuple(those) for role, those in by_role.items()})
    check_length(cluster)
    gpus = _gpus(spec, by_host, facts, environ)
    devices = task_devices_env(spec, addresses, environ, gpus)
    common: dict[tuple[str | None, str], dict[str, str]] = {}
    tasks = []
    for ref, place in zip(refs, places, strict=True):
        paths = place.layout or layout
        if (place.host, ref.type) not in common:
            common[place.host, ref.type] = _common_env(spec, ref.type, paths, attempt, environ)
        env = {**devices[str(ref)], **common[place.host, ref.type]}
        tasks.append(_task_plan(spec, ref, place, paths, env, environ))
    users = {**environ, **spec.env}
    budgets = {
        host: _budget(spec, users, len(those), spec.cores if host is None else facts[host].cores)
        for host, those in by_host.items()
        if host is None or host in facts
    }
    return RunPlan(layout.run_id, attempt, hold_mode(spec, environ), tuple(tasks), cluster, budgets, gpus)


def _gpus(
    spec: JobSpec,
    by_host: Mapping[str | None, Sequence[TaskRef]],
    facts: Mapping[str, HostFacts],
    environ: Mapping[str, str],
) -> GpuPlan:
    if None in by_host:
        return gpu_plan_of(spec, environ)
    tasks = {host: those for host, those in by_host.items() if host is not None}
    return gpu_plan_of_hosts(spec, tasks, {host: its.gpus for host, its in facts.items()}, environ)


def preload_order(spec: JobSpec, layout: RunLayout, environ: Mapping[str, str]) -> PreloadOrder | None:
    """Return what to preload for this job, None if its tasks are not forked. Needs no ports, so it starts first.

    `layout`: of the agent's host. A role is not forked if its command or its environment needs other imports
    (request/settings/roles.py)."""
    if not spec.command.start.fork:
        return None
    common = _common_env(spec, None, layout, 0, environ)
    env = {name: value for name, value in common.items() if name not in _NOT_PRELOADED}
    start = spec.command.start
    return PreloadOrder(
        argv=spec.command.interpreter,
        env=MappingProxyType(env),
        cwd=str(spec.cwd),
        modules=start.modules,
        script_env=MappingProxyType(dict(start.preload_env)),
        log=str(layout.preloader_log),
    )


def argv_elsewhere(command: Command) -> tuple[str, ...]:
    """The words of a command on another machine, where the example of orch is in the bundle."""
    if command.kind is not CommandKind.EXAMPLE:
        return command.argv
    at = len(command.interpreter)
    script = f"{IN_BUNDLE}worker/examples/{PurePath(command.argv[at]).name}"
    return (*command.argv[:at], script, *command.argv[at + 1 :])


def takes_bootstrap(command: Command) -> bool:
    """Return whether the command is a Python program into which the bootstrap can be injected."""
    if not command.interpreter:
        return False
    is_value = False
    for option in command.interpreter[1:]:
        letters = "" if is_value or option.startswith("--") else option[1:]
        valued = next(
            (at for at, letter in enumerate(letters) if letter in _OPTIONS_WITH_VALUE), len(letters)
        )
        if _CLOSED_TO_BOOTSTRAP & set(letters[:valued]):
            return False
        # The value of `-W ignore` is the next word, that of `-Wignore` is not.
        is_value = valued == len(letters) - 1
    return True


def _budget(
    spec: JobSpec, users: Mapping[str, str], tasks: int | None = None, cores: Cores | None = None
) -> CpuBudget:
    """The budget of `tasks` on a host with these cores."""
    total = len(spec.tasks)
    return cpu_budget(cores or spec.cores, total if tasks is None else tasks, spec.threads, users, total)


def hold_mode(spec: JobSpec, environ: Mapping[str, str]) -> HoldMode:
    """Return how ports are held. SO_REUSEPORT keeps every other program out, and TensorFlow has to set it, too. The
    user's own TF_GRPC_REUSE_PORT can turn it off."""
    wanted = {_REUSE_PORT: "1", **environ, **spec.env}[_REUSE_PORT]
    # TensorFlow reads only these two words as true (tsl::ReadBoolFromEnvVar).
    return "reuse_port" if wanted.lower() in ("1", "true") else "reuse_addr"


def planned_tasks(plan: RunPlan, layout: RunLayout) -> tuple[PlannedTask, ...]:
    """Return the plan for the events, secrets masked. `layout` has the logs as users see them."""
    from orchestrator.core.state.events import (
        PlannedTask,
    )  # its import takes 0.02 s, and `orch config` needs no events

    commands = {argv: mask_words(argv) for argv in {task.order.argv for task in plan.tasks}}
    return tuple(
        PlannedTask(
            task=str(task.task),
            role=task.task.type,
            index=task.task.index,
            address=task.address,
            argv=commands[task.order.argv],
            cwd=task.order.cwd,
            env=mask_secrets(task.order.env),
            log=str(layout.task_log(str(task.task))),
            host=task.host,
            serves=task.order.serves,
            interactive=task.interactive,
        )
        for task in plan.tasks
    )


def _task_plan(
    spec: JobSpec,
    task: TaskRef,
    place: TaskPlace,
    layout: RunLayout,
    common: Mapping[str, str],
    environ: Mapping[str, str],
) -> TaskPlan:
    name, role = str(task), task.type
    command = spec.command_of(role)
    scratch = str(layout.task_scratch(name))
    own = {"ORCH_TASK": name, "ORCH_SCRATCH_DIR": scratch}
    python_path = {**environ, **spec.env_of(role)}.get(_PYTHON_PATH)
    order = TaskOrder(
        task=name,
        argv=command.argv if place.host is None else argv_elsewhere(command),
        env=MappingProxyType({**own, **common}),
        cwd=str(spec.cwd),
        log=str(layout.task_log(name)),
        port=int(place.address.rpartition(":")[2]) if place.address else None,
        serves=spec.serves(role),
        bootstrap=_bootstrap(spec, command, task, layout, python_path),
        fork=command.start.fork,
        memory_limit=spec.memory_limit_bytes,
        scratch=None if place.host is None else scratch,
        role=role,
        index=task.index,
    )
    return TaskPlan(task, place.host, place.address, order, interactive=task == spec.interactive)


def _bootstrap(
    spec: JobSpec, command: Command, task: TaskRef, layout: RunLayout, python_path: str | None
) -> Mapping[str, object] | None:
    """Return the options of the bootstrap."""
    if not takes_bootstrap(command):
        return None
    name = str(task)
    return MappingProxyType(
        {
            "task": name,
            "exception_file": str(layout.task_exception(name)),
            "stacks_file": str(layout.task_stacks(name)),
            # The fixes are for replicas of Keras. Clients of DTensor are not replicas.
            "fixes": spec.fixes and spec.strategy.strategy is not Strategy.DTENSOR,
            "keep_tf_config": not spec.script_tf_config,
            "pythonpath": python_path,
            **_debugging(spec, task),
            **_profiling(spec, layout),
        }
    )


def _profiling(spec: JobSpec, layout: RunLayout) -> dict[str, object]:
    """The options of the bootstrap about the profile; none in a run without one."""
    steps = spec.profile
    if steps is None:
        return {}
    return {"profile": {"first": steps.first, "last": steps.last, "directory": str(layout.profile)}}


def _debugging(spec: JobSpec, task: TaskRef) -> dict[str, object]:
    """The options of the bootstrap about debuggers; none in a run without them."""
    if not spec.debug and spec.interactive is None and not spec.pdb:
        return {}
    options: dict[str, object] = {"patient": True, "post_mortem": spec.pdb}
    if task in spec.debug:
        port = _DEBUGGER_PORT + spec.debug.index(task)
        options["debugger"] = {"port": port, "waits": not spec.debug_no_wait}
    return options


def _common_env(
    spec: JobSpec, role: str | None, layout: RunLayout, attempt: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables common to all tasks of an attempt, or to those of `role`. The user's own variables are kept,
    except that no_proxy is extended."""
    given = spec.env if role is None else spec.env_of(role)
    command = spec.command if role is None else spec.command_of(role)
    users = {**environ, **given}
    defaults = {name: "1" for name in (_UNBUFFERED, _REUSE_PORT) if name not in users}
    identity = {
        "ORCH_RUN_ID": layout.run_id,
        "ORCH_RUN_DIR": str(layout.root),
        "ORCH_ATTEMPT": str(attempt),
        DEPTH: str((read_depth(environ) or 0) + 1),
        "ORCH_CHECKPOINT_DIR": str(spec.checkpoint_dir or layout.checkpoints),
    }
    if spec.tensorboard is not None:
        identity[DIRECTORY_VARIABLE] = str(layout.root / "tensorboard")
    if spec.global_batch is not None:
        identity[GLOBAL_BATCH] = str(spec.global_batch)
    for name in (DIRECTORY_VARIABLE, GLOBAL_BATCH):
        if name not in identity and environ.get(name) and environ.get("ORCH_RUN_ID"):
            identity[name] = ""  # inherited from the run that this one is in
    keras = {_LEGACY_KERAS: "1"} if command.legacy_keras and _LEGACY_KERAS not in users else {}
    threads = _budget(spec, users).env
    steps = {fault.step for fault in spec.chaos if fault.step is not None}
    if spec.profile is not None:
        steps |= spec.profile.awaited
    columns = {_COLUMNS: str(spec.columns)} if spec.columns is not None and _COLUMNS not in users else {}
    awaited = {_AWAITED_STEPS: ",".join(map(str, sorted(steps)))} if steps else {}
    return identity | columns | awaited | defaults | keras | dict(threads) | dict(given) | _unproxied(users)


def read_depth(environ: Mapping[str, str]) -> int | None:
    """Return the number of runs around one that starts in this environment; None if the variable is invalid."""
    try:
        number = int(environ.get(DEPTH) or 0)
    except ValueError:
        return None
    return number if number >= 0 else None


def _unproxied(users: Mapping[str, str]) -> dict[str, str]:
    """Exclude the tasks' own traffic from the user's proxy. gRPC would use the proxy for 127.0.0.1, too. The agent adds
    the addresses of other hosts.

    The variable in capitals gets the same list, since most programs read only one of the two.
    """
    listed = users.get(_NO_PROXY[0]) or users.get(_NO_PROXY[1]) or ""
    # Python and curl accept `*` only as the whole list. gRPC does not accept it.
    for_all = listed.strip() == "*"
    env = dict.fromkeys(_NO_PROXY, "*" if for_all else _with_local_hosts(listed))
    if for_all or _GRPC_NO_PROXY in users:
        env[_GRPC_NO_PROXY] = _with_local_hosts(users.get(_GRPC_NO_PROXY, ""))
    return env


def _with_local_hosts(listed: str) -> str:
    # Entries with bytes that are not UTF-8 are not host names, and cannot be written to JSON.
    hosts = [host.strip() for host in listed.split(",") if host.strip() and host.isprintable()]
    return ",".join([*hosts, *(host for host in _LOCAL_HOSTS if host not in hosts)])
