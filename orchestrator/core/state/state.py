"""The state of a run: the fold of its events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from orchestrator.core.job.tf_config import PS
from orchestrator.core.state import events
from orchestrator.core.state.events import (
    Event,
    PlannedTask,
    ProcessOrigin,
    Progress,
    Symptom,
    TeardownReason,
)
from orchestrator.core.state.position import Course
from orchestrator.core.state.result import AttemptEnd, LeftProcess, TaskBadLoss
from orchestrator.core.state.tasks import Tasks


class RunPhase(StrEnum):
    """The run's state; the last five are final."""

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
    """A task's state; the last four are final."""

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


LIVE_PHASES = frozenset(phase for phase in TaskPhase if not phase.is_end)


@dataclass(frozen=True)
class TaskState:
    """A task of the current attempt. Times are monotonic seconds, sizes are bytes.

    since_mono: start of the phase that the task reports
    has_listened: a process of it has listened on its port
    exit_order: place among all exits, from 0
    signals: signals sent to it on purpose, the newest last
    over_limit, memory_limit: its memory when it was ended for exceeding its limit, and the limit
    asked: it had been signalled by its agent before it exited (None: unknown)
    clock_error_s: how exact ended_mono is, if its host has another clock
    peak_bytes: largest resident memory of one of its processes
    cpu_limit_s: limit on CPU time that it has reached
    full_disk: the full disk that it writes to
    course: the training steps it has done
    restarts: its own restarts and those of the run
    before_restart: the failed state, kept while the task waits for its restart
    """

    plan: PlannedTask
    phase: TaskPhase = TaskPhase.PENDING
    pid: int | None = None
    start_ticks: int | None = None
    started_mono: float | None = None
    since_mono: float | None = None
    method: ProcessOrigin = "spawn"
    has_listened: bool = False
    ended_mono: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    exit_order: int | None = None
    start_error: str | None = None
    peers_at_exit: dict[str, str] = field(default_factory=dict)
    symptom: Symptom | None = None
    peer_symptoms: dict[str, Symptom] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    course: Course = field(default_factory=Course)
    restarts: int = 0
    restart_due_mono: float | None = None
    signals: tuple[events.SignalRequested, ...] = ()
    over_limit: int | None = None
    memory_limit: int | None = None
    oom_kills: int | None = None
    peak_bytes: int | None = None
    cpu_limit_s: int | None = None
    full_disk: str | None = None
    before_restart: TaskState | None = None
    asked: bool | None = None
    clock_error_s: float = 0.0

    @property
    def name(self) -> str:
        return self.plan.task

    @property
    def is_live(self) -> bool:
        """True while it has a process."""
        return self.pid is not None and not self.phase.is_end

    @property
    def has_failed(self) -> bool:
        """True if it ended by itself and not with 0. A stop by orch does not count."""
        return self.phase is TaskPhase.FAILED


class HostPhase(StrEnum):
    """A host's state. `silent`: it was not heard for seconds, and may be lost or come back."""

    JOINED = "joined"
    SILENT = "silent"
    LOST = "lost"


@dataclass(frozen=True)
class HostState:
    """A host of the run. `heard_mono` is when a silent or lost host was last heard (monotonic seconds; None: unknown),
    `reason` why it is lost. `attempt` is the one in which it was lost, `was_needed` whether it had tasks that had not
    ended, or was to get some."""

    joined: events.HostJoined
    phase: HostPhase = HostPhase.JOINED
    heard_mono: float | None = None
    lost_mono: float | None = None
    reason: str = ""
    attempt: int = 0
    was_needed: bool = False

    @property
    def name(self) -> str:
        return self.joined.host

    @property
    def failed_mono(self) -> float:
        """Since when a lost host was not heard."""
        return self.heard_mono or self.lost_mono or 0.0


