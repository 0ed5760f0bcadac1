"""Decides what a run does next: events in, actions out. No clock, no process, no file.

    attempt planned -> StartTasks -> tasks start, get ready, progress
        all exit 0                 -> TearDown(finished)       -> Finish: succeeded
        one ends badly             -> TearDown(failure)        -> Finish: failed
        a stop or a time-out       -> TearDown(request)        -> Finish: stopped or timed_out
          and once more, forced    -> TearDown again, grace 0
        the agent is lost          -> SweepHost                -> Finish: failed (125), cause orch

Every path ends in exactly one Finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from orchestrator import diagnosis
from orchestrator.errors import ExitCode
from orchestrator.events import (
    AgentLost,
    AttemptPlanned,
    DeadlineReached,
    Event,
    LogTruncated,
    Noticed,
    NotPreloaded,
    PreloadBegan,
    Preloaded,
    RunEndedEvent,
    StopReason,
    StopRequested,
    TaskExited,
    TaskProgressed,
    TaskReady,
    TaskStarted,
    TaskStartFailed,
    TeardownBegan,
    TeardownEnded,
    TeardownReason,
)
from orchestrator.progress.doing import late_start
from orchestrator.progress.start_watch import StartWatch
from orchestrator.result import Cause, CauseKind, FirstFailure, Outcome, RunResult, TaskEnd, shell_code
from orchestrator.state import RunState, TaskPhase, TaskState, apply

RUN_TIMEOUT = "timeout"
START_LATE = "start_late"
TEARDOWN_OVERDUE = "teardown"
# The agent answers within its grace or is not well; past this much more it counts as lost.
TEARDOWN_MARGIN_S = 5.0

_STOP_EXIT_CODES = {
    StopReason.INTERRUPT: ExitCode.INTERRUPTED,
    StopReason.TERMINATE: ExitCode.TERMINATED,
    StopReason.HANGUP: ExitCode.TERMINATED,
    StopReason.DOWN: ExitCode.TERMINATED,
    StopReason.CLIENT_GONE: ExitCode.TERMINATED,
    StopReason.OUTPUT_CLOSED: ExitCode.OUTPUT_CLOSED,
    StopReason.TIMEOUT: ExitCode.TIMED_OUT,
}
# Nobody waits for these tasks any more: what the user would want is that they are gone soon.
_IMPATIENT = frozenset({StopReason.CLIENT_GONE, StopReason.OUTPUT_CLOSED})


@dataclass(frozen=True)
class Terms:
    """What the lifecycle needs to know of the spec. Times in seconds."""

    run_id: str
    grace_s: float = 10.0
    failure_grace_s: float = 0.5
    timeout_s: float | None = None
    checkpoint_dir: str | None = None


@dataclass(frozen=True)
class StartTasks:
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class TearDown:
    """End every process of the attempt: SIGTERM now, SIGKILL after `grace_s`; answer with TeardownEnded."""

    reason: TeardownReason
    grace_s: float


@dataclass(frozen=True)
class SweepHost:
    """The agent is gone: end what is left of the run without it; answer with TeardownEnded."""


@dataclass(frozen=True)
class Happen:
    """This follows from what happened, and is an event of its own: put it into the queue."""

    event: Event


@dataclass(frozen=True)
class Finish:
    result: RunResult


Action = StartTasks | TearDown | SweepHost | Happen | Finish


class Lifecycle:
    """The state machine of one run. Feed it every event in order; do what it answers."""

    def __init__(self, terms: Terms, started_mono: float) -> None:
        self.state = RunState()
        self.result: RunResult | None = None
        self._terms = terms
        self._started_mono = started_mono
        self._timeout_at = None if terms.timeout_s is None else started_mono + terms.timeout_s
        self._overdue_at: float | None = None
        self._noticed_s: float | None = None
        self._start = StartWatch()
        self._late: str | None = None
        self._asked = False
        self._forced = False

    def next_deadline(self) -> tuple[float, str] | None:
        """(monotonic seconds, name) of the next moment at which it wants a DeadlineReached."""
        if self.result is not None:
            return None
        wanted: list[tuple[float, str]] = []
        if self._timeout_at is not None and self.state.teardown is None:
            wanted.append((self._timeout_at, RUN_TIMEOUT))
        if self._start.due is not None:
            wanted.append((self._start.due, START_LATE))
        if self._overdue_at is not None:
            wanted.append((self._overdue_at, TEARDOWN_OVERDUE))
        return min(wanted, default=None)

    def handle(self, event: Event) -> list[Action]:
        """Take one event in; what has to be done now, in order."""
        if self.result is not None:
            return []
        before, self.state = self.state, apply(self.state, event)
        self._start.see(self.state, event.mono)
        match event:
            case AttemptPlanned():
                if before.teardown is not None or before.stop is not None:
                    return []  # the stop came before the start
                return [StartTasks(tuple(self.state.tasks))]
            case TaskStartFailed():
                return self._tear_down(TeardownReason.FAILURE, self._terms.failure_grace_s)
            case TaskExited():
                return self._task_exited(event)
            case StopRequested():
                return self._stop_requested(event)
            case DeadlineReached():
                return self._deadline_reached(event)
            case TeardownBegan():
                self._overdue_at = event.mono + event.grace_s + TEARDOWN_MARGIN_S
                return []
            case AgentLost():
                self._overdue_at = None
                return [SweepHost()]
            case TeardownEnded():
                return self._finish(event.mono)
            case (
                TaskStarted() | TaskReady() | TaskProgressed() | PreloadBegan() | Preloaded() | NotPreloaded()
            ):
                return []
            case LogTruncated() | Noticed() | RunEndedEvent():
                return []
            case _:
                assert_never(event)

    def _task_exited(self, event: TaskExited) -> list[Action]:
        if self.state.tasks[event.task].phase is TaskPhase.FAILED:
            self._noticed_s = event.noticed_s if self._noticed_s is None else self._noticed_s
            return self._tear_down(TeardownReason.FAILURE, self._terms.failure_grace_s)
        if all(task.phase is TaskPhase.SUCCEEDED for task in self.state.tasks.values()):
            return self._tear_down(TeardownReason.FINISHED, self._terms.failure_grace_s)
        return []

    def _stop_requested(self, event: StopRequested) -> list[Action]:
        if event.force and not self._forced:
            self._forced = self._asked = True
            return [TearDown(self.state.teardown or TeardownReason.REQUEST, 0.0)]
        impatient = event.reason in _IMPATIENT
        grace = self._terms.failure_grace_s if impatient else self._terms.grace_s
        return self._tear_down(TeardownReason.REQUEST, grace)

    def _deadline_reached(self, event: DeadlineReached) -> list[Action]:
        if event.deadline == RUN_TIMEOUT and self.state.teardown is None:
            self._timeout_at = None
            self._late = late_start(self.state, event.mono)
            return [Happen(StopRequested(at=event.at, mono=event.mono, reason=StopReason.TIMEOUT))]
        if event.deadline == START_LATE:
            late = self._start.late(self.state, event.mono)
            return [] if late is None else [Happen(Noticed(at=event.at, mono=event.mono, text=late))]
        if event.deadline == TEARDOWN_OVERDUE and self._overdue_at is not None:
            self._overdue_at = None
            reason = "the agent did not end the tasks in time"
            return [Happen(AgentLost(at=event.at, mono=event.mono, reason=reason))]
        return []

    def _tear_down(self, reason: TeardownReason, grace_s: float) -> list[Action]:
        """The first reason counts, whatever else comes in before the teardown is under way."""
        if self._asked or self.state.agent_lost is not None:
            return []
        self._asked = True
        return [TearDown(reason, grace_s)]

    def _finish(self, mono: float) -> list[Action]:
        began = self.state.teardown_mono
        teardown_s = None if began is None else mono - began
        result = _result(self._terms, self.state, self._noticed_s, teardown_s, self._late)
        self.result = result.model_copy(update={"took_s": mono - self._started_mono})
        self._overdue_at = None
        return [Finish(self.result)]


def _result(
    terms: Terms, state: RunState, noticed_s: float | None, teardown_s: float | None, late: str | None
) -> RunResult:
    first = first_failure(state)
    outcome, exit_code, cause = _judge(terms, state, first, late)
    return RunResult(
        run_id=terms.run_id,
        outcome=outcome,
        exit_code=exit_code,
        attempts=state.attempt,
        cause=cause,
        first_failure=None if first is None else _failure_record(first),
        detection_s=noticed_s,
        teardown_s=teardown_s,
        tasks=tuple(_task_end(task, cause) for task in state.tasks.values()),
        checkpoint_dir=terms.checkpoint_dir,
    )


def first_failure(state: RunState) -> TaskState | None:
    """The task that ended badly first, by the order of exits."""
    failed = (task for task in state.tasks.values() if task.ended_badly)
    return min(failed, key=lambda task: task.exit_order or 0, default=None)


def _judge(
    terms: Terms, state: RunState, first: TaskState | None, late: str | None
) -> tuple[Outcome, int, Cause | None]:
    if state.teardown is TeardownReason.FAILURE and first is not None:
        code = shell_code(first.exit_code, first.signal)
        return "failed", code, diagnosis.find_cause(state, first)
    if state.agent_lost is not None:
        cause = Cause(task=None, kind=CauseKind.ORCH, text=state.agent_lost)
        return "failed", ExitCode.ORCH, cause
    if state.stop is not None and state.teardown is not TeardownReason.FINISHED:
        if state.stop.reason is StopReason.TIMEOUT:
            limit = "in time" if terms.timeout_s is None else f"after {terms.timeout_s:g} s"
            cause = Cause(
                task=None,
                kind=CauseKind.LIMIT,
                text=f"--timeout: not done {limit}" + (f"; {late}" if late else ""),
            )
            return "timed_out", ExitCode.TIMED_OUT, cause
        return "stopped", _STOP_EXIT_CODES[state.stop.reason], None
    if state.tasks and all(task.phase is TaskPhase.SUCCEEDED for task in state.tasks.values()):
        return "succeeded", ExitCode.OK, None
    cause = Cause(task=None, kind=CauseKind.ORCH, text="the run ended before its tasks did")
    return "failed", ExitCode.ORCH, cause


def _failure_record(first: TaskState) -> FirstFailure:
    symptom = first.symptom
    return FirstFailure(
        task=first.name,
        exit_code=first.exit_code,
        signal=first.signal,
        exception=symptom.exception if symptom else None,
        log=first.plan.log,
        advice=symptom.advice if symptom else None,
        lines=symptom.lines if symptom else (),
        exception_file=symptom.exception_file if symptom else None,
    )


def _task_end(task: TaskState, cause: Cause | None) -> TaskEnd:
    return TaskEnd(
        task=task.name,
        state=task.phase,
        exit_code=task.exit_code,
        signal=task.signal,
        end=_end_in_words(task, cause),
    )


def _end_in_words(task: TaskState, cause: Cause | None) -> str:
    culprit = cause is not None and cause.task == task.name
    match task.phase:
        case TaskPhase.SUCCEEDED:
            return "left early" if culprit else "done"
        case TaskPhase.FAILED:
            return "failed" if culprit or cause is None else "failed because of it"
        case TaskPhase.STOPPED:
            if task.exit_code == diagnosis.PREEMPTED and task.plan.serves:
                return "stopped by orch, its state saved (exit 42)"
            # Any code but orch's own signals means that it fell by itself before those reached it.
            by_itself = task.exit_code not in (None, 0, ExitCode.TERMINATED)
            return (
                "failed because of it"
                if by_itself and cause is not None and not culprit
                else "stopped by orch"
            )
        case TaskPhase.PENDING:
            return "never started"
        case TaskPhase.LOST | TaskPhase.STARTING | TaskPhase.RUNNING | TaskPhase.STOPPING:
            return "lost with the agent"
        case _:
            assert_never(task.phase)
