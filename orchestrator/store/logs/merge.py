"""Merge the logs of all tasks in order of arrival, while they grow or later, from any position of the index."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Self

from orchestrator.store.files import open_if_exists, open_regular
from orchestrator.store.logs.index import (
    INDEX_NAME,
    LONGEST_RECORD,
    IndexRecord,
    index_size,
    last_records,
    last_truncations,
    log_name,
    parse_records,
    read_records,
    tasks_with_logs,
)
from orchestrator.store.logs.lines import MAX_LINE_BYTES, Chunk
from orchestrator.store.open_files import after_hole, written_bytes

_INDEX_BLOCK = 64 << 10
_LOG_BLOCK = 1 << 20
# Cost of a record besides its bytes, so that one call does not process a million tiny records.
_RECORD_COST = 128
_LOOK_AHEAD = 4096
_FIRST_TAIL_WINDOW = 64 << 10
# A task can make a hole of any size in its log. About the first MiB of one is shown; it contains no newline.
_HOLE_SHOWN = 64 << 10


class Position(NamedTuple):
    """A reader's position: the index position of a record, and the bytes read of that record's chunk."""

    record: int = 0
    within: int = 0


START = Position()


class LogReader:
    """Reads the logs once, from a given position on. It takes no lock, so writers continue."""

    def __init__(
        self,
        logs_dir: Path,
        tasks: Collection[str] | None = None,
        position: Position = START,
        *,
        end: int | None = None,
        with_holes: bool = False,
    ) -> None:
        """Read the logs of these tasks (None: all), up to the index position `end` if given. A missing directory is
        treated as empty. Without `with_holes` only the beginning of each hole is read."""
        self._end = sys.maxsize if end is None else end
        self._with_holes = with_holes
        self._logs_dir = logs_dir
        self._tasks = None if tasks is None else frozenset(tasks)
        self._files: dict[str, int] = {}
        self._index = -1
        self._start = self._read_to = position.record
        self._position = position
        self._torn = b""
        self._queue: deque[tuple[int, IndexRecord]] = deque()
        self._covered: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        # Output before a truncation is lost; newer output is now at the same offsets.
        self._lost_before = last_truncations(logs_dir / INDEX_NAME)

    @property
    def position(self) -> Position:
        """The position of the next read(). Another reader can start from it."""
        return self._position

    def read(self, max_bytes: int = 1 << 20) -> list[Chunk]:
        """Return the next chunks in order of arrival, about `max_bytes` at most; empty if there is nothing new."""
        chunks: list[Chunk] = []
        budget = max_bytes
        while budget > 0 and (entry := self._next_record()) is not None:
            end, record = entry
            if self._is_wanted(end, record):
                if record.is_truncation:
                    chunks.append(Chunk(record.task, record.attempt, record.time, 0, b"", record.lost))
                else:
                    chunk, is_complete = self._read_chunk(record, self._position.within, budget)
                    budget -= len(chunk.data)
                    if chunk.data:
                        chunks.append(chunk)
                    if not is_complete:
                        within = chunk.offset + len(chunk.data) - record.offset
                        self._position = self._position._replace(within=within)
                        break
            self._consume(end, record)
            budget -= _RECORD_COST
        return chunks

    def skip_old(self, keep_bytes: int) -> dict[str, int]:
        """Skip the oldest unread chunks until at most `keep_bytes` are left. Return the skipped bytes of each task.

        For a view that is slower than the tasks. A call examines a limited part of the index.
        """
        while len(self._queue) < _LOOK_AHEAD and self._fill():
            pass
        left = sum(record.length for end, record in self._queue if self._is_wanted(end, record))
        left -= self._position.within
        skipped: dict[str, int] = {}
        while left > keep_bytes:
            end, record = self._queue[0]
            if self._is_wanted(end, record) and not record.is_truncation:
                unread = record.length - self._position.within
                skipped[record.task] = skipped.get(record.task, 0) + unread
                left -= unread
            self._consume(end, record)
        return skipped

    def read_unindexed(self, max_bytes: int = 1 << 20) -> list[Chunk]:
        """Return chunks that are missing in the index (the supervisor was killed), task by task, without times.

        Only for a run that is over, after read() has returned nothing. Empty at the end.
        """
        if self._start:
            # This reader started within the index, so it has not seen the earlier records.
            unknown = set(tasks_with_logs(self._logs_dir)) - set(self._covered)
            for task, record in last_records(self._logs_dir / INDEX_NAME, self._start, unknown).items():
                self._covered[task] = record.end
                self._attempts[task] = record.attempt
            self._start = 0
        chunks: list[Chunk] = []
        budget = max_bytes
        for task in tasks_with_logs(self._logs_dir):
            if self._tasks is not None and task not in self._tasks:
                continue
            while budget > 0:
                offset = self._past_hole(task, self._covered.get(task, 0), sys.maxsize)
                data = self._pread(task, budget, offset)
                if not data:
                    break
                chunks.append(Chunk(task, self._attempts.get(task, 1), None, offset, data))
                self._covered[task] = offset + len(data)
                budget -= len(data)
        return chunks

    def close(self) -> None:
        for fd in (*self._files.values(), self._index):
            if fd >= 0:
                os.close(fd)
        self._files.clear()
        self._index = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_wanted(self, end: int, record: IndexRecord) -> bool:
        return (self._tasks is None or record.task in self._tasks) and (
            end >= self._lost_before.get(record.task, 0)
        )

    def _read_chunk(self, record: IndexRecord, within: int, budget: int) -> tuple[Chunk, bool]:
        """Return the next part of a record's chunk, if possible up to a newline, and whether it is the last part."""
        offset = self._past_hole(record.task, record.offset + within, record.end)
        left = record.end - offset
        data = self._pread(record.task, min(left, budget), offset)
        # No data: the task truncated its log, and the index does not contain that yet.
        is_complete = len(data) == left or not data
        if not is_complete and (newline := data.rfind(b"\n")) >= 0:
            data = data[: newline + 1]
        return Chunk(record.task, record.attempt, record.time, offset, data), is_complete

    def _past_hole(self, task: str, offset: int, end: int) -> int:
        """Return the offset from which to read on: after a hole, if enough of it has been read."""
        if self._with_holes or end - offset <= _HOLE_SHOWN:
            return offset
        fd = _open_log(self._logs_dir, task, self._files)
        if fd < 0:
            return offset
        end = max(offset, min(end, os.fstat(fd).st_size))
        return max(offset, after_hole(fd, max(0, offset - _HOLE_SHOWN), end))

    def _next_record(self) -> tuple[int, IndexRecord] | None:
        while not self._queue and self._fill():
            pass
        return self._queue[0] if self._queue else None

    def _consume(self, end: int, record: IndexRecord) -> None:
        self._queue.popleft()
        self._covered[record.task] = record.end
        self._attempts[record.task] = record.attempt
        self._position = Position(end)

    def _fill(self) -> bool:
        """Parse the next block of the index. False at its end."""
        if self._index < 0:
            self._index = open_if_exists(self._logs_dir / INDEX_NAME)
            if self._index < 0:
                return False
        size = min(_INDEX_BLOCK, written_bytes(self._index, self._read_to), self._end - self._read_to)
        block = os.pread(self._index, size, self._read_to)
        self._read_to += len(block)
        start = self._read_to - len(block) - len(self._torn)
        whole, newline, self._torn = (self._torn + block).rpartition(b"\n")
        self._queue.extend(parse_records(whole + newline, start))
        if len(self._torn) > LONGEST_RECORD:
            self._torn = b""
        return bool(block)

    def _pread(self, task: str, size: int, offset: int) -> bytes:
        fd = _open_log(self._logs_dir, task, self._files)
        return os.pread(fd, size, offset) if fd >= 0 else b""


