"""The state of a run, its tasks and its hosts, as core/state/fold.py makes it of the events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property

from orchestrator.core.job.tf_config import EVALUATOR, PS
from orchestrator.core.state import events
from orchestrator.core.state.events import PlannedTask, Progress, Symptom, TeardownReason
from orchestrator.core.state.position import Course
from orchestrator.core.state.result import AttemptEnd, HostEnd, TaskBadLoss
from orchestrator.core.state.tasks import Tasks
from worker.wire.facts import ExitFacts, LeftProcess


class RunPhase(StrEnum):
    """The run's state; the last five are final. `queued`: it waits for the nodes of a Slurm job."""

    QUEUED = "queued"
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
        return self not in (RunPhase.QUEUED, RunPhase.STARTING, RunPhase.RUNNING, RunPhase.STOPPING)


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


# Phases that a task of the cluster reports once it has joined. A reported step means the same.
_ARRIVED = frozenset({"waiting", "training", "serving", "evaluating", "predicting", "saving", "done"})
LIVE_PHASES = frozenset(phase for phase in TaskPhase if not phase.is_end)


_NO_COURSE = Course()
_NO_EXIT = ExitFacts(exit_code=None, signal=None, mono=0.0)


@cache
def _no_progress() -> Progress:
    """The progress of all tasks that have reported none."""
    return Progress()


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task of the current attempt. Times are monotonic seconds, sizes are bytes.

    since_mono: start of the phase that the task reports
    started: its last start, unless it waits for another one
    ended: its exit, if that was seen
    lost_mono: when it was lost with its agent, without an exit
    has_listened: a process of it has listened on its port
    signals: signals sent to it on purpose, the newest last
    full_disk: the full disk that it writes to
    course: the training steps it has done
    restarts: its own restarts and those of the run
    versions: those that its process has reported, of python, tensorflow, keras and tf_keras
    before_restart: the failed state, kept while the task waits for its restart
    """

    plan: PlannedTask
    phase: TaskPhase = TaskPhase.PENDING
    started: events.TaskStarted | None = None
    ended: events.TaskExited | None = None
    lost_mono: float | None = None
    since_mono: float | None = None
    has_listened: bool = False
    progress: Progress = field(default_factory=_no_progress)
    course: Course = _NO_COURSE
    restarts: int = 0
    restart_due_mono: float | None = None
    signals: tuple[events.SignalRequested, ...] = ()
    full_disk: str | None = None
    before_restart: TaskState | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.plan.task

    @property
    def pid(self) -> int | None:
        return None if self.started is None else self.started.pid

    @property
    def started_mono(self) -> float | None:
        return None if self.started is None else self.started.mono

    @property
    def exit(self) -> ExitFacts:
        """The facts of its exit; without one, no code, no signal and no start error."""
        return _NO_EXIT if self.ended is None else self.ended.exit

    @property
    def exit_code(self) -> int | None:
        return self.exit.exit_code

    @property
    def signal(self) -> int | None:
        return self.exit.signal

    @property
    def exit_order(self) -> int:
        """Its place among all exits; 0 without one."""
        return 0 if self.ended is None else self.ended.order

    @property
    def ended_mono(self) -> float | None:
        return self.lost_mono if self.ended is None else self.ended.exit.mono

    @property
    def symptom(self) -> Symptom | None:
        return None if self.ended is None else self.ended.symptom

    @property
    def is_live(self) -> bool:
        """True while it has a process."""
        return self.started is not None and not self.phase.is_end

    @property
    def is_in_cluster(self) -> bool:
        """True if its server is one of the cluster's: not for the evaluator."""
        return self.plan.serves and self.plan.role != EVALUATOR

    @property
    def has_arrived(self) -> bool:
        """True once it has joined the cluster."""
        if (
            self.phase is TaskPhase.RUNNING
            or self.progress.phase in _ARRIVED
            or self.progress.step is not None
        ):
            return True
        # A task that reports nothing may have joined before it exited.
        return self.phase is TaskPhase.SUCCEEDED and self.progress.phase is None

    @property
    def is_awaited(self) -> bool:
        return self.is_in_cluster and not self.has_arrived

    @property
    def is_debugged(self) -> bool:
        """True while it is debugged, or waits for that."""
        debugger = self.progress.debugger
        is_used = self.plan.interactive or (debugger is not None and debugger.is_used)
        return self.is_live and is_used

    @property
    def has_failed(self) -> bool:
        """True if it ended by itself and not with 0. A stop by orch does not count."""
        return self.phase is TaskPhase.FAILED


class HostPhase(StrEnum):
    """A host's state. `silent`: it has not answered for seconds, and may be lost or come back."""

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
    def end(self) -> HostEnd:
        """The host as the result of the run names it."""
        joined = self.joined
        return HostEnd(
            host=joined.host,
            address=joined.address,
            state=self.phase,
            cores=joined.cores,
            memory_bytes=joined.memory_bytes,
            gpus=joined.gpus,
            reason=self.reason or None,
        )

    @property
    def failed_mono(self) -> float:
        """Since when a lost host did not answer."""
        return self.heard_mono or self.lost_mono or 0.0


@dataclass(frozen=True)
class Queued:
    """Why a run waits for the nodes of its Slurm job, and when it is expected to start, in Slurm's words."""

    job: str
    reason: str = ""
    start: str = ""

    def __str__(self) -> str:
        expected = f"; expected start: {self.start}" if self.start else ""
        return f"Slurm's job {self.job} is queued: {self.reason or 'no reason given'}{expected}"


@dataclass(frozen=True)
class RunState:
    """A run as its events describe it. Times are monotonic seconds.

    tasks: in plan order
    queued: why a queued run waits
    preloading: modules that the preloader is importing
    history: the attempts before this one
    notice: the first notice that the machines will go
    restart_due_mono: start of the next attempt; restart_asked: a user asked for it
    storage_error: why a file of the run cannot be written
    stacks: the last stacks that were taken
    tensorboard: its address
    bad_loss: the first loss of this attempt that was not finite
    left: processes that were not ended, because they run under another user
    hosts: the hosts by name; empty if all tasks run on this machine
    silent_hosts: those that have not answered for seconds, and may be lost or come back
    """

    phase: RunPhase = RunPhase.STARTING
    attempt: int = 0
    tasks: Tasks = field(default_factory=Tasks)
    queued: Queued | None = None
    stop: events.StopRequested | None = None
    notice: events.NoticeGiven | None = None
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

    def with_tasks(self, tasks: Iterable[TaskState]) -> RunState:
        """Return the state with these tasks instead of its own."""
        return replace(self, tasks=Tasks(tasks))

    def with_task(self, task: TaskState) -> RunState:
        """Return the state with this task in place of the one with its name. The run is ready once all tasks are."""
        tasks, phase = self.tasks.with_task(task), self.phase
        if phase is RunPhase.STARTING and _are_ready(tasks):
            phase = RunPhase.RUNNING
        return replace(self, phase=phase, tasks=tasks)

    @cached_property
    def awaited(self) -> tuple[str, ...]:
        """The tasks that others wait for. Cached, because the view needs them for each task that waits."""
        return tuple(task.name for task in self.tasks.values() if task.is_awaited)

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
        return _are_ready(self.tasks)


def _are_ready(tasks: Tasks) -> bool:
    return 0 < len(tasks) == tasks.count((TaskPhase.RUNNING,))
