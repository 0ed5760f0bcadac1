"""A run as anybody else sees it: its record, the fold of its events, whether it lives, how it ended."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from orchestrator.events import Event, TaskProgressed, parse_event
from orchestrator.result import RunResult
from orchestrator.runs import locks
from orchestrator.runs.paths import RunPaths
from orchestrator.runs.store import RunRecord, boot_id
from orchestrator.state import RunPhase, RunState, TaskPhase, apply

_BLOCK_BYTES = 1 << 20
# A task's progress, just as event_line writes it; whatever looks otherwise is parsed to see what it is.
_PROGRESS = re.compile(
    rb'\{"at":[-+.0-9e]+,"mono":[-+.0-9e]+,"type":"task_progressed","task":"([^"\\]+)","progress":\{.*\}\}\Z'
)


class EventTail:
    """Reads events.jsonl as it grows; a torn last line waits for its rest.

    Nearly all of a long run's events are progress, and a task's next one takes the place of the one before:
    where several come at once, those in between are left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        """What has come since the last call, in order; of a task's progress at least the latest."""
        events: list[Event] = []
        size = _BLOCK_BYTES
        try:
            with self._path.open("rb") as stream:
                while True:
                    stream.seek(self._offset)
                    data = stream.read(size)
                    end = data.rfind(b"\n") + 1
                    self._offset += end
                    events += _telling(data[:end].splitlines())
                    if len(data) < size:
                        return events
                    size = _BLOCK_BYTES if end else 2 * size
        except FileNotFoundError:
            return events


def _telling(lines: list[bytes]) -> list[Event]:
    """The lines' events without the progress that a later line takes the place of."""
    events: list[Event] = []
    told: set[bytes] = set()
    for line in reversed(lines):
        progress = _PROGRESS.match(line)
        if progress is not None and progress[1] in told:
            continue
        event = _event(line)
        if event is not None:
            events.append(event)
        if progress is not None and isinstance(event, TaskProgressed):
            told.add(progress[1])
    events.reverse()
    return events


def _event(line: bytes) -> Event | None:
    """None for a line that is no event of this version: what can be told is told from the others."""
    try:
        return parse_event(line)
    except ValidationError:
        return None


@dataclass
class RunView:
    """One run under somebody's eyes. open() reads its record alone; refresh() brings `state` up to date."""

    paths: RunPaths
    record: RunRecord
    state: RunState
    _events: EventTail
    _last_mono: float

    @classmethod
    def open(cls, paths: RunPaths) -> RunView | None:
        """None where there is no readable run.json."""
        try:
            record = RunRecord.model_validate_json(paths.record.read_bytes())
        except (OSError, ValidationError):
            return None
        return cls(paths, record, RunState(), EventTail(paths.events), record.started_mono)

    @property
    def is_live(self) -> bool:
        return locks.is_held(self.paths.lock)

    @property
    def same_boot(self) -> bool:
        """Whether this machine has not been restarted since: only then do its pids and times mean anything."""
        return self.record.boot_id == boot_id()

    def refresh(self) -> list[Event]:
        """Take in what has happened; the new events, but for progress that is already past.

        A run whose supervisor died turns into `lost`.
        """
        live = self.is_live  # asked first: what is written before the lock falls is then read below
        events = self._events.read()
        for event in events:
            self._last_mono = event.mono
            try:
                self.state = apply(self.state, event)
            except (KeyError, ValueError):
                continue  # an event of a task that a damaged line planned; an end this version does not know
        if not live and not self.state.phase.is_end:
            self.state = _lost(self.state, self._last_mono)
        return events

    def result(self) -> RunResult | None:
        try:
            return RunResult.model_validate_json(self.paths.result.read_bytes())
        except (OSError, ValidationError):
            return None

    def sample(self) -> dict[str, dict[str, float]]:
        """{task: {cpu_percent, memory_bytes}} as last measured; empty for a run that has ended."""
        if self.state.phase.is_end:
            return {}
        try:
            tasks = json.loads(self.paths.sample.read_bytes())["tasks"]
        except (OSError, ValueError, KeyError):
            return {}
        return tasks if isinstance(tasks, dict) else {}

    def now_mono(self) -> float:
        """The monotonic time that uptimes count to; a run of another boot stands where its record says."""
        return time.monotonic() if self.same_boot else self.record.started_mono


def _lost(state: RunState, last_mono: float) -> RunState:
    """Nobody saw the end: the last that was written down stands for it."""
    tasks = {
        name: task if task.phase.is_end else replace(task, phase=TaskPhase.LOST, ended_mono=last_mono)
        for name, task in state.tasks.items()
    }
    return replace(state, phase=RunPhase.LOST, tasks=tasks, ended_mono=last_mono)
