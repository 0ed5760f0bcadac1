"""A made-up run that planned faults watch: events in a few words, the clock is the test's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from making import (
    START,
    attempt_end,
    attempt_planned,
    cause,
    event,
    exited,
    first_failure,
    progressed,
    run_result,
    started,
)

from orchestrator.core.chaos.watch import ChaosWatch
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, StopReason, Symptom, TeardownReason
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import AttemptEnd, CauseKind, RunResult
from orchestrator.core.state.state import RunState


@dataclass(frozen=True)
class Sent:
    """A sent fault; `at` is in seconds since the start of the run."""

    at: float
    task: str
    signal: int


@dataclass
class WatchedRun:
    """A run of `workers` tasks under `chaos`; `now` is seconds since its start, `sent` what the watch wanted."""

    chaos: str
    workers: int = 2
    now: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    state: RunState = field(default_factory=RunState)

    def __post_init__(self) -> None:
        self.watch = ChaosWatch(parse_chaos(self.chaos), START)

    @property
    def mono(self) -> float:
        return START + self.now

    def happens(self, event_: Event) -> Self:
        """Apply one event and take the due faults, as the lifecycle does."""
        self.state = apply(self.state, event_)
        for due in self.watch.take(self.state, event_.mono):
            self.sent.append(Sent(round(event_.mono - START, 6), due.task, due.signal))
            self.happens(due.as_event(event_.mono, event_.mono))
        return self

    def planned(self, attempt: int = 1) -> Self:
        return self.happens(attempt_planned(self.workers, attempt, self.mono))

    def started(self, *indices: int) -> Self:
        for index in indices or range(self.workers):
            self.happens(started(index, self.mono))
        return self

    def ready(self, *indices: int) -> Self:
        for index in indices or range(self.workers):
            self.happens(event(events.TaskReady, self.mono, task=index))
        return self

    def runs(self, attempt: int = 1) -> Self:
        """All of it, up to where every task is ready."""
        return self.planned(attempt).started().ready()

    def trains(self, index: int, step: int, epoch: int | None = None, steps: int | None = None) -> Self:
        return self.happens(progressed(index, self.mono, step=step, epoch=epoch, steps=steps))

    def exits(
        self, index: int, code: int | None = 0, signal: int | None = None, symptom: Symptom | None = None
    ) -> Self:
        order = sum(1 for task in self.state.tasks.values() if task.exit_order is not None)
        return self.happens(exited(index, code, signal, self.mono, order=order, symptom=symptom))

    def torn_down(self, reason: TeardownReason = TeardownReason.FAILURE, after_s: float = 0.0) -> Self:
        """Decide on a teardown now, which begins `after_s` seconds later."""
        self.watch.decide_teardown(self.state.attempt, self.mono)
        self.now += after_s
        return self.happens(event(events.TeardownBegan, self.mono, reason=reason, grace_s=0.5))

    def waits_for_restart(self, index: int, delay_s: float = 0.0) -> Self:
        """Alone, as with --on-failure restart-task."""
        planned = event(events.TaskRestartPlanned, self.mono, task=index, delay_s=delay_s, text="SIGKILL")
        return self.happens(planned)

    def starts_again(self, index: int) -> Self:
        """By itself, as --on-failure restart-task does, and ready at once."""
        return self.waits_for_restart(index).started(index).ready(index)

    def stopped(self) -> Self:
        return self.happens(event(events.StopRequested, self.mono, reason=StopReason.DOWN))

    def restarts(self, ended: AttemptEnd, delay_s: float = 1.0) -> Self:
        self.happens(event(events.TeardownEnded, self.mono))
        return self.happens(event(events.RestartPlanned, self.mono, ended=ended, delay_s=delay_s))

    def at(self, now: float) -> Self:
        """Advance the clock; due faults are taken at their time, as by the lifecycle's deadlines."""
        while (due := self.watch.due(self.state)) is not None and due <= START + now:
            assert due >= self.mono - 1e-9, "a past time stays due"
            self.now = due - START
            before = len(self.sent)
            self.happens(event(events.DeadlineReached, due, deadline="chaos"))
            assert len(self.sent) > before or self.watch.due(self.state) != due, (
                "nothing comes of what is due"
            )
        self.now = now
        return self


def ended(
    task: str, kind: CauseKind = CauseKind.EXITED, attempt: int = 1, teardown_s: float | None = 0.25
) -> AttemptEnd:
    """The end of an attempt that began with this task, and which had to be waited for so long."""
    failure = first_failure(task, signal=9) if kind is CauseKind.EXITED else None
    because = cause(task, "because", kind)
    return attempt_end(attempt, 137, cause=because, first_failure=failure, teardown_s=teardown_s)


def result(last: AttemptEnd | None, *history: AttemptEnd) -> RunResult:
    """A run that ended with `last`, or well."""
    if last is None:
        return run_result(history=history, teardown_s=0.1)
    same = {name: getattr(last, name) for name in ("exit_code", "cause", "first_failure", "teardown_s")}
    return run_result("failed", history=history, **same)