def position_of_tail(logs_dir: Path, tasks: Collection[str] | None, lines: int) -> Position:
    """Return the position that the last `lines` lines of these tasks follow, without reading all logs.

    Only newlines count: incomplete lines follow in addition. After a task has truncated its log, more lines may follow.
    """
    index = logs_dir / INDEX_NAME
    size = index_size(index)
    window = _FIRST_TAIL_WINDOW
    files: dict[str, int] = {}
    try:
        while True:
            begin = max(0, size - window)
            # A window can begin inside a record; the rest of that record may parse as another one.
            records = list(read_records(index, begin, size))[1 if begin else 0 :]
            position = _position_before(records, logs_dir, tasks, lines, files, is_whole=not begin)
            if position is not None:
                return position
            if not begin:
                return START
            window *= 8
    finally:
        for fd in files.values():
            os.close(fd)


def position_of_time(logs_dir: Path, at: float) -> Position:
    """Return the position of the first record at or after `at` (Unix seconds), or the end of the index."""
    position = 0
    for end, record in read_records(logs_dir / INDEX_NAME):
        if record.time >= at:
            break
        position = end
    return Position(position)


def line_before(logs_dir: Path, task: str, offset: int) -> bytes:
    """Return the beginning of the line that continues at `offset`; empty if a line begins there."""
    pieces: list[bytes] = []
    fd = open_regular(logs_dir / log_name(task))
    try:
        end = offset
        while end > max(0, offset - MAX_LINE_BYTES):
            begin = max(0, end - _LOG_BLOCK)
            piece = os.pread(fd, end - begin, begin)
            newline = piece.rfind(b"\n")
            pieces.append(piece[newline + 1 :])
            if newline >= 0:
                break
            end = begin
    finally:
        os.close(fd)
    return b"".join(reversed(pieces))


