"""samples.jsonl: the history of a run, of bounded size. Its supervisor writes it, and others read it at any time."""

from __future__ import annotations

import errno
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Self

from orchestrator.core.progress.history_rows import (
    LONGEST_ROW,
    HistoryRow,
    HistoryRows,
    Line,
    Usage,
    task_and_time,
    thinned,
)
from orchestrator.core.state.events import Progress
from orchestrator.store.directory import Directory
from orchestrator.store.files import open_regular
from orchestrator.store.open_files import written_bytes
from orchestrator.store.runs.paths import RunPaths

# Rows of a task.
MOST_ROWS = 4000
# Bytes of the file for each task. While it is thinned there are two files, each of this size at most.
TASK_BYTES = 500_000
# Bytes of the file, so that the supervisor thins it within some tenths of a second.
RUN_BYTES = 32 << 20
# Enough for the length of a row.
_LENGTH_BITS = LONGEST_ROW.bit_length()
# Bytes that a reader takes at once.
_BLOCK_BYTES = 1 << 20


class HistoryFile:
    """The history of a live run, until close(). No method fails: rows that cannot be written are lost.

    When the file has reached its limit, the interval between rows is doubled, and the rows in between are removed.
    """

    def __init__(self, run: Directory, name: str) -> None:
        self._run = run
        self._name = name
        self._fd = -1
        self._size = 0
        self._rows = HistoryRows()
        self._written: Counter[str] = Counter()
        self._waiting: list[Line] = []

    def add(
        self, time_s: float, attempt: int, progress: Mapping[str, Progress], usage: Mapping[str, Usage]
    ) -> None:
        """Write the rows that are due, and those that wait."""
        self._waiting += self._rows.take(time_s, attempt, progress, usage)
        self.flush()

    def end_task(
        self, time_s: float, attempt: int, task: str, progress: Progress | None, usage: Usage | None
    ) -> None:
        """Add the last row of a process. It is written later, because an exit must not wait for a disk."""
        if progress is not None or usage is not None:
            self._waiting.append(self._rows.take_last(time_s, attempt, task, progress, usage))

    def flush(self) -> None:
        """Write the rows that wait."""
        lines, self._waiting = self._waiting, []
        if not lines:
            return
        try:
            if self._fd < 0:
                self._fd = self._run.open_private(self._name, os.O_RDWR | os.O_TRUNC)
            while not self._fits(lines) and self._rows.interval_s < self._rows.time_s:
                self._thin()
            if self._fits(lines):
                self._append(lines)
        except OSError:
            return  # a failure of the disk is reported by the other files of the run

    def close(self) -> None:
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fits(self, lines: list[Line]) -> bool:
        added = Counter(line.task for line in lines)
        tasks = len(self._written) + sum(task not in self._written for task in added)
        size = self._size + sum(len(line.text) for line in lines)
        has_room = all(self._written[task] + rows <= MOST_ROWS for task, rows in added.items())
        return has_room and size <= min(tasks * TASK_BYTES, RUN_BYTES)

    def _append(self, lines: list[Line]) -> None:
        data = b"".join(line.text for line in lines)
        try:
            if os.pwrite(self._fd, data, self._size) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self._written.update(line.task for line in lines)

    def _thin(self) -> None:
        """Double the interval, and replace the file by one with the rows that are left. OSError."""
        self._rows.interval_s *= 2
        temporary = f".{self._name}.{os.getpid()}"
        new = self._run.open_private(temporary, os.O_RDWR | os.O_TRUNC)
        size, written = 0, Counter[str]()
        try:
            with os.fdopen(new, "wb", closefd=False) as out:
                for line in thinned(_lines(self._fd, self._size), self._rows.interval_s):
                    out.write(line.text)
                    size += len(line.text)
                    written[line.task] += 1
            self._run.rename(temporary, self._name)
        except OSError:
            os.close(new)
            with suppress(OSError):
                self._run.unlink(temporary)
            raise
        os.close(self._fd)
        self._fd, self._size, self._written = new, size, written


