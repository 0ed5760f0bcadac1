"""What a run is like now: the fold of its events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from orchestrator.events import (
    AgentLost,
    AttemptPlanned,
    DeadlineReached,
    Event,
    LogTruncated,
    Noticed,
    NotPreloaded,
    PlannedTask,
    PreloadBegan,
    Preloaded,
    ProcessOrigin,
    Progress,
    RunEndedEvent,
    StopRequested,
    Symptom,
    TaskExited,
    TaskProgressed,
    TaskReady,
    TaskStarted,
    TaskStartFailed,
    TeardownBegan,
    TeardownEnded,
    TeardownReason,
)


class RunPhase(StrEnum):
    """The run's state; the last five are ends."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    TIMED_OUT = "timed_out"
    LOST = "lost"

    @property
    def is_end(self) -> bool:
        return self not in (RunPhase.STARTING, RunPhase.RUNNING, RunPhase.STOPPING)


class TaskPhase(StrEnum):
    """A task's state; the last four are ends."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_end(self) -> bool:
        return self in (TaskPhase.SUCCEEDED, TaskPhase.FAILED, TaskPhase.STOPPED, TaskPhase.LOST)


@dataclass(frozen=True)
class TaskState:
    """One task of the current attempt. Times are monotonic seconds; `exit_order` counts exits from 0; `since_mono`
    is when it began to do what it says it is doing."""

    plan: PlannedTask
    phase: TaskPhase = TaskPhase.PENDING
    pid: int | None = None
    start_ticks: int | None = None
    started_mono: float | None = None
    since_mono: float | None = None
    method: ProcessOrigin = "spawn"
    ended_mono: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    exit_order: int | None = None
    start_error: str | None = None
    peers_at_exit: dict[str, str] = field(default_factory=dict)
    symptom: Symptom | None = None
    peer_symptoms: dict[str, Symptom] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    restarts: int = 0

    @property
    def name(self) -> str:
        return self.plan.task

    @property
    def ended_badly(self) -> bool:
        """It ended by itself, and not with 0 (being stopped by orch is neither good nor bad)."""
        return self.phase is TaskPhase.FAILED


@dataclass(frozen=True)
class RunState:
    """A run by its events. `tasks` are in plan order; times are monotonic seconds; `preloading` are the modules
    that a process the tasks will be forked from is importing just now."""

    phase: RunPhase = RunPhase.STARTING
    attempt: int = 0
    tasks: dict[str, TaskState] = field(default_factory=dict)
    stop: StopRequested | None = None
    teardown: TeardownReason | None = None
    teardown_mono: float | None = None
    agent_lost: str | None = None
    notices: tuple[str, ...] = ()
    preloading: tuple[str, ...] = ()
    exit_code: int | None = None
    ended_mono: float | None = None

    @property
    def is_ready(self) -> bool:
        """Every task runs: those with a server listen, the others were started."""
        return bool(self.tasks) and all(task.phase is TaskPhase.RUNNING for task in self.tasks.values())


def apply(state: RunState, event: Event) -> RunState:
    """The state after `event`; never changes the one given."""
    match event:
        case AttemptPlanned():
            tasks = {task.task: TaskState(plan=task) for task in event.tasks}
            # A stop that came before the plan still holds.
            phase = RunPhase.STARTING if state.teardown is None else RunPhase.STOPPING
            return replace(state, phase=phase, attempt=event.attempt, tasks=tasks)
        case TaskStarted():
            task = replace(
                state.tasks[event.task],
                # On its way when the teardown began: it starts only to be stopped.
                phase=TaskPhase.STARTING if state.teardown is None else TaskPhase.STOPPING,
                pid=event.pid,
                start_ticks=event.start_ticks,
                started_mono=event.mono,
                since_mono=event.mono,
                method=event.method,
            )
            return _with_task(state, task)
        case TaskStartFailed():
            order = sum(1 for task in state.tasks.values() if task.exit_order is not None)
            task = replace(
                state.tasks[event.task],
                phase=TaskPhase.FAILED,
                exit_code=event.exit_code,
                exit_order=order,
                start_error=event.reason,
                ended_mono=event.mono,
            )
            return _with_task(state, task)
        case TaskReady():
            task = state.tasks[event.task]
            if task.phase is not TaskPhase.STARTING:
                return state
            return _with_task(state, replace(task, phase=TaskPhase.RUNNING))
        case TaskProgressed():
            task = state.tasks[event.task]
            since = task.since_mono if event.progress.phase == task.progress.phase else event.mono
            return _with_task(state, replace(task, progress=event.progress, since_mono=since))
        case TaskExited():
            return _with_task(state, _exited(state, event))
        case TeardownBegan():
            return _teardown(state, event)
        case StopRequested():
            return replace(state, stop=state.stop or event)
        case AgentLost():
            # The agent's tasks die with it.
            return replace(_lose_the_rest(state, event.mono), agent_lost=state.agent_lost or event.reason)
        case PreloadBegan():
            return replace(state, preloading=event.modules)
        case Preloaded() | NotPreloaded():
            return replace(state, preloading=())
        case Noticed():
            if event.verbose:
                return state
            return replace(state, notices=(*state.notices, event.text))
        case RunEndedEvent():
            ended = _lose_the_rest(state, event.mono)
            phase = RunPhase(event.outcome)
            return replace(ended, phase=phase, exit_code=event.exit_code, ended_mono=event.mono)
        case TeardownEnded() | DeadlineReached() | LogTruncated():
            return state
        case _:
            assert_never(event)


def _with_task(state: RunState, task: TaskState) -> RunState:
    tasks = {**state.tasks, task.name: task}
    changed = replace(state, tasks=tasks)
    if state.phase is RunPhase.STARTING and changed.is_ready:
        return replace(changed, phase=RunPhase.RUNNING)
    return changed


def _exited(state: RunState, event: TaskExited) -> TaskState:
    task = state.tasks[event.task]
    if event.exit_code == 0 and task.phase is not TaskPhase.STOPPING:
        phase = TaskPhase.SUCCEEDED
    elif task.phase is TaskPhase.STOPPING:
        phase = TaskPhase.STOPPED
    else:
        phase = TaskPhase.FAILED
    return replace(
        task,
        phase=phase,
        exit_code=event.exit_code,
        signal=event.signal,
        exit_order=event.order,
        ended_mono=event.mono,
        peers_at_exit=event.peers,
        symptom=event.symptom,
        peer_symptoms=event.peer_symptoms,
    )


def _lose_the_rest(state: RunState, mono: float) -> RunState:
    """Tasks whose end nobody saw and nobody will see; one that never started stays so."""
    tasks = {
        name: task
        if task.phase.is_end or task.phase is TaskPhase.PENDING
        else replace(task, phase=TaskPhase.LOST, ended_mono=mono)
        for name, task in state.tasks.items()
    }
    return replace(state, tasks=tasks)


def _teardown(state: RunState, event: TeardownBegan) -> RunState:
    tasks = {
        name: task if task.phase.is_end or task.pid is None else replace(task, phase=TaskPhase.STOPPING)
        for name, task in state.tasks.items()
    }
    return replace(
        state,
        phase=RunPhase.STOPPING,
        tasks=tasks,
        teardown=state.teardown or event.reason,
        teardown_mono=event.mono if state.teardown_mono is None else state.teardown_mono,
    )
