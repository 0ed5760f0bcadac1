"""A spec and its tasks' addresses to a frozen plan: exactly what each task of one attempt is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from orchestrator.events import PlannedTask
from orchestrator.spec import JobSpec, mask_secrets
from orchestrator.tf_config import ClusterSpec, TaskRef, TFConfig

_LOCAL_HOSTS = ("localhost", "127.0.0.1")
_NO_PROXY = ("no_proxy", "NO_PROXY")
# gRPC reads this one first, and then none of the two above.
_GRPC_NO_PROXY = "no_grpc_proxy"
_REUSE_PORT = "TF_GRPC_REUSE_PORT"
_UNBUFFERED = "PYTHONUNBUFFERED"


class HoldMode(StrEnum):
    """The socket option by which a held port lets its own task in."""

    REUSE_PORT = "reuse_port"
    REUSE_ADDR = "reuse_addr"


class RunLayout(Protocol):
    """Where the files of one run lie, as far as tasks are told."""

    @property
    def run_id(self) -> str: ...

    @property
    def root(self) -> Path: ...

    @property
    def checkpoints(self) -> Path: ...

    def task_log(self, task: str) -> Path: ...

    def task_scratch(self, task: str) -> Path: ...


@dataclass(frozen=True)
class TaskPlan:
    """One task: `env` is what is added to the caller's environment, in the order it is shown; `serves` says
    whether a TensorFlow server is expected on `address` (host:port)."""

    task: TaskRef
    address: str
    tf_config: TFConfig
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    scratch: Path
    serves: bool


@dataclass(frozen=True)
class RunPlan:
    """One attempt, counted from 1. `tasks` stand in the order they are started."""

    run_id: str
    attempt: int
    hold_mode: HoldMode
    tasks: tuple[TaskPlan, ...]


def build_plan(
    spec: JobSpec, addresses: Sequence[str], layout: RunLayout, attempt: int, environ: Mapping[str, str]
) -> RunPlan:
    """Plan an attempt. `addresses` (host:port) are those of `spec.tasks`, in that order; `environ` is what
    the tasks inherit. ValueError (pydantic's) if an address is wrong or given twice."""
    refs = spec.tasks
    if len(addresses) != len(refs):
        raise ValueError(f"{len(refs)} tasks need as many addresses, not {len(addresses)}")
    cluster = _cluster(refs, addresses)
    common = _common_env(spec, layout, attempt, environ)
    tasks = tuple(
        _task_plan(spec, TFConfig(cluster=cluster, task=ref), address, layout, common)
        for ref, address in zip(refs, addresses, strict=True)
    )
    return RunPlan(layout.run_id, attempt, hold_mode(spec, environ), tasks)


def hold_mode(spec: JobSpec, environ: Mapping[str, str]) -> HoldMode:
    """SO_REUSEPORT keeps every other program out, and TensorFlow is told to set it too; unless the user's own
    TF_GRPC_REUSE_PORT says that it must not."""
    wanted = {_REUSE_PORT: "1", **environ, **spec.env}[_REUSE_PORT]
    # The two words that TensorFlow takes for true (tsl::ReadBoolFromEnvVar).
    return HoldMode.REUSE_PORT if wanted.lower() in ("1", "true") else HoldMode.REUSE_ADDR


def planned_tasks(plan: RunPlan) -> tuple[PlannedTask, ...]:
    """The plan as it stands in the events, secrets masked."""
    return tuple(
        PlannedTask(
            task=str(task.task),
            role=task.task.type,
            index=task.task.index,
            address=task.address,
            argv=task.argv,
            cwd=str(task.cwd),
            env=mask_secrets(task.env),
            log=str(task.log),
            serves=task.serves,
        )
        for task in plan.tasks
    )


def _cluster(refs: Sequence[TaskRef], addresses: Sequence[str]) -> ClusterSpec:
    by_role: dict[str, list[str]] = {}
    for ref, address in zip(refs, addresses, strict=True):
        by_role.setdefault(ref.type, []).append(address)
    return ClusterSpec(addresses={role: tuple(those) for role, those in by_role.items()})


def _task_plan(
    spec: JobSpec, tf_config: TFConfig, address: str, layout: RunLayout, common: Mapping[str, str]
) -> TaskPlan:
    name = str(tf_config.task)
    scratch = layout.task_scratch(name)
    own = {"TF_CONFIG": tf_config.to_json(), "ORCH_TASK": name, "ORCH_SCRATCH_DIR": str(scratch)}
    return TaskPlan(
        task=tf_config.task,
        address=address,
        tf_config=tf_config,
        argv=spec.command.argv,
        env=MappingProxyType({**own, **common}),
        cwd=spec.cwd,
        log=layout.task_log(name),
        scratch=scratch,
        serves=spec.command.serves,
    )


def _common_env(spec: JobSpec, layout: RunLayout, attempt: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What all tasks of an attempt get alike. What the user has set stays, but for no_proxy's additions."""
    users = {**environ, **spec.env}
    defaults = {name: "1" for name in (_UNBUFFERED, _REUSE_PORT) if name not in users}
    identity = {
        "ORCH_RUN_ID": layout.run_id,
        "ORCH_RUN_DIR": str(layout.root),
        "ORCH_ATTEMPT": str(attempt),
        "ORCH_CHECKPOINT_DIR": str(spec.checkpoint_dir or layout.checkpoints),
    }
    return identity | defaults | dict(spec.env) | _unproxied(users)


def _unproxied(users: Mapping[str, str]) -> dict[str, str]:
    """Keep the tasks' own traffic off the user's proxy, which gRPC would otherwise ask for 127.0.0.1 too.

    Both spellings get the same list: most programs read only the first one they find.
    """
    listed = users.get(_NO_PROXY[0]) or users.get(_NO_PROXY[1]) or ""
    # Python and curl understand `*` only where it stands alone, and gRPC not at all.
    for_all = listed.strip() == "*"
    env = dict.fromkeys(_NO_PROXY, "*" if for_all else _with_local_hosts(listed))
    if for_all or _GRPC_NO_PROXY in users:
        env[_GRPC_NO_PROXY] = _with_local_hosts(users.get(_GRPC_NO_PROXY, ""))
    return env


def _with_local_hosts(listed: str) -> str:
    # What is not printable (bytes that were no UTF-8) names no host, and would not go into a JSON document.
    hosts = [host.strip() for host in listed.split(",") if host.strip() and host.isprintable()]
    return ",".join([*hosts, *(host for host in _LOCAL_HOSTS if host not in hosts)])
