"""States of runs at a moment, made from real events."""

from __future__ import annotations

from orchestrator.client.view.tables import Moment
from orchestrator.core.state.events import (
    AttemptPlanned,
    Event,
    PlannedTask,
    Progress,
    TaskExited,
    TaskProgressed,
    TaskReady,
    TaskStarted,
)
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState


def planned(task: str) -> PlannedTask:
    role, _, index = task.partition(":")
    return PlannedTask(
        task=task,
        role=role,
        index=int(index),
        address="127.0.0.1:1",
        argv=("python",),
        cwd="/",
        env={},
        log=f"/logs/{role}-{index}.log",
        serves=True,
    )


def running(count: int = 2, *more: Event) -> RunState:
    """`count` workers that all run since second 10, then the other events."""
    names = [f"worker:{n}" for n in range(count)]
    events: list[Event] = [
        AttemptPlanned(at=0, mono=10, attempt=1, tasks=tuple(planned(name) for name in names))
    ]
    for number, name in enumerate(names):
        events.append(TaskStarted(at=0, mono=10, task=name, pid=1000 + number, start_ticks=1))
        events.append(TaskReady(at=0, mono=10, task=name))
    state = RunState()
    for event in [*events, *more]:
        state = apply(state, event)
    return state


def progressed(task: str, progress: Progress) -> TaskProgressed:
    return TaskProgressed(at=0, mono=12, task=task, progress=progress)


def exited(task: str, code: int | None, signal: int | None = None) -> TaskExited:
    return TaskExited(at=0, mono=15, task=task, exit_code=code, signal=signal, order=0)


def moment(state: RunState, now: float = 75.0, hint: str = "") -> Moment:
    return Moment(name="digits", state=state, now=now, started=10.0, hint=hint)