@dataclass(frozen=True)
class RunState:
    """A run as its events describe it. Times are monotonic seconds.

    tasks: in plan order
    preloading: modules that the preloader is importing
    history: the attempts before this one
    restart_due_mono: start of the next attempt; restart_asked: a user asked for it
    storage_error: why a file of the run cannot be written
    stacks: the last stacks that were taken
    tensorboard: its address
    bad_loss: the first loss of this attempt that was not finite
    left: processes that were not ended, because they run under another user
    hosts: the hosts by name; empty if all tasks run on this machine
    silent_hosts: those that were not heard for seconds, and may be lost or come back
    """

    phase: RunPhase = RunPhase.STARTING
    attempt: int = 0
    tasks: Tasks = field(default_factory=Tasks)
    stop: events.StopRequested | None = None
    teardown: TeardownReason | None = None
    teardown_mono: float | None = None
    agent_lost: str | None = None
    notices: tuple[str, ...] = ()
    preloading: tuple[str, ...] = ()
    exit_code: int | None = None
    ended_mono: float | None = None
    history: tuple[AttemptEnd, ...] = ()
    restart_due_mono: float | None = None
    restart_asked: bool = False
    storage_error: str | None = None
    stacks: events.StacksTaken | None = None
    tensorboard: str | None = None
    bad_loss: TaskBadLoss | None = None
    left: tuple[LeftProcess, ...] = ()
    hosts: dict[str, HostState] = field(default_factory=dict)
    silent_hosts: frozenset[str] = frozenset()

    @property
    def is_coordinated(self) -> bool:
        """True with parameter servers, which serve one coordinating task."""
        return f"{PS}:0" in self.tasks

    @property
    def lost_host(self) -> HostState | None:
        """The host whose loss ended this attempt: the first that was no longer heard."""
        lost = [
            host
            for host in self.hosts.values()
            if host.phase is HostPhase.LOST and host.attempt == self.attempt and host.was_needed
        ]
        return min(lost, key=lambda host: host.failed_mono, default=None)

    @property
    def is_ready(self) -> bool:
        """True if every task runs: those with a server listen, the others were started."""
        return 0 < len(self.tasks) == self.tasks.count((TaskPhase.RUNNING,))


