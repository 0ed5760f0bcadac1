"""The document of `orch status --json`: a run and its tasks, from the state that its events lead to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.core.progress.activity import doing, waiting_for
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import AttemptEnd, signal_name
from orchestrator.core.state.state import HostPhase, HostState, RunPhase, RunState, TaskState
from orchestrator.core.text.clean import safe

# In a row's waiting_for: thousands of rows with thousands of names would be a document of 100 MB.
_MOST_AWAITED = 20


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class Queued(_Document):
    """Why a run waits for a Slurm job, and when it is expected to start (empty: unknown), in Slurm's words."""

    job: str
    reason: str
    start: str


class RunStatus(_Document):
    """`started_at` is in Unix seconds. `uptime_s` counts up to now, or up to the end of the run. `history` holds the
    attempts before this one. `most_attempts` is the limit of attempts (None: failures are not restarted).
    `restart_in_s` is set between two attempts.
    `tensorboard` is the address at which TensorBoard is served, while it is. `debugged`: tasks that somebody debugs or
    that wait for it; meanwhile time limits are suspended."""

    id: str
    name: str
    state: str
    attempt: int
    started_at: float
    uptime_s: float
    dir: str
    directory: str
    checkpoint_dir: str
    exit_code: int | None
    restart_in_s: float | None = None
    most_attempts: int | None = None
    history: tuple[AttemptEnd, ...] = ()
    tensorboard: str | None = None
    debugged: tuple[str, ...] = ()
    queued: Queued | None = None


class HostStatus(_Document):
    """A host of the run: joined, silent (no answer for `silent_s` now) or lost, and then for what reason. `gpus` are
    models."""

    host: str
    address: str
    state: str
    cores: int
    memory_bytes: int | None
    gpus: tuple[str, ...]
    silent_s: float | None = None
    reason: str | None = None


class TaskStatus(_Document):
    """CPU in percent of one core, memory in bytes (PSS), GPUs in percent of one; None when not known.

    `doing` is a text for people. `paused`: the signal `stop_signal` has stopped its process. `waiting_for`: tasks that
    it needs and that are not ready, at most the first 20. `restart_in_s`: until it alone is restarted. `host`: None on
    this machine; `host_state` as in HostStatus. `versions` as in TaskEnd."""

    task: str
    role: str
    index: int
    pid: int | None
    state: str
    address: str | None
    uptime_s: float | None
    cpu_percent: float | None
    memory_bytes: int | None
    gpu_percent: float | None
    gpu_memory_bytes: int | None
    restarts: int
    exit_code: int | None
    signal: int | None
    progress: Progress | None
    doing: str
    waiting_for: tuple[str, ...]
    log: str
    restart_in_s: float | None = None
    paused: bool = False
    stop_signal: str | None = None
    host: str | None = None
    host_state: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)

    def __repr__(self) -> str:
        parts = (self.state, "" if self.pid is None else f"pid {self.pid}", self.doing)
        return safe(f"<TaskStatus {self.task}: {', '.join(filter(None, parts))}>")

    __str__ = __repr__


class Status(_Document):
    """`orch status --json`."""

    schema_version: Literal[1] = 1
    run: RunStatus
    tasks: tuple[TaskStatus, ...]
    hosts: tuple[HostStatus, ...] = ()

    def __repr__(self) -> str:
        tasks = ", ".join(f"{task.task} {task.state}" for task in self.tasks)
        return safe(f"<Status {self.run.id}: {self.run.state}, attempt {self.run.attempt}; {tasks}>")

    __str__ = __repr__


def seconds_until(due_mono: float | None, now_mono: float) -> float | None:
    """The seconds until something planned, 0 when it is due; None if nothing is planned."""
    return None if due_mono is None else round(max(0.0, due_mono - now_mono), 3)


def queued_status(state: RunState) -> Queued | None:
    """Why a run waits; None if it does not."""
    if state.queued is None or state.phase is not RunPhase.QUEUED:
        return None
    job = state.queued
    return Queued(job=job.job, reason=job.reason, start=job.start)


def host_statuses(state: RunState, now_mono: float) -> tuple[HostStatus, ...]:
    """The hosts of a run; none if all tasks run on this machine."""
    return tuple(
        HostStatus(**host.end.model_dump(), silent_s=_silent_s(host, now_mono))
        for host in state.hosts.values()
    )


def _silent_s(host: HostState, now_mono: float) -> float | None:
    if host.phase is not HostPhase.SILENT or host.heard_mono is None:
        return None
    return round(max(0.0, now_mono - host.heard_mono), 3)


def task_status(
    task: TaskState, state: RunState, sample: Mapping[str, Mapping[str, float]], now_mono: float
) -> TaskStatus:
    """Return the document of a task; `sample` is the one of RunView.sample()."""
    usage = sample.get(task.name, {})
    end = task.ended_mono if task.ended_mono is not None else now_mono
    memory, gpu_memory = (
        None if size is None else int(size)
        for size in (usage.get("memory_bytes"), usage.get("gpu_memory_bytes"))
    )
    stop_signal = usage.get("stop_signal") if task.is_live else None
    # A run that is being stopped restarts nothing, even if a restart was planned.
    host = None if task.plan.host is None else state.hosts.get(task.plan.host)
    is_planned = task.pid is None and state.teardown is None and not state.phase.is_end
    return TaskStatus(
        task=task.name,
        role=task.plan.role,
        index=task.plan.index,
        pid=task.pid,
        state=task.phase,
        address=task.plan.address,
        uptime_s=None if task.started_mono is None else round(max(0.0, end - task.started_mono), 3),
        cpu_percent=usage.get("cpu_percent"),
        memory_bytes=memory,
        gpu_percent=usage.get("gpu_percent"),
        gpu_memory_bytes=gpu_memory,
        restarts=task.restarts,
        exit_code=task.exit_code,
        signal=task.signal,
        progress=task.progress if task.progress != Progress() else None,
        doing=doing(task, state),
        waiting_for=waiting_for(task, state)[:_MOST_AWAITED],
        log=task.plan.log,
        restart_in_s=seconds_until(task.restart_due_mono, now_mono) if is_planned else None,
        paused=stop_signal is not None,
        stop_signal=None if stop_signal is None else signal_name(int(stop_signal)),
        host=task.plan.host,
        host_state=None if host is None else host.phase,
        versions=task.versions,
    )


def task_statuses(
    state: RunState, sample: Mapping[str, Mapping[str, float]], now_mono: float
) -> tuple[TaskStatus, ...]:
    return tuple(task_status(task, state, sample, now_mono) for task in state.tasks.values())
