"""A made-up run that planned faults watch: events in a few words, the clock is the test's."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.chaos.watch import ChaosWatch
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, StopReason, Symptom, TeardownReason
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import AttemptEnd, Cause, CauseKind, FirstFailure, RunResult
from orchestrator.core.state.state import RunState

START = 1000.0


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

    def happens(self, event: Event) -> None:
        """Apply one event and take the due faults, as the lifecycle does."""
        self.state = apply(self.state, event)
        for fault in self.watch.take(self.state, event.mono):
            self.sent.append(Sent(round(event.mono - START, 6), fault.task, fault.signal))
            requested = events.SignalRequested(
                at=event.mono,
                mono=event.mono,
                task=fault.task,
                signal=fault.signal,
                by="chaos",
                fault=fault.fault,
            )
            self.happens(requested)

    def planned(self, attempt: int = 1) -> None:
        tasks = tuple(
            events.PlannedTask(
                task=f"worker:{index}",
                role="worker",
                index=index,
                address=None,
                argv=("true",),
                cwd="/",
                env={},
                log="/log",
                serves=True,
            )
            for index in range(self.workers)
        )
        self.happens(events.AttemptPlanned(at=self.mono, mono=self.mono, attempt=attempt, tasks=tasks))

    def started(self, *indices: int) -> None:
        for index in indices or range(self.workers):
            self.happens(
                events.TaskStarted(
                    at=self.mono, mono=self.mono, task=f"worker:{index}", pid=100 + index, start_ticks=7
                )
            )

    def ready(self, *indices: int) -> None:
        for index in indices or range(self.workers):
            self.happens(events.TaskReady(at=self.mono, mono=self.mono, task=f"worker:{index}"))

    def runs(self, attempt: int = 1) -> None:
        """All of it, up to where every task is ready."""
        self.planned(attempt)
        self.started()
        self.ready()

    def trains(self, index: int, step: int, epoch: int | None = None, steps: int | None = None) -> None:
        progress = events.Progress(phase="training", step=step, epoch=epoch, steps=steps)
        self.happens(
            events.TaskProgressed(at=self.mono, mono=self.mono, task=f"worker:{index}", progress=progress)
        )

    def exits(
        self, index: int, code: int | None = 0, signal: int | None = None, symptom: Symptom | None = None
    ) -> None:
        order = sum(1 for task in self.state.tasks.values() if task.exit_order is not None)
        self.happens(
            events.TaskExited(
                at=self.mono,
                mono=self.mono,
                task=f"worker:{index}",
                exit_code=None if signal else code,
                signal=signal,
                order=order,
                symptom=symptom,
            )
        )

    def torn_down(self, reason: TeardownReason = TeardownReason.FAILURE, after_s: float = 0.0) -> None:
        """Decide on a teardown now, which begins `after_s` seconds later."""
        self.watch.decide_teardown(self.state.attempt, self.mono)
        self.now += after_s
        self.happens(events.TeardownBegan(at=self.mono, mono=self.mono, reason=reason, grace_s=0.5))

    def starts_again(self, index: int) -> None:
        """By itself, as --on-failure restart-task does, and ready at once."""
        planned = events.TaskRestartPlanned(
            at=self.mono, mono=self.mono, task=f"worker:{index}", delay_s=0.0, text="SIGKILL"
        )
        self.happens(planned)
        self.started(index)
        self.ready(index)

    def stopped(self) -> None:
        self.happens(events.StopRequested(at=self.mono, mono=self.mono, reason=StopReason.DOWN))

    def restarts(self, ended: AttemptEnd, delay_s: float = 1.0) -> None:
        self.happens(events.TeardownEnded(at=self.mono, mono=self.mono))
        self.happens(events.RestartPlanned(at=self.mono, mono=self.mono, ended=ended, delay_s=delay_s))

    def at(self, now: float) -> WatchedRun:
        """Advance the clock; due faults are taken at their time, as by the lifecycle's deadlines."""
        while (due := self.watch.due(self.state)) is not None and due <= START + now:
            assert due >= self.mono - 1e-9, "a past time stays due"
            self.now = due - START
            before = len(self.sent)
            self.happens(events.DeadlineReached(at=due, mono=due, deadline="chaos"))
            assert len(self.sent) > before or self.watch.due(self.state) != due, (
                "nothing comes of what is due"
            )
        self.now = now
        return self


def ended(
    task: str, kind: CauseKind = CauseKind.EXITED, attempt: int = 1, teardown_s: float | None = 0.25
) -> AttemptEnd:
    """The end of an attempt that began with this task, and which had to be waited for so long."""
    failure = FirstFailure(task=task, exit_code=None, signal=9, exception=None, log="/log", advice=None)
    return AttemptEnd(
        attempt=attempt,
        cause=Cause(task=task, kind=kind, text="because"),
        first_failure=failure if kind is CauseKind.EXITED else None,
        exit_code=137,
        teardown_s=teardown_s,
    )


def result(last: AttemptEnd | None, *history: AttemptEnd) -> RunResult:
    """A run that ended with `last`, or well."""
    return RunResult(
        run_id="run-1",
        outcome="failed" if last else "succeeded",
        exit_code=last.exit_code if last else 0,
        attempts=len(history) + 1,
        cause=last.cause if last else None,
        first_failure=last.first_failure if last else None,
        detection_s=None,
        teardown_s=last.teardown_s if last else 0.1,
        tasks=(),
        history=history,
    )
