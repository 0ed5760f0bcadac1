"""The document of a run that its page is drawn from, live or long after its end. Only its reader is used."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from orchestrator.client.page.clock import RunClock
from orchestrator.client.page.ending import MOST_STACKS, end_document, stack_documents
from orchestrator.client.page.plan import plan_document
from orchestrator.client.page.series import task_series
from orchestrator.client.page.timeline import Timeline
from orchestrator.client.run_rows import command_text, read_status
from orchestrator.client.view.layout import colour_index
from orchestrator.client.view.messages import queued_text
from orchestrator.client.view.status_document import queued_status
from orchestrator.core.errors import NewerFormat
from orchestrator.core.state.events import AttemptPlanned, Event, StacksTaken, VersionsFound
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import RunState
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.store.runs import lost_runs
from orchestrator.store.runs.reader import RunView

Document = dict[str, Any]


class RunPage:
    """Reads a run and makes the documents of its page. Call refresh() before the others."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.clock = RunClock(view.record.started_at, view.record.started_mono)
        self._timeline = Timeline(view.record.started_mono)
        self._planned: AttemptPlanned | None = None
        self._stacks: list[StacksTaken] = []
        self._versions: dict[str, dict[str, str]] = {}
        self._before: tuple[RunState, bool, object] | None = None

    def refresh(self) -> bool:
        """Read what is new. False if nothing is."""
        happened = self.view.refresh(self._note)
        before, self._before = self._before, (self.view.state, self.view.is_live, self.view.sample())
        return (
            bool(happened)
            or before is None
            or before[0] is not self._before[0]
            or before[1:] != self._before[1:]
        )

    @property
    def steps(self) -> Mapping[str, int]:
        """The steps of an epoch, by task, as far as they are known; it grows."""
        return self._timeline.steps

    def document(self) -> Document:
        """Return the whole document."""
        places = {task: place for place, task in enumerate(self.view.state.tasks)}
        rows = sorted(self.view.history_rows(), key=lambda row: places.get(row.task, len(places)))
        return {**self.parts(), "series": task_series(rows, self.steps)}

    def parts(self) -> Document:
        """Return all of the document but the series."""
        view = self.view
        result, remarks = self._result()
        status = read_status(view).model_dump(mode="json")
        tasks = [{**task, "colour": colour_index(task["task"])} for task in status["tasks"]]
        stacks = self._stacks or _stacks_of(result, view)
        parts = {
            "schema_version": 1,
            "orch": orch_version(),
            "made_at": round(time.time(), 3),
            "run": {
                **status["run"],
                "live": view.is_live and not view.state.phase.is_end,
                "paused_parts": [task["task"] for task in tasks if task["paused"]],
                "attempts": view.state.attempt,
                "took_s": None if result is None else result.took_s,
                "command": command_text(view.record.spec),
                "remarks": [*view.remarks(), *remarks, *_queue_of(view.state)],
            },
            "end": None if result is None else end_document(result, view.paths),
            "stacks": stack_documents(stacks, self.clock, view.paths),
            "plan": plan_document(view.record, self._planned, self._versions),
            "tasks": tasks,
            "hosts": status["hosts"],
            "timeline": self._timeline.document(view.state),
        }
        return {name: cleaned(part) for name, part in parts.items()}

    def _note(self, state: RunState, event: Event) -> None:
        self.clock.add(event.at, event.mono)
        self._timeline.add(state, event)
        if isinstance(event, AttemptPlanned):
            self._planned = event
        elif isinstance(event, StacksTaken):
            self._stacks = [*self._stacks, event][-MOST_STACKS:]
        elif isinstance(event, VersionsFound):
            self._versions[event.task] = event.versions

    def _result(self) -> tuple[RunResult | None, list[str]]:
        """Return the result of an ended run, and why there is none."""
        if not self.view.state.phase.is_end:
            return None, []
        try:
            return lost_runs.result_of(self.view), []
        except NewerFormat as error:
            return None, [str(error)]


def orch_version() -> str:
    try:
        return version("tf-orch")
    except PackageNotFoundError:
        return "unknown"


def cleaned(value: Any) -> Any:
    """Return a part of a document in which no text has control sequences or changes the reading order."""
    if isinstance(value, str):
        return safe_lines(value)
    if isinstance(value, dict):
        return {safe(str(key)): cleaned(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(each) for each in value]
    return value


def _stacks_of(result: RunResult | None, view: RunView) -> list[StacksTaken]:
    """The stacks in the result of a run whose events are lost."""
    if result is None or not result.stacks:
        return []
    mono = view.record.started_mono + (result.took_s or 0.0)
    return [StacksTaken(at=0.0, mono=mono, why="a time limit", stacks=dict(result.stacks))]


def _queue_of(state: RunState) -> list[str]:
    """Why a queued run waits; empty for others."""
    queued = queued_status(state)
    return [] if queued is None else [f"queued: {queued_text(queued)}"]