def apply(state: RunState, event: Event) -> RunState:
    """Return the state after `event`. The given state is not changed."""
    match event:
        case events.AttemptPlanned():
            restarts = {task.name: task.restarts + 1 for task in state.tasks.values()}
            tasks = Tasks(TaskState(plan=task, restarts=restarts.get(task.task, 0)) for task in event.tasks)
            # A stop that came before the plan stays in effect.
            phase = RunPhase.STARTING if state.teardown is None else RunPhase.STOPPING
            return replace(
                state,
                phase=phase,
                attempt=event.attempt,
                tasks=tasks,
                restart_due_mono=None,
                restart_asked=False,
                bad_loss=None,
            )
        case events.TaskStarted():
            task = replace(
                state.tasks[event.task],
                # If a teardown began before the start was reported, the task is stopped right away.
                phase=TaskPhase.STARTING if state.teardown is None else TaskPhase.STOPPING,
                pid=event.pid,
                start_ticks=event.start_ticks,
                started_mono=event.mono,
                since_mono=event.mono,
                restart_due_mono=None,
                before_restart=None,
                method=event.method,
            )
            return _with_task(state, task)
        case events.TaskStartFailed():
            task = replace(
                state.tasks[event.task],
                phase=TaskPhase.FAILED,
                exit_code=event.exit_code,
                exit_order=_next_order(state) if event.order is None else event.order,
                start_error=event.reason,
                ended_mono=event.mono,
            )
            return _with_task(state, task)
        case events.TaskReady():
            task = state.tasks[event.task]
            if task.phase is not TaskPhase.STARTING:
                return state
            return _with_task(state, replace(task, phase=TaskPhase.RUNNING, has_listened=task.plan.serves))
        case events.TaskProgressed():
            task = state.tasks[event.task]
            since = task.since_mono if event.progress.phase == task.progress.phase else event.mono
            course = task.course.after(event.progress)
            return _with_task(state, replace(task, progress=event.progress, course=course, since_mono=since))
        case events.LossBecameBad():
            return replace(state, bad_loss=TaskBadLoss(task=event.task, **event.loss.model_dump()))
        case events.TaskExited():
            return _with_task(state, _exited(state, event))
        case events.TeardownBegan():
            return _teardown(state, event)
        case events.RestartRequested():
            return replace(state, restart_asked=True)
        case events.RestartPlanned():
            return replace(
                state,
                phase=RunPhase.STARTING,
                teardown=None,
                teardown_mono=None,
                restart_asked=False,
                restart_due_mono=event.mono + event.delay_s,
                history=(*state.history, event.ended),
            )
        case events.TaskRestartPlanned():
            return _with_task(state, _awaiting_restart(state.tasks[event.task], event.mono + event.delay_s))
        case events.TaskGivenUp():
            task = state.tasks[event.task]
            return _with_task(state, task.before_restart or task)
        case events.TasksDismissed():
            return _dismissed(state, event)
        case events.Resumed():
            return _resumed(state, event)
        case events.SignalRequested():
            task = state.tasks[event.task]
            return _with_task(state, replace(task, signals=(*task.signals, event)))
        case events.MemoryExceeded():
            task = state.tasks[event.task]
            over = replace(task, over_limit=event.memory_bytes, memory_limit=event.limit_bytes)
            return _with_task(state, over)
        case events.DiskFull():
            return _with_task(state, _with_full_disk(state.tasks[event.task], event.reason))
        case events.StacksTaken():
            return replace(state, stacks=event)
        case events.StorageFailed():
            return replace(state, storage_error=state.storage_error or event.reason)
        case events.StopRequested():
            return replace(state, stop=state.stop or event)
        case events.AgentLost():
            # The agent's tasks die with it.
            return replace(_lose_unfinished(state, event.mono), agent_lost=state.agent_lost or event.reason)
        case events.HostJoined() | events.HostSilent() | events.HostBack() | events.HostLost():
            return _with_host(state, event)
        case events.PreloadBegan():
            return replace(state, preloading=event.modules)
        case events.Preloaded() | events.NotPreloaded():
            return replace(state, preloading=())
        case events.Noticed():
            if event.verbose:
                return state
            return replace(state, notices=(*state.notices, event.text))
        case events.TensorBoardServes():
            return replace(state, tensorboard=event.url)
        case events.RunEndedEvent():
            ended = _lose_unfinished(state, event.mono)
            phase = RunPhase(event.outcome)
            return replace(ended, phase=phase, exit_code=event.exit_code, ended_mono=event.mono)
        case events.TeardownEnded():
            return replace(_lose_unfinished(state, event.mono), left=event.left) if event.left else state
        case events.DeadlineReached() | events.LogTruncated():
            return state
        case _:
            assert_never(event)


def _with_task(state: RunState, task: TaskState) -> RunState:
    changed = replace(state, tasks=state.tasks.with_task(task))
    if state.phase is RunPhase.STARTING and changed.is_ready:
        return replace(changed, phase=RunPhase.RUNNING)
    return changed


def _with_host(
    state: RunState, event: events.HostJoined | events.HostSilent | events.HostBack | events.HostLost
) -> RunState:
    """Return the state after an event about a host. A host that never joined can be lost, too."""
    silent = state.silent_hosts - {event.host}
    if isinstance(event, events.HostJoined):
        hosts = {**state.hosts, event.host: HostState(joined=event)}
        return replace(state, hosts=hosts, silent_hosts=silent)
    absent = events.HostJoined(at=event.at, mono=event.mono, host=event.host, address="", cores=0)
    host = state.hosts.get(event.host, HostState(joined=absent))
    if host.phase is HostPhase.LOST and not isinstance(event, events.HostLost):
        return state
    match event:
        case events.HostSilent():
            heard = event.mono - event.seconds if host.heard_mono is None else host.heard_mono
            host = replace(host, phase=HostPhase.SILENT, heard_mono=heard)
            silent |= {event.host}
        case events.HostBack():
            host = replace(host, phase=HostPhase.JOINED, heard_mono=None)
        case events.HostLost():
            host = replace(
                host,
                phase=HostPhase.LOST,
                lost_mono=event.mono,
                reason=event.reason,
                attempt=state.attempt,
                was_needed=_is_needed(state, event.host),
            )
            state = _lose_unfinished(state, event.mono, event.host)
    return replace(state, hosts={**state.hosts, event.host: host}, silent_hosts=silent)


