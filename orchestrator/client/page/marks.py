"""The marks of a timeline: what happened at a moment, to a task or to the run (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.client.view.amounts import short_duration
from orchestrator.client.view.messages import event_message
from orchestrator.core.diagnosis.shortages import over_limit_text
from orchestrator.core.state import events
from orchestrator.core.state.events import Event
from orchestrator.core.state.result import exit_text
from orchestrator.core.state.state import RunState, TaskPhase
from orchestrator.core.text.clean import safe


class Mark(NamedTuple):
    """`time` is seconds since the start of the run; `task` None: it concerns the run."""

    task: str | None
    time: float
    kind: str
    text: str


# Kinds of the events whose message says everything. The others are in _own_mark().
_KINDS: dict[type[Event], str] = {
    events.RestartPlanned: "restart",
    events.TaskRestartPlanned: "restart",
    events.Resumed: "checkpoint",
    events.SignalRequested: "signal",
    events.Noticed: "notice",
    events.NoticeGiven: "signal",
}
_STACKS = {
    events.StacksTaken.BY_USER: "stacks taken on request",
    "stall_limit": "stacks taken: no task made progress",
}


def marks_of(state: RunState, event: Event, time: float) -> Iterator[Mark]:
    """Yield the marks of an event. `state` is the one after it."""
    kind = _KINDS.get(type(event))
    if kind is not None:
        text = event_message(event, None)
        if isinstance(event, events.SignalRequested) and event.by == "chaos":
            kind = "fault"
        task = getattr(event, "task", None)
        if isinstance(event, events.Noticed) and event.nan_in is not None:
            task, kind = event.nan_in, "nan"
        if text is not None:
            yield Mark(task, time, kind, safe(text))
        return
    yield from (Mark(task, time, kind, safe(text)) for task, kind, text in _own_marks(state, event))


def _own_marks(state: RunState, event: Event) -> Iterator[tuple[str | None, str, str]]:
    match event:
        case events.AttemptPlanned():
            yield None, "attempt", f"attempt {event.attempt}"
        case events.TaskExited():
            task = state.tasks.get(event.task)
            text = event.exit.start_error or exit_text(event.exit.exit_code, event.exit.signal)
            if event.exit.over_limit is not None:
                text = over_limit_text(*event.exit.over_limit)
            failed = task is not None and task.phase is TaskPhase.FAILED
            exception = event.symptom.exception if failed and event.symptom is not None else None
            said = f"{text}: {exception}" if exception else text
            yield event.task, "failure" if failed else "exit", f"{event.task}: {said}"
        case events.CheckpointSaved():
            yield (
                event.task,
                "checkpoint",
                f"{event.task} saved {event.name} in {short_duration(event.seconds)}",
            )
        case events.DiskFull():
            yield event.task, "notice", f"{event.task}: {event.reason}"
        case events.StacksTaken():
            yield None, "stacks", _STACKS.get(event.why, "stacks taken")
        case events.StorageFailed() | events.AgentLost():
            yield None, "failure", event.reason
        case events.StopRequested():
            yield None, "signal", f"stop requested ({event.reason.replace('_', ' ')})"
        case events.HostJoined():
            yield None, "host", f"{event.host} joined"
        case events.HostSilent():
            yield None, "host", f"{event.host} is silent for {event.seconds:.1f} s"
        case events.HostBack():
            yield None, "host", f"{event.host} is back after {event.seconds:.1f} s"
        case events.HostLost():
            yield None, "host", f"{event.host} is lost: {event.reason}"
        case events.TeardownBegan():
            yield None, "teardown", f"orch ends what is left of the tasks ({event.reason})"
        case events.RunEndedEvent():
            yield None, "end", f"the run {event.outcome.replace('_', ' ')}"
        case _:
            return
