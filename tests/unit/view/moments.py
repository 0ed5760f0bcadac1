"""States of runs at a moment, made from real events, and what is shown of them."""

from __future__ import annotations

from typing import Any

from making import attempt_planned, event, exited, ready, started, state_of

from orchestrator.client.view.report import end_lines
from orchestrator.client.view.status_document import RunStatus, Status, task_statuses
from orchestrator.client.view.tables import Moment, footer_lines, status_lines
from orchestrator.core.state.events import Event, Progress, TaskProgressed
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import RunState

__all__ = ["exited", "footer", "moment", "progressed", "report", "running", "status"]


def running(count: int = 2, *more: Event) -> RunState:
    """`count` workers that all run since second 10, then the other events."""
    begun: list[Event] = []
    for index in range(count):
        begun += started(index, 10, pid=1000 + index), ready(index, 10)
    return state_of(attempt_planned(count, mono=10), *begun, *more)


def progressed(task: int | str, progress: Progress) -> TaskProgressed:
    return event(TaskProgressed, 12, task=task, progress=progress)


def moment(state: RunState, now: float = 75.0, hint: str = "", **more: Any) -> Moment:
    return Moment(name="digits", state=state, now=now, started=10.0, hint=hint, **more)


def footer(
    shown: Moment | RunState, width: int = 120, height: int = 24, *, colour: bool = False
) -> list[str]:
    """The lines of the footer. A state is shown at second 75."""
    return footer_lines(moment(shown) if isinstance(shown, RunState) else shown, width, height, colour=colour)


def status(
    state: RunState,
    now: float = 75.0,
    sample: dict[str, dict[str, float]] | None = None,
    width: int | None = None,
    **fields: Any,
) -> list[str]:
    """The lines of `orch status`."""
    run: dict[str, Any] = {
        "id": "digits-1",
        "name": "digits",
        "state": state.phase,
        "attempt": state.attempt,
        "started_at": 0.0,
        "uptime_s": now - 10,
        "dir": "/runs/digits-1",
        "directory": "/work",
        "checkpoint_dir": "/c",
        "exit_code": None,
    }
    document = Status(run=RunStatus(**run | fields), tasks=task_statuses(state, sample or {}, now))
    return status_lines(document, width, colour=False)


def report(result: RunResult, width: int | None = None, **more: Any) -> list[str]:
    """The lines of the final report."""
    return end_lines(result, width, colour=False, **more)
