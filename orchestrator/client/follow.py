"""Follows one run: passes its log lines, messages and state to a view until the run is over."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from orchestrator.client.view.messages import awaited_text, event_message, most_attempts
from orchestrator.client.view.tables import Moment
from orchestrator.client.view.terminal import View
from orchestrator.core.state.events import Event, JobStarted, StopRequested
from orchestrator.core.state.state import Queued, RunState
from orchestrator.core.text.clean import one_line
from orchestrator.core.text.durations import format_duration
from orchestrator.store.files import read_bytes
from orchestrator.store.logs.lines import Chunk
from orchestrator.store.logs.merge import START, LogReader, Position, line_before
from orchestrator.store.runs.liveness import is_of_this_host
from orchestrator.store.runs.reader import RunView

# Bytes of logs a step: between two steps the caller can handle signals.
_STEP_BYTES = 1 << 20
_POLL_S = 0.05
# Slurm's reasons for a job that its scheduler has not examined yet.
_NOT_ASKED = ("", "None")
_STATE_INTERVAL_S = 0.1


class Follower:
    """Connects one run and one view. step() does a limited amount of work; close() closes the log files.

    `tasks` are those whose lines are shown (None: all). `hint` is shown beside the run's state.
    `owner_is_quiet`: whether -q was given to the process that started the run; None in another process.
    """

    def __init__(
        self,
        run: RunView,
        view: View,
        tasks: Collection[str] | None,
        position: Position = START,
        verbose: bool = False,
        owner_is_quiet: bool | None = None,
    ) -> None:
        self.hint = ""
        self._verbose = verbose
        self._run = run
        self._view = view
        self._reader = LogReader(run.paths.logs, tasks, position)
        self._state_due = 0.0
        self._owner_is_quiet = owner_is_quiet
        self._queued: Queued | None = None
        # Ranges of bytes in the log of a task.
        self._hidden: dict[str, list[tuple[int, int]]] = {}
        # Tasks whose first line is whole; None if all logs are read from the start.
        self._begun: set[str] | None = None if position == START else set()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended. Some of its output may not be shown yet."""
        return self._run.state.phase.is_end

    def step(self) -> float:
        """Show what is new. Return the seconds until there may be more (0: there is more already)."""
        now = time.monotonic()
        if now >= self._state_due:
            self._state_due = now + _STATE_INTERVAL_S
            self.refresh()
        if self._is_view_behind():
            return 0.0
        chunks = self._show_chunks()
        frame_s = self._view.frame(time.monotonic())
        if chunks:
            return 0.0
        return _POLL_S if frame_s is None else min(_POLL_S, frame_s)

    def watch(self) -> float:
        """Read what is new about the run, and show nothing. Return the seconds until the next look."""
        self.refresh()
        return _STATE_INTERVAL_S

    def hide(self, task: str, start: int, end: int) -> None:
        """Do not show these bytes of the task's log: the user has seen them. Call it in the order of the bytes."""
        ranges = self._hidden.setdefault(task, [])
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))

    @property
    def state(self) -> RunState:
        return self._run.state

    def refresh(self) -> None:
        """Read the run's new events; show their messages and the new state."""
        events = self._run.refresh()
        most = most_attempts(self._run.record.spec, self._run.state.history)
        self._say_queue(events)
        for event in events:
            text = event_message(event, most, verbose=self._verbose)
            if text is not None:
                self._view.say(f"orch: {text}")
            if isinstance(event, StopRequested) and (text := awaited_text(self._run.state.hosts.values())):
                self._view.say(f"orch: {text}")
        state, sample = self._run.latest()
        moment = Moment(
            name=self._run.record.name,
            state=state,
            now=self._run.now_mono(),
            started=self._run.record.started_mono,
            sample=sample,
            hint=self.hint,
            most_attempts=most,
        )
        self._view.update(moment)

    def _say_queue(self, events: list[Event]) -> None:
        """Show what the run waits for, and the end of the wait."""
        queued = self._run.state.queued
        if queued is not None and queued != self._queued and queued.reason not in _NOT_ASKED:
            is_first = self._queued is None and self._owner_is_quiet is not None
            self._view.say(f"orch: {queued}{' (Ctrl-C cancels it)' if is_first else ''}")
            self._queued = queued
        for event in events:
            if isinstance(event, JobStarted):
                self._say_start(event)

    def _say_start(self, event: JobStarted) -> None:
        if self._queued is not None:
            waited = format_duration(round(max(0.0, event.at - self._run.record.started_at)))
            self._view.say(f"orch: Slurm's job {event.job} has its nodes after {waited} in the queue")
        if self._owner_is_quiet is False and not is_of_this_host(self._run.record):
            # The check of the nodes ran there, and printed its findings into this file.
            for line in (read_bytes(self._run.paths.job_log) or b"").decode(errors="replace").splitlines():
                self._view.say(one_line(line))

    def show_rest(self) -> bool:
        """Show a part of the remaining output of an ended run. Return False when there is none left."""
        if self._is_view_behind():
            return True
        chunks = self._show_chunks(rest=True)
        self._view.frame(time.monotonic())
        return bool(chunks)

    def close(self) -> None:
        self._reader.close()

    def _is_view_behind(self) -> bool:
        return bool(self._view.backlog) and not self._view.drain(_POLL_S)

    def _show_chunks(self, rest: bool = False) -> list[Chunk]:
        """Show the next chunks; `rest`: also those that no index covers."""
        self._view.catch_up(self._reader)
        chunks = self._reader.read(_STEP_BYTES)
        if rest and not chunks:
            chunks = self._reader.read_unindexed(_STEP_BYTES)
        shown = chunks if self._begun is None else [self._whole(chunk) for chunk in chunks]
        if self._hidden:
            shown = [part for chunk in shown for part in self._unseen(chunk)]
        self._view.show(shown)
        return chunks

    def _unseen(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the parts of the chunk that are not hidden."""
        at, end = chunk.offset, chunk.offset + len(chunk.data)
        for first, last in self._hidden.get(chunk.task, ()):
            if at < first < end:
                yield _part(chunk, at, first)
            if first < end:
                at = max(at, last)
        if at < end or not chunk.data:
            yield _part(chunk, at, end)

    def _whole(self, chunk: Chunk) -> Chunk:
        """Return the first chunk of a task with the beginning of its first line; other chunks unchanged."""
        if self._begun is None or chunk.task in self._begun:
            return chunk
        self._begun.add(chunk.task)
        if chunk.lost or not chunk.offset:
            return chunk
        before = line_before(self._run.paths.logs, chunk.task, chunk.offset)
        return chunk._replace(offset=chunk.offset - len(before), data=before + chunk.data)


def _part(chunk: Chunk, start: int, end: int) -> Chunk:
    data = chunk.data[start - chunk.offset : end - chunk.offset]
    return chunk._replace(offset=start, data=data)
