"""The document of a run that its page is drawn from, live or long after its end. Only its reader is used."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from orchestrator.client.page.clock import RunClock
from orchestrator.client.page.ending import MOST_STACKS, end_document, stack_documents
from orchestrator.client.page.pieces import Items, Members, whole
from orchestrator.client.page.plan import plan_document
from orchestrator.client.page.series import Steps, task_series
from orchestrator.client.page.timeline import Timeline
from orchestrator.client.run_rows import command_text, run_status
from orchestrator.client.view.layout import colour_index
from orchestrator.client.view.messages import queued_text
from orchestrator.client.view.status_document import host_statuses, queued_status, task_status
from orchestrator.core.errors import NewerFormat
from orchestrator.core.state.events import AttemptPlanned, Event, StacksTaken
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import RunState
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.store.runs import lost_runs
from orchestrator.store.runs.reader import RunView, Usage

Document = dict[str, Any]
Parts = Iterator[tuple[str, Any]]
# Points of a document: rows of all tasks together.
MOST_POINTS = 200_000


class _Found(NamedTuple):
    """The state of a run at a refresh. `events`: the number of events until then."""

    events: int
    state: RunState
    usage: Usage
    is_live: bool

    def has_record_of(self, other: _Found | None) -> bool:
        """Whether no event, and no end, lies between two of them."""
        if other is None or self.state is not other.state:
            return False
        return (self.events, self.is_live) == (other.events, other.is_live)


class RunPage:
    """Reads a run and makes the documents of its page. Call refresh() before the others."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.clock = RunClock(view.record.started_at, view.record.started_mono)
        self._timeline = Timeline(view.record.started_mono)
        self._planned: AttemptPlanned | None = None
        self._stacks: list[StacksTaken] = []
        self._found: _Found | None = None
        # The state of which changed_parts() has returned the parts.
        self._given: _Found | None = None

    def refresh(self) -> bool:
        """Read what is new. False if nothing is."""
        happened, before = self.view.refresh(self._note), self._found
        events = len(happened) + (0 if before is None else before.events)
        self._found = _Found(events, *self.view.latest(), self.view.is_live)
        return not self._found.has_record_of(before) or before is None or before.usage != self._found.usage

    @property
    def steps(self) -> Steps:
        """The steps of an epoch, as far as they are known. Later events add to it."""
        return self._timeline.steps

    def document(self) -> Document:
        """Return the whole document."""
        return dict(whole(Members(self.parts(MOST_POINTS))))

    def parts(self, most_points: int) -> Parts:
        """Yield the parts of the document by name, the large ones in pieces."""
        yield from self._run_parts()
        yield "tasks", Items(self._rows())
        yield from self._recorded_parts()
        yield "series", task_series(self.view.history_of_tasks(most_points), self.steps)

    def changed_parts(self) -> Parts:
        """Yield the parts but the series, and of `tasks` the rows, that may have changed since the last call: while no
        event comes, those of the tasks whose measurement is another one."""
        before, self._given = self._given, self._found
        yield from self._run_parts()
        if before is None or self._given is None or not self._given.has_record_of(before):
            yield "tasks", Items(self._rows())
            yield from self._recorded_parts()
            return
        usage = self._given.usage
        names = {name for name in before.usage.keys() | usage if before.usage.get(name) != usage.get(name)}
        yield "tasks", Items(self._rows(names))

    def _run_parts(self) -> Parts:
        view = self.view
        result, remarks = self._result()
        run = {
            **run_status(view).model_dump(mode="json"),
            "live": view.is_live and not view.state.phase.is_end,
            "attempts": view.state.attempt,
            "took_s": None if result is None else result.took_s,
            "command": command_text(view.record.spec),
            "remarks": [*view.remarks(), *remarks, *_queue_of(view.state)],
        }
        yield "schema_version", 1
        yield "orch", orch_version()
        yield "made_at", round(time.time(), 3)
        yield "run", cleaned(run)
        hosts = host_statuses(view.latest()[0], view.now_mono())
        yield "hosts", [cleaned(host.model_dump(mode="json")) for host in hosts]

    def _rows(self, names: Container[str] | None = None) -> Iterator[Document]:
        """Yield the rows of these tasks; None: of all."""
        state, usage = self.view.latest()
        now_mono = self.view.now_mono()
        for task in state.tasks.values():
            if names is None or task.name in names:
                row = task_status(task, state, usage, now_mono).model_dump(mode="json")
                yield cleaned({**row, "colour": colour_index(task.name)})

    def _recorded_parts(self) -> Parts:
        """Yield the parts that only an event, or the end, changes."""
        view = self.view
        result, _ = self._result()
        yield "end", cleaned(None if result is None else end_document(result, view.paths))
        stacks = self._stacks or _stacks_of(result, view)
        yield "stacks", cleaned(stack_documents(stacks, self.clock, view.paths))
        yield "plan", cleaned(plan_document(view.record, self._planned, view.state.tasks.values()))
        yield "timeline", cleaned(self._timeline.document(view.state))

    def _note(self, state: RunState, event: Event) -> None:
        self.clock.add(event.at, event.mono)
        self._timeline.add(state, event)
        if isinstance(event, AttemptPlanned):
            self._planned = event
        elif isinstance(event, StacksTaken):
            self._stacks = [*self._stacks, event][-MOST_STACKS:]

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
    """Return a part of a document in which no text has control sequences or changes the reading order. It is the same
    object if it has none."""
    if isinstance(value, str):
        return safe_lines(value)
    if isinstance(value, dict):
        if all(safe(str(key)) is key and cleaned(each) is each for key, each in value.items()):
            return value
        return {safe(str(key)): cleaned(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return value if all(cleaned(each) is each for each in value) else [cleaned(each) for each in value]
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