def _is_needed(state: RunState, host: str) -> bool:
    """Whether a host has tasks that have not ended, or gets some."""
    is_planning = not state.tasks or state.restart_due_mono is not None
    return is_planning or any(t.plan.host == host and not t.phase.is_end for t in state.tasks.values())


def _next_order(state: RunState) -> int:
    """Return the next place in the order of exits, which continues over all attempts."""
    return 1 + max(
        (task.exit_order for task in state.tasks.values() if task.exit_order is not None), default=-1
    )


def _exited(state: RunState, event: events.TaskExited) -> TaskState:
    task = state.tasks[event.task]
    # A task can exit by itself while the order to stop it is on its way.
    was_stopped = task.phase is TaskPhase.STOPPING and event.asked is not False
    if was_stopped:
        phase = TaskPhase.STOPPED
    elif event.exit_code == 0:
        phase = TaskPhase.SUCCEEDED
    else:
        phase = TaskPhase.FAILED
    return replace(
        task,
        phase=phase,
        exit_code=event.exit_code,
        signal=event.signal,
        exit_order=event.order,
        ended_mono=event.mono if event.ended_mono is None else event.ended_mono,
        asked=event.asked,
        clock_error_s=event.clock_error_s,
        peers_at_exit=event.peers,
        symptom=event.symptom,
        peer_symptoms=event.peer_symptoms,
        oom_kills=event.oom_kills,
        peak_bytes=event.peak_bytes,
        cpu_limit_s=event.cpu_limit_s,
    )


def _awaiting_restart(task: TaskState, due_mono: float) -> TaskState:
    """Return the failed task as it waits for its restart."""
    return TaskState(
        plan=task.plan,
        restarts=task.restarts + 1,
        restart_due_mono=due_mono,
        before_restart=replace(task, before_restart=None),
    )


def _with_full_disk(task: TaskState, reason: str) -> TaskState:
    """Mark the failed task, or its state before the restart it waits for. A running task is not marked."""
    if task.before_restart is not None:
        return replace(task, before_restart=replace(task.before_restart, full_disk=reason))
    return replace(task, full_disk=reason) if task.phase.is_end else task


def _dismissed(state: RunState, event: events.TasksDismissed) -> RunState:
    dismissed = frozenset(event.tasks)

    def dismiss(task: TaskState) -> TaskState:
        is_dismissed = task.name in dismissed and task.is_live
        return replace(task, phase=TaskPhase.STOPPING) if is_dismissed else task

    return replace(state, tasks=state.tasks.mapped(dismiss))


def _resumed(state: RunState, event: events.Resumed) -> RunState:
    if not state.history:
        return state
    *earlier, last = state.history
    resumed = last.model_copy(
        update={
            "resumed_at": event.position,
            "steps_lost": event.steps_lost,
            "exact": event.exact,
            "recovery_s": event.recovery_s,
        }
    )
    return replace(state, history=(*earlier, resumed))


def _lose_unfinished(state: RunState, mono: float, host: str | None = None) -> RunState:
    """Mark tasks (of one host) whose exit was not seen as lost; a task that never started stays pending."""

    def lose(task: TaskState) -> TaskState:
        is_elsewhere = host is not None and task.plan.host != host
        if is_elsewhere or task.phase.is_end or task.phase is TaskPhase.PENDING:
            return task
        return replace(task, phase=TaskPhase.LOST, ended_mono=mono)

    tensorboard = None if host is None else state.tensorboard
    return replace(state, tasks=state.tasks.mapped(lose), tensorboard=tensorboard)


def _teardown(state: RunState, event: events.TeardownBegan) -> RunState:
    def stop(task: TaskState) -> TaskState:
        return task if task.phase.is_end or task.pid is None else replace(task, phase=TaskPhase.STOPPING)

    return replace(
        state,
        phase=RunPhase.STOPPING,
        tasks=state.tasks.mapped(stop),
        tensorboard=None,
        teardown=state.teardown or event.reason,
        teardown_mono=event.mono if state.teardown_mono is None else state.teardown_mono,
    )
