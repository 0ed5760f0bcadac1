"""Records the effect of planned faults: when orch noticed each, when all was gone, and when training continued."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from orchestrator.core.job.fault import Fault
from orchestrator.core.state.result import AttemptEnd, Cause, CauseKind, FaultReport, RunResult
from orchestrator.core.state.state import RunState, TaskPhase, TaskState

# A stopped process does not exit: it is noticed when it is named as the cause.
_NAMED_AS = frozenset({CauseKind.STOPPED, CauseKind.STALLED})


@dataclass
class _SentFault:
    """A fault that was sent to a process, and when it was noticed. Monotonic seconds."""

    fault: int
    signal: int
    task: str
    attempt: int
    at: float
    started_mono: float | None
    had_stepped: bool
    noticed: float | None = None
    recovered: float | None = None


class ChaosRecord:
    """Gets each sent fault and each state, and reports at the end. `started_mono` is the start of the run."""

    def __init__(self, faults: tuple[Fault, ...], started_mono: float) -> None:
        self._faults = faults
        self._started_mono = started_mono
        self._sent: dict[int, _SentFault] = {}
        self._targets: dict[int, str] = {}
        self._teardowns: dict[int, float] = {}
        self._decided: dict[int, float] = {}

    def add(self, index: int, target: TaskState, state: RunState, now: float) -> None:
        """Record that fault `index` is sent to this process now."""
        self._sent[index] = _SentFault(
            fault=index,
            signal=self._faults[index].signal,
            task=target.name,
            attempt=state.attempt,
            at=now,
            started_mono=target.started_mono,
            had_stepped=target.course.stepped,
        )

    def update(self, state: RunState, now: float) -> None:
        """Take in the state after an event of that time."""
        for index, fault in enumerate(self._faults):
            if index not in self._targets and (target := fault.target(tuple(state.tasks))):
                self._targets[index] = target
        if state.teardown_mono is not None:
            self._teardowns.setdefault(state.attempt, state.teardown_mono)
        for sent in self._sent.values():
            task = state.tasks.get(sent.task)
            if task is None or sent.attempt != state.attempt:
                continue
            if task.started_mono == sent.started_mono:
                if sent.noticed is None and self._ended_by(task, state.attempt) is sent:
                    sent.noticed = now
            elif sent.noticed is not None and sent.recovered is None and _works_again(task, sent):
                sent.recovered = now

    def decide_teardown(self, attempt: int, now: float) -> None:
        """Record that the event of that time ends this attempt."""
        self._decided.setdefault(attempt, now)

    def reports(self, result: RunResult) -> tuple[FaultReport, ...]:
        """Return the report of each fault, in their order, after a run that ended with `result`."""
        ends = {end.attempt: end for end in result.earlier_attempts}
        ends[result.attempts] = AttemptEnd(
            attempt=result.attempts,
            cause=result.cause,
            first_failure=result.first_failure,
            exit_code=result.exit_code,
            teardown_s=result.teardown_s,
        )
        return tuple(self._report(index, ends) for index in range(len(self._faults)))

    def _report(self, index: int, ends: dict[int, AttemptEnd]) -> FaultReport:
        text, sent = str(self._faults[index]), self._sent.get(index)
        if sent is None:
            return FaultReport(fault=text, task=self._targets.get(index))
        end = ends.get(sent.attempt)
        noticed = sent.noticed
        if noticed is None and self._is_named(sent, end):
            noticed = self._teardowns.get(sent.attempt)
        report = FaultReport(
            fault=text,
            task=sent.task,
            at_s=sent.at - self._started_mono,
            detection_s=None if noticed is None else noticed - sent.at,
        )
        if sent.recovered is not None and noticed is not None:
            return report.model_copy(update={"recovery_s": sent.recovered - noticed})
        if end is None or noticed is None or not self._ended_with(end, sent.task, noticed):
            return report
        return report.model_copy(update={"teardown_s": end.teardown_s, "recovery_s": end.recovery_s})

    def _is_named(self, sent: _SentFault, end: AttemptEnd | None) -> bool:
        """Whether the attempt ended because this stop was noticed."""
        if sent.signal != signal.SIGSTOP or end is None or not _names(end.cause, sent.task):
            return False
        stops = [other for other in self._sent.values() if _same_target(other, sent)]
        return max(stops, key=lambda other: other.at) is sent

    def _ended_with(self, end: AttemptEnd, task: str, noticed: float) -> bool:
        """Whether the attempt ended because of what was noticed of this task then."""
        decided = self._decided.get(end.attempt)
        # Each event has its own time: a fault noticed earlier did not end the attempt (--on-failure continue).
        if decided is None or noticed < decided:
            return False
        failed_first = end.first_failure is not None and end.first_failure.task == task
        return failed_first or (end.cause is not None and end.cause.task == task)

    def _ended_by(self, task: TaskState, attempt: int) -> _SentFault | None:
        """Return the fault that ended this process: the last one with the signal it died of, or, if it exited by
        itself, the last one that it could handle."""
        if task.phase is not TaskPhase.FAILED:
            return None
        candidates = [
            sent
            for sent in self._sent.values()
            if (sent.task, sent.attempt, sent.started_mono) == (task.name, attempt, task.started_mono)
        ]
        if task.signal is None:
            candidates = [sent for sent in candidates if sent.signal not in (signal.SIGSTOP, signal.SIGCONT)]
        else:
            candidates = [sent for sent in candidates if sent.signal == task.signal]
        return max(candidates, key=lambda sent: sent.at, default=None)


def _same_target(one: _SentFault, other: _SentFault) -> bool:
    """Whether both are stops of the same process."""
    return (one.signal, one.task, one.attempt) == (other.signal, other.task, other.attempt)


def _names(cause: Cause | None, task: str) -> bool:
    return cause is not None and cause.task == task and cause.kind in _NAMED_AS


def _works_again(task: TaskState, sent: _SentFault) -> bool:
    """Whether the restarted process has got as far as the one that the fault ended."""
    return task.course.stepped or (task.phase is TaskPhase.RUNNING and not sent.had_stepped)