class HistoryTail:
    """Reads the rows of a run as its supervisor writes them, also after the file was replaced by a thinned one."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._inode = -1
        self._offset = 0
        self._last: dict[bytes, float] = {}

    def read(self) -> list[HistoryRow]:
        """Return the rows since the last call, as far as they can be read."""
        return [row for line in self._new_lines() if (row := HistoryRow.parse(line)) is not None]

    def skip(self) -> None:
        """Leave out the rows up to now, of which there may be millions of bytes."""
        for _ in self._new_lines():
            pass

    def _new_lines(self) -> Iterator[bytes]:
        """Yield the lines since the last call that are later than the ones before them of their task."""
        try:
            fd = open_regular(self._paths.samples)
        except OSError:
            return
        try:
            status = os.fstat(fd)
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset = status.st_ino, 0
            while size := min(written_bytes(fd, self._offset), _BLOCK_BYTES):
                data = os.pread(fd, size, self._offset)
                data = data[: data.rfind(b"\n") + 1]
                if not data:
                    break
                self._offset += len(data)
                yield from filter(self._is_new, data.splitlines(keepends=True))
        except OSError:
            return
        finally:
            os.close(fd)

    def _is_new(self, line: bytes) -> bool:
        task, time_s = task_and_time(line) or (b"", -1.0)
        if time_s <= self._last.get(task, -1.0):
            return False
        self._last[task] = time_s
        return True


class TaskRows:
    """The rows of each task of a run, parsed only when they are asked for. Close it.

    `last` is the time of each task's last row, in the order of their first ones."""

    def __init__(self, paths: RunPaths) -> None:
        self.last: dict[str, float] = {}
        # Offset and length of each row, in one number.
        self._places: dict[str, array[int]] = {}
        try:
            self._fd = open_regular(paths.samples)
        except OSError:
            self._fd = -1  # the run has no rows
            return
        with suppress(OSError):  # a disk error: the rows before it
            self._find(min(written_bytes(self._fd, 0), RUN_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _find(self, size: int) -> None:
        offset = 0
        for line in _lines(self._fd, size):
            if found := task_and_time(line):
                task = found[0].decode(errors="replace")
                self._places.setdefault(task, array("Q")).append(offset << _LENGTH_BITS | len(line))
                self.last[task] = max(found[1], self.last.get(task, 0.0))
            offset += len(line)

    def read(self, task: str, most: int) -> list[HistoryRow]:
        """Return at most `most` rows of a task, evenly chosen, with the first and the last."""
        places = self._places.get(task, array("Q"))
        if len(places) > most:
            end = len(places) - 1
            places = array("Q", (places[round(number * end / (most - 1))] for number in range(most)))
        return [row for place in places if (row := HistoryRow.parse(self._line(place))) is not None]

    def _line(self, place: int) -> bytes:
        try:
            return os.pread(self._fd, place & ((1 << _LENGTH_BITS) - 1), place >> _LENGTH_BITS)
        except OSError:
            return b""


def read_rows(paths: RunPaths) -> list[HistoryRow]:
    """Return the rows of a run, as far as they can be read; none if the file is missing."""
    rows: list[HistoryRow] = []
    try:
        fd = open_regular(paths.samples)
    except OSError:
        return rows
    try:
        size = min(written_bytes(fd, 0), RUN_BYTES)
        rows.extend(row for line in _lines(fd, size) if (row := HistoryRow.parse(line)) is not None)
    except OSError:
        pass  # a disk error: the rows before it
    finally:
        os.close(fd)
    return rows


def _lines(fd: int, size: int) -> Iterator[bytes]:
    """Yield the lines of the first `size` bytes. A line that is too long is cut."""
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        while size > 0 and (line := file.readline(min(size, LONGEST_ROW + 1))):
            size -= len(line)
            yield line