def newlines_before(logs_dir: Path, task: str, offset: int) -> int:
    """Return the number of lines of a raw log that end before `offset`."""
    fd = open_regular(logs_dir / log_name(task))
    try:
        return _count_newlines(fd, 0, offset)
    finally:
        os.close(fd)


def _position_before(
    records: list[tuple[int, IndexRecord]],
    logs_dir: Path,
    tasks: Collection[str] | None,
    lines: int,
    files: dict[str, int],
    *,
    is_whole: bool,
) -> Position | None:
    """Return the position before the last `lines` newlines; None if these records have fewer. `is_whole`: no record
    comes before these."""
    count = 0
    for number in range(len(records) - 1, -1 if is_whole else 0, -1):
        record = records[number][1]
        if record.is_truncation:
            # Offsets before and after a truncation refer to different bytes.
            return START
        if tasks is None or record.task in tasks:
            fd = _open_log(logs_dir, record.task, files)
            count += _count_newlines(fd, record.offset, record.end) if fd >= 0 else 0
        if count > lines:
            within = _offset_after(files[record.task], record.offset, count - lines) - record.offset
            return Position(records[number - 1][0] if number else 0, within)
    return None


def _open_log(logs_dir: Path, task: str, files: dict[str, int]) -> int:
    """Return the descriptor of a task's log from `files`, where it is kept; -1 without a log."""
    fd = files.get(task, -1)
    if fd < 0:
        fd = open_if_exists(logs_dir / log_name(task))
        if fd >= 0:
            files[task] = fd
    return fd


def _offset_after(fd: int, offset: int, newlines: int) -> int:
    """Return the offset after that many newlines from `offset` on."""
    while data := os.pread(fd, _LOG_BLOCK, offset):
        count = data.count(b"\n")
        if count >= newlines:
            return offset + len(data) - len(data.split(b"\n", newlines)[-1])
        newlines -= count
        offset += len(data)
    return offset


def _count_newlines(fd: int, offset: int, end: int) -> int:
    count = 0
    offset = after_hole(fd, offset, end)
    while offset < end and (data := os.pread(fd, min(_LOG_BLOCK, end - offset), offset)):
        count += data.count(b"\n")
        offset = after_hole(fd, offset + len(data), end)
    return count
