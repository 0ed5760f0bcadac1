"""Read events.jsonl while it grows."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import ValidationError

from orchestrator.core.state.events import Event, TaskProgressed, parse_event
from orchestrator.store.files import SharedFile
from orchestrator.store.open_files import written_bytes

_BLOCK_BYTES = 1 << 20
# Upper bound for an event. orch does not write longer data without a newline. The reader stops there.
_LONGEST_LINE_BYTES = 64 << 20
# A progress event exactly as event_line() writes it. Other lines are parsed to learn their type.
_PROGRESS = re.compile(
    rb'\{"at":[-+.0-9e]+,"mono":[-+.0-9e]+,"type":"task_progressed","task":"([^"\\]+)",'
    rb'"progress":\{("phase":(?:null|"[a-z]*"))?.*\}\}\Z'
)
# The events that say how long tasks have been silent.
_SILENCE = b'"type":"deadline_reached"'
# These bytes cannot occur inside an event: quotes within its strings are escaped.
EVENT_BEGINS = b'{"at":'


class EventTail:
    """Reads events as the supervisor appends them. An incomplete last line waits for its newline.

    Most events of a long run report progress. When one read finds several of a task, it may skip all but the last, and
    those that begin a phase or follow a silence.
    """

    def __init__(self, path: Path) -> None:
        self._file = SharedFile(path)
        self._offset = 0
        self._is_damaged = False
        self._phases: dict[bytes, bytes | None] = {}

    def read(self) -> list[Event]:
        """Return the events since the last call, in order. Progress may be skipped as the class describes."""
        events: list[Event] = []
        with self._file.opened() as fd:
            size = _BLOCK_BYTES
            while fd >= 0 and not self._is_damaged:
                data = _read(fd, min(size, written_bytes(fd, self._offset)), self._offset)
                end = data.rfind(b"\n") + 1
                events += self._parse_lines(data[:end].splitlines())
                self._offset += end
                if not end and len(data) >= _LONGEST_LINE_BYTES:
                    self._is_damaged = True
                if len(data) < size:
                    break
                size = _BLOCK_BYTES if end else 2 * size
        return events

    def read_unterminated(self) -> list[Event]:
        """Return the event after the last newline, if it is complete. Only for a run that has ended."""
        with self._file.opened() as fd:
            data = b"" if fd < 0 else _read(fd, _BLOCK_BYTES, self._offset)
        event = _parse_line(data) if data and b"\n" not in data else None
        if event is None:
            return []
        self._offset += len(data)
        return [event]

    def _parse_lines(self, lines: list[bytes]) -> list[Event]:
        """Return the events of these lines, without progress that a later line replaces."""
        reports = [_PROGRESS.match(line) for line in lines]
        changes = self._changes(lines, reports)
        events: list[Event] = []
        reported: set[bytes] = set()
        for number in reversed(range(len(lines))):
            progress = reports[number]
            if progress is not None and progress[1] in reported and number not in changes:
                continue
            event = _parse_line(lines[number])
            if event is not None:
                events.append(event)
            if progress is not None and isinstance(event, TaskProgressed):
                reported.add(progress[1])
        events.reverse()
        return events

    def _changes(self, lines: list[bytes], reports: list[re.Match[bytes] | None]) -> set[int]:
        """Return the numbers of the reports that begin a phase or follow a silence."""
        changes = set()
        for number, progress in enumerate(reports):
            if progress is None:
                if _SILENCE in lines[number]:
                    self._phases.clear()
            elif self._phases.get(progress[1], b"") != progress[2]:
                self._phases[progress[1]] = progress[2]
                changes.add(number)
        return changes

    def keep_open(self) -> AbstractContextManager[int]:
        """Keep reading the same file even if it is moved or removed."""
        return self._file.opened()


def _read(fd: int, size: int, offset: int) -> bytes:
    try:
        return os.pread(fd, size, offset)
    except OSError:  # a disk error, or the disk is gone
        return b""


def _parse_line(line: bytes) -> Event | None:
    """Return the event of a line; None if this version cannot parse it."""
    try:
        return parse_event(line)
    except ValidationError:
        pass
    # A crash can leave a partial line in front of a complete event.
    begins = line.rfind(EVENT_BEGINS)
    if begins <= 0:
        return None
    try:
        return parse_event(line[begins:])
    except ValidationError:
        return None
