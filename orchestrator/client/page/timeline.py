"""The timeline of a run: a row of spans for each task, and marks, made of the events while they are read (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.client.page.marks import Mark, marks_of
from orchestrator.core.progress.activity import join_names, waits
from orchestrator.core.state import events
from orchestrator.core.state.changes import Matching, changed_tasks
from orchestrator.core.state.events import Event
from orchestrator.core.state.state import RunPhase, RunState, TaskPhase, TaskState

MOST_SPANS = 50_000
_MOST_MARKS = 10_000
# Most marks of saved checkpoints, so that other marks find room.
_MOST_SAVES = 5_000
# Tasks are named in the text of a span while there are at most so many.
_MOST_NAMED = 8
# A shorter silence is not shown.
_SILENT_S = 2.0
# The states of spans: those of the run's end, of a phase that a task reports, and of a task that reports nothing.
_ENDED = {TaskPhase.SUCCEEDED: "ended-ok", TaskPhase.STOPPED: "ended-ok"}
_OF_PHASE = {
    "importing": "importing",
    "starting": "starting",
    "waiting": "waiting",
    "training": "training",
    "serving": "serving",
    "evaluating": "evaluating",
    "predicting": "evaluating",
    "saving": "saving",
    "done": "stopping",
}


@dataclass(slots=True)
class _Span:
    """A state of a task. Times are seconds since the start of the run; `end` None: it has not ended."""

    task: str
    attempt: int
    state: str
    start: float
    end: float | None = None
    text: str = ""

    def document(self, open_end: float | None) -> dict[str, Any]:
        return {
            "task": self.task,
            "attempt": self.attempt,
            "state": self.state,
            "start": self.start,
            "end": open_end if self.end is None else self.end,
            "text": self.text,
        }

    @property
    def length(self) -> float:
        return float("inf") if self.end is None else self.end - self.start


@dataclass
class Timeline:
    """Call add() after each event, with the state that it led to. `steps`: the steps of an epoch, by task and
    attempt."""

    started_mono: float
    most_spans: int = MOST_SPANS
    steps: dict[str, dict[int, int]] = field(default_factory=dict)
    _attempts: list[dict[str, Any]] = field(default_factory=list)
    _marks: list[Mark] = field(default_factory=list)
    _spans: list[_Span] = field(default_factory=list)
    _open: dict[str, _Span] = field(default_factory=dict)
    _tasks: Mapping[str, TaskState] = field(default_factory=dict)
    _was_ready: bool = False
    _saves: int = 0
    _awaited: Matching = field(default_factory=lambda: Matching(lambda task, state: task.is_awaited))
    _awaited_text: str = ""
    _is_awaiting: bool = False

    def add(self, state: RunState, event: Event) -> None:
        time = self._since(event.mono)
        if isinstance(event, events.AttemptPlanned):
            self._begin_attempt(state.attempt, time)
        was_awaiting = self._is_awaiting
        changed = [*changed_tasks(self._tasks, state, event)]
        self._note_awaited(state, changed)
        if was_awaiting and not self._is_awaiting:
            changed += self._waiting(state)
        for task in changed:
            self._follow(task, state, time)
        self._tasks = state.tasks
        self._note_silence(state, event, time)
        self._mark(state, event, time)
        if isinstance(event, events.RestartPlanned | events.RunEndedEvent):
            self._end_attempt(time)

    def document(self, state: RunState) -> dict[str, Any]:
        """Return the attempts, spans and marks. In a run that has ended, nothing is open."""
        end = None
        if state.phase.is_end:
            end = self._since(state.ended_mono) if state.ended_mono is not None else self._latest()
        self._spans = bounded(self._spans, self.most_spans)
        return {
            "attempts": [
                {**attempt, "end": end if attempt["end"] is None else attempt["end"]}
                for attempt in self._attempts
            ],
            "spans": [span.document(end) for span in self._spans if span.length > 0],
            "marks": [mark._asdict() for mark in self._marks],
        }

    def _since(self, mono: float) -> float:
        return round(max(0.0, mono - self.started_mono), 3)

    def _latest(self) -> float:
        return max((span.start for span in self._open.values()), default=0.0)

    def _begin_attempt(self, attempt: int, time: float) -> None:
        self._end_attempt(time)
        self._was_ready, self._awaited_text = False, ""
        self._attempts.append({"attempt": attempt, "start": time, "end": None})

    def _end_attempt(self, time: float) -> None:
        if self._attempts and self._attempts[-1]["end"] is None:
            self._attempts[-1]["end"] = time
        for span in self._open.values():
            span.end = max(time, span.start)
        self._open.clear()

    def _note_awaited(self, state: RunState, changed: Collection[TaskState]) -> None:
        """Remember the last tasks that others waited for. When their wait is over, none is left."""
        self._awaited.update(state, changed)
        self._is_awaiting = bool(self._awaited.names)
        if 0 < len(self._awaited.names) <= _MOST_NAMED:
            self._awaited_text = f"waiting for {join_names(sorted(self._awaited.names))}"

    def _follow(self, task: TaskState, state: RunState, time: float) -> None:
        progress = task.progress
        if progress.steps and progress.steps > 0 and self._state_of(task, state) == "training":
            self.steps.setdefault(task.name, {})[state.attempt] = progress.steps
        found, text = self._state_of(task, state), _text_of(task, state)
        span = self._open.get(task.name)
        if task.ended_mono is not None:
            time = self._since(task.ended_mono)
        if span is None or span.state != found:
            if span is not None and span.state == "training" and text:
                span.text = text  # its last epoch
            self._change(task.name, state.attempt, found, time, text)
        elif text:
            span.text = text

    def _waiting(self, state: RunState) -> list[TaskState]:
        return [
            state.tasks[name]
            for name, span in self._open.items()
            if span.state == "waiting" and name in state.tasks
        ]

    def _state_of(self, task: TaskState, state: RunState) -> str:
        if task.phase.is_end:
            return _ENDED.get(task.phase, "ended-bad")
        if task.phase is TaskPhase.STOPPING:
            return "stopping"
        if task.phase is TaskPhase.PENDING:
            return "starting"
        if self._is_awaiting and waits(task, state):
            return "waiting"
        reported = _OF_PHASE.get(task.progress.phase or "")
        if reported is not None:
            return reported
        if task.progress.step is not None:
            return "training"
        return "running" if task.phase is TaskPhase.RUNNING else "starting"

    def _change(self, task: str, attempt: int, state: str, time: float, text: str) -> None:
        span = self._open.get(task)
        if span is not None:
            time = max(time, span.start)
            span.end = time
            if span.state == "waiting":
                span.text = self._awaited_text or "connecting"
        self._open[task] = _Span(task, attempt, state, time, text=text)
        self._spans.append(self._open[task])
        if len(self._spans) > 2 * self.most_spans:
            self._spans = bounded(self._spans, self.most_spans)

    def _note_silence(self, state: RunState, event: Event, time: float) -> None:
        quiet: dict[str, float] = {}
        if isinstance(event, events.DeadlineReached):
            quiet = {task: seconds for task, seconds in event.quiet_s.items() if seconds >= _SILENT_S}
        elif isinstance(event, events.HostSilent):
            quiet = {
                task.name: event.seconds for task in state.tasks.values() if task.plan.host == event.host
            }
        for task, seconds in quiet.items():
            known = state.tasks.get(task)
            span = self._open.get(task)
            if known is not None and known.is_live and span is not None and span.state != "silent":
                since = round(max(0.0, time - seconds), 3)
                self._change(task, state.attempt, "silent", since, "no output and no progress")
        if isinstance(event, events.HostBack):
            for each in state.tasks.values():
                if each.plan.host == event.host and each.name in self._open:
                    self._follow(each, state, time)

    def _mark(self, state: RunState, event: Event, time: float) -> None:
        self._saves += isinstance(event, events.CheckpointSaved)
        is_one_too_many = isinstance(event, events.CheckpointSaved) and self._saves > _MOST_SAVES
        if len(self._marks) >= _MOST_MARKS or is_one_too_many:
            return
        self._marks += marks_of(state, event, time)
        is_ready = state.phase is RunPhase.RUNNING
        if is_ready and not self._was_ready:
            self._was_ready = True
            self._marks.append(Mark(None, time, "ready", "all tasks are ready"))


def _text_of(task: TaskState, state: RunState) -> str:
    if task.phase is TaskPhase.PENDING:
        return f"preloading {', '.join(state.preloading)}" if state.preloading else ""
    epoch = task.progress.epoch
    if epoch is None or task.phase.is_end:
        return ""
    return f"epoch {epoch}" + (f"/{task.progress.epochs}" if task.progress.epochs else "")


def bounded(spans: list[_Span], most: int) -> list[_Span]:
    """Return at most about `most` spans: the shortest ones become a part of the span before them."""
    while len(spans) > most:
        lengths = sorted(span.length for span in spans)
        # Each pass must leave fewer spans.
        limit = lengths[len(spans) - most // 2]
        left = list(_without_short(spans, limit))
        if len(left) == len(spans):
            break
        spans = left
    return spans


def _without_short(spans: list[_Span], limit: float) -> Iterator[_Span]:
    before: dict[str, _Span] = {}
    for span in spans:
        last = before.get(span.task)
        is_same = last is not None and last.attempt == span.attempt
        if last is not None and is_same and (span.length < limit or span.state == last.state):
            last.end = span.end
        else:
            before[span.task] = span
            yield span
