"""Short builders for the events of a run; the test sets the clock."""

from __future__ import annotations

from collections.abc import Iterable

from job_making import JOB

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Action, Finish, Happen, StartTasks, SweepHost, TearDown
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, StopReason, Symptom, SymptomKind, TeardownReason
from orchestrator.core.state.result import RunResult

RUN_ID = "run-1"
OWN = Symptom(kind=SymptomKind.OWN, exception="ValueError: boom", lines=("ValueError: boom",))
COLLATERAL = Symptom(kind=SymptomKind.COLLATERAL, exception="UnavailableError: Socket closed")
UNKNOWN = Symptom(kind=SymptomKind.UNKNOWN)
START = 1000.0


def lifecycle_of(spec: JobSpec = JOB, started_mono: float = START) -> Lifecycle:
    return Lifecycle(spec, RUN_ID, started_mono)


def name(index: int) -> str:
    return f"worker:{index}"


def planned(tasks: int = 2, mono: float = START) -> events.AttemptPlanned:
    plans = tuple(
        events.PlannedTask(
            task=name(index),
            role="worker",
            index=index,
            address=f"127.0.0.1:{20000 + index}",
            argv=("true",),
            cwd="/",
            env={},
            log=f"/logs/worker-{index}.log",
            serves=True,
        )
        for index in range(tasks)
    )
    return events.AttemptPlanned(at=mono, mono=mono, attempt=1, tasks=plans)


def started(index: int, mono: float = START) -> events.TaskStarted:
    return events.TaskStarted(at=mono, mono=mono, task=name(index), pid=100 + index, start_ticks=7)


def not_started(index: int, mono: float = START) -> events.TaskStartFailed:
    return events.TaskStartFailed(
        at=mono, mono=mono, task=name(index), exit_code=127, reason="nope: no such file"
    )


def ready(index: int, mono: float = START) -> events.TaskReady:
    return events.TaskReady(at=mono, mono=mono, task=name(index))


def exited(
    index: int,
    code: int | None = 0,
    signal: int | None = None,
    order: int = 0,
    symptom: Symptom | None = None,
    peers: dict[str, str] | None = None,
    mono: float = START,
    noticed_s: float = 0.0,
    peer_symptoms: dict[str, Symptom] | None = None,
) -> events.TaskExited:
    return events.TaskExited(
        at=mono,
        mono=mono,
        task=name(index),
        exit_code=None if signal else code,
        signal=signal,
        order=order,
        symptom=symptom,
        peers=peers or {},
        noticed_s=noticed_s,
        peer_symptoms=peer_symptoms or {},
    )


def stop(
    reason: StopReason = StopReason.INTERRUPT, force: bool = False, mono: float = START
) -> events.StopRequested:
    return events.StopRequested(at=mono, mono=mono, reason=reason, force=force)


def deadline(which: str, mono: float = START) -> events.DeadlineReached:
    return events.DeadlineReached(at=mono, mono=mono, deadline=which)


def agent_lost(mono: float = START) -> events.AgentLost:
    return events.AgentLost(at=mono, mono=mono, reason="the agent was lost")


def began(reason: TeardownReason, grace_s: float = 0.5, mono: float = START) -> events.TeardownBegan:
    return events.TeardownBegan(at=mono, mono=mono, reason=reason, grace_s=grace_s)


def emptied(mono: float = START) -> events.TeardownEnded:
    return events.TeardownEnded(at=mono, mono=mono)


def running(tasks: int = 2, spec: JobSpec = JOB) -> Lifecycle:
    """A lifecycle whose tasks are all running."""
    lifecycle = lifecycle_of(spec)
    history: list[Event] = [planned(tasks), *map(started, range(tasks)), *map(ready, range(tasks))]
    for event in history:
        lifecycle.handle(event)
    return lifecycle


def feed(lifecycle: Lifecycle, incoming: Iterable[Event]) -> list[Action]:
    """Handle events as the supervisor does and return the actions.

    A TearDown appends TeardownBegan to the queue; a Happen appends its event and is not returned.
    """
    queue: list[Event] = list(incoming)
    actions: list[Action] = []
    while queue:
        for action in lifecycle.handle(queue.pop(0)):
            if isinstance(action, Happen):
                queue.append(action.event)
                continue
            actions.append(action)
            if isinstance(action, TearDown):
                queue.append(began(action.reason, action.grace_s))
    return actions


def the_result(actions: Iterable[Action]) -> RunResult:
    (result,) = [action.result for action in actions if isinstance(action, Finish)]
    return result


def starts(actions: Iterable[Action]) -> int:
    return sum(isinstance(action, StartTasks) for action in actions)


def teardowns(actions: Iterable[Action]) -> list[TearDown]:
    return [action for action in actions if isinstance(action, TearDown)]


def sweeps(actions: Iterable[Action]) -> int:
    return sum(isinstance(action, SweepHost) for action in actions)
