"""The rules for restarts: whether a run or a single task is restarted after a failure, and after what delay (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from orchestrator.core.diagnosis.cause import PREEMPTED
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Action, Happen
from orchestrator.core.lifecycle.completion import decides
from orchestrator.core.lifecycle.outcome import resumed
from orchestrator.core.state.changes import Matching
from orchestrator.core.state.events import TaskProgressed, TeardownReason
from orchestrator.core.state.result import Cause
from orchestrator.core.state.state import RunState, TaskState

LONGEST_DELAY_S = 30.0
# A failure after so many seconds of work is unrelated to the last one: the delay starts again at 1 s.
HEALTHY_S = 60.0
# A program that reports no steps counts as having worked after so many seconds.
RAN_AT_LEAST_S = 5.0
# Exit codes that ask for a restart: the program has saved its state, or was sent SIGTERM.
RESTART_EXIT_CODES = frozenset({PREEMPTED, 143})


@dataclass(frozen=True)
class Again:
    """Restart in `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True)
class Refused:
    """Do not restart, for this reason."""

    reason: str


class Restarts:
    """Counts the restarts of a run or of one task: at most `most`, with increasing delays.

    `is_updated`: whether the files of orch have been replaced, so that another start would mix two versions."""

    def __init__(self, most: int, is_updated: Callable[[], bool] = lambda: False) -> None:
        self._most = most
        self._is_updated = is_updated
        self._done = 0
        self._in_a_row = 0

    def after(self, healthy_s: float, *, worked: bool, asked_for: bool) -> Again | Refused:
        """Decide after a failure.

        `healthy_s`: seconds since it last began to work; `worked`: whether it ever did; `asked_for`: whether the exit
        code asks for a restart.
        """
        if self._is_updated():
            return Refused("orch was updated during this run; start it again")
        if not worked and not asked_for:
            return Refused("it failed before it reported a training step")
        if self._done >= self._most:
            times = "once" if self._done == 1 else f"{self._done} times"
            return Refused(f"restarted {times} already" if self._done else "--max-restarts is 0")
        if healthy_s >= HEALTHY_S:
            self._in_a_row = 0
        delay_s = min(LONGEST_DELAY_S, 2.0 ** min(self._in_a_row, 16))
        self._done += 1
        self._in_a_row += 1
        return Again(delay_s)


class RunRestarts:
    """Restarts of all tasks, as another attempt. Call update() after each event."""

    def __init__(self, spec: JobSpec, is_updated: Callable[[], bool] = lambda: False) -> None:
        self._spec = spec
        self._restarts = Restarts(spec.max_restarts, is_updated)
        self._has_worked = False
        self._resumed_attempt = 1
        # When the last attempt failed (monotonic seconds).
        self.failed_mono: float | None = None
        self._attempt = 0
        self._working_since: float | None = None
        self._stepped = Matching(lambda task, state: task.course.stepped)
        self._idle = Matching(lambda task, state: decides(state, task) and not _is_working(task))
        self._ran = Matching(lambda task, state: decides(state, task) and _worked_s(task) >= RAN_AT_LEAST_S)

    def update(self, state: RunState, changed: Collection[TaskState], now: float) -> None:
        if state.attempt != self._attempt:
            self._attempt, self._working_since = state.attempt, None
        for tasks in (self._stepped, self._idle, self._ran):
            tasks.update(state, changed)
        self._has_worked = self._has_worked or bool(self._stepped)
        if self._working_since is None and (self._stepped or (state.is_ready and not self._idle)):
            self._working_since = now

    @property
    def worked(self) -> bool:
        """Whether the run ever reached a training step or, if it reports none, ran for a while."""
        self._has_worked = self._has_worked or bool(self._ran)
        return self._has_worked

    def after_teardown(
        self, state: RunState, mono: float, blame: Cause | None, first: TaskState | None
    ) -> Again | Refused | None:
        """Decide after a teardown; None if the policy does not ask for a restart.

        `blame` is the cause of a limit or an early exit, `first` the task that failed first.
        """
        if state.stop is not None or state.agent_lost is not None or state.storage_error is not None:
            return None
        if state.teardown is TeardownReason.FINISHED:
            return None
        if state.teardown is TeardownReason.RESTART or state.restart_asked:
            return Again(0.0)
        if state.teardown not in (TeardownReason.FAILURE, TeardownReason.LIMIT):
            return None
        if self._policy(state, blame, first) is not FailurePolicy.RESTART:
            return None
        healthy_s = 0.0 if self._working_since is None else mono - self._working_since
        # The loss of a host says nothing about the program.
        asked_for = _asks_for_restart(first) or (self._spec.is_elastic and state.lost_host is not None)
        return self._restarts.after(healthy_s, worked=self.worked, asked_for=asked_for)

    def report_resumed(self, state: RunState, event: TaskProgressed) -> list[Action]:
        """Report from which step a later attempt continues, at its first step."""
        if state.attempt == self._resumed_attempt or not state.history:
            return []
        if not state.tasks[event.task].course.stepped:
            return []
        self._resumed_attempt = state.attempt
        since = event.mono if self.failed_mono is None else self.failed_mono
        return [Happen(resumed(state, event, since))]

    def _policy(self, state: RunState, blame: Cause | None, first: TaskState | None) -> FailurePolicy:
        """The policy for the role of the task to blame, or else of the task that failed first."""
        name = blame.task if blame is not None else first.name if first is not None else None
        if name is None or name not in state.tasks:
            return self._spec.on_failure
        return self._spec.policy_of(state.tasks[name].plan.role)


class TaskRestarts:
    """Restarts of single tasks, each with its own port, while the other tasks continue."""

    def __init__(self, most: int, is_updated: Callable[[], bool]) -> None:
        self._most = most
        self._is_updated = is_updated
        self._of: dict[str, Restarts] = {}
        self._waiting: dict[str, float] = {}

    @property
    def due(self) -> float | None:
        """Monotonic seconds of the next restart."""
        return min(self._waiting.values(), default=None)

    def after(self, task: TaskState, mono: float, *, worked: bool) -> Again | Refused:
        """Decide after a task's failure, and remember the restart."""
        restarts = self._of.setdefault(task.name, Restarts(self._most, self._is_updated))
        decided = restarts.after(_ran_s(task), worked=worked, asked_for=_asks_for_restart(task))
        if isinstance(decided, Again):
            self._waiting[task.name] = mono + decided.delay_s
        return decided

    def awaits(self, name: str) -> bool:
        """Whether this task waits for its restart."""
        return name in self._waiting

    def take_due(self, mono: float) -> list[str]:
        due = [name for name, at in self._waiting.items() if at <= mono]
        for name in due:
            del self._waiting[name]
        return due

    def cancel(self) -> None:
        """Drop the restarts that tasks wait for."""
        self._waiting.clear()


def _worked_s(task: TaskState) -> float:
    """Seconds for which an ended task worked, as far as its progress tells."""
    if not task.plan.serves:
        return _ran_s(task)
    if not _is_working(task) or task.since_mono is None or task.ended_mono is None:
        return 0.0
    return task.ended_mono - task.since_mono


def _ran_s(task: TaskState) -> float:
    """Seconds from a task's start to its end; 0 if one of them is unknown."""
    if task.started_mono is None or task.ended_mono is None:
        return 0.0
    return task.ended_mono - task.started_mono


def _asks_for_restart(task: TaskState | None) -> bool:
    return task is not None and task.exit_code in RESTART_EXIT_CODES


def _is_working(task: TaskState) -> bool:
    """A TensorFlow program first imports and waits for its peers; other programs report nothing about that."""
    return not task.plan.serves or task.progress.phase == "training"
