"""Index what the tasks append to their raw logs. Only the supervisor does this."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

from orchestrator.store.directory import Directory
from orchestrator.store.logs.index import INDEX_NAME, IndexRecord, format_record, read_open_index, truncation
from orchestrator.store.open_files import AppendFile, after_hole
from worker.wire.growth import GrowthWatch

# Interval between two looks at growing logs. Shorter intervals only make more and smaller chunks.
MIN_INTERVAL_S = 0.01
# Interval between two looks without inotify.
POLL_INTERVAL_S = 0.05
# A prompt or progress bar without a newline is indexed after this time.
UNTERMINATED_S = 0.1
# Interval between attempts to write the index on a full disk.
RETRY_S = 1.0
# Bound for the bytes of one log that one call searches for a newline.
_SCAN_BYTES = 4 << 20
_BLOCK = 64 << 10
# Bound for the bytes that take_tails() reads of a log. A progress bar writes less between two calls.
TAIL_BYTES = 8 << 10


class LogTail(NamedTuple):
    """The last bytes indexed since the previous call. `missed` is True if there were more than these."""

    task: str
    attempt: int
    data: bytes
    missed: bool


@dataclass
class _Log:
    """A raw log. Offsets in bytes: `indexed` <= `scanned` <= `seen`, no newline between the first two.

    An unterminated line is indexed at `overdue_at` (monotonic seconds). The current process's output starts at
    `process_start`.
    """

    task: str
    attempt: int
    fd: int
    indexed: int = 0
    scanned: int = 0
    seen: int = 0
    tailed: int = 0
    process_start: int = 0
    overdue_at: float | None = None
    grown_at: float | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether there is more to index than the last look did."""
        return self.scanned < self.seen or self.overdue_at is not None

    def restart(self) -> None:
        self.indexed = self.scanned = self.seen = self.tailed = self.process_start = 0
        self.overdue_at = None


class LogStore:
    """The index of one run's logs, written by one thread. `now` is in monotonic seconds.

    The owner calls poll() when `fileno()` is readable or after the seconds that the last poll() returned. Idle logs
    cost nothing, and the work of one call is bounded.
    """

    def __init__(
        self,
        logs: Directory,
        wall_clock: Callable[[], float] = time.time,
        open_watch: Callable[[], GrowthWatch] = GrowthWatch,
    ) -> None:
        """Open the index in the directory `logs`, which is closed with this store, or continue it. OSError."""
        self._directory = logs
        self._wall_clock = wall_clock
        self._logs: dict[str, _Log] = {}
        # Logs that may grow at any time, and others that have something to index.
        self._watched: list[_Log] = []
        self._pending: dict[str, _Log] = {}
        # Logs that were indexed since take_tails().
        self._indexed: dict[str, _Log] = {}
        self._is_failure_reported = False
        self._not_before = 0.0
        index = logs.open_private(INDEX_NAME, os.O_RDWR | os.O_APPEND)
        self._covered = _resume_index(index)
        self._index = AppendFile(index, logs.path / INDEX_NAME)
        self._watch: GrowthWatch | None = None
        self._must_poll = False
        try:
            self._watch = open_watch()
        except OSError:
            self._must_poll = True

    def add(self, task: str, attempt: int, name: str, *, watched: bool = True) -> None:
        """Index the file `name` as the log of `task`. A second call assigns later output to its `attempt`.

        Without `watched`, note_growth() says when the log has grown, and it costs nothing in between."""
        known = self._logs.get(task)
        if known is not None:
            self._append(self._index_log(known, now=0.0, flush=True))
            known.attempt = attempt
            known.tailed = known.indexed
            return
        fd = self._directory.open_private(name, os.O_RDONLY)
        covered = self._covered.get(task, 0)
        log = self._logs[task] = _Log(task, attempt, fd, covered, covered, covered, covered)
        self._not_before = 0.0
        if not watched:
            self._pending[task] = log
            return
        self._watched.append(log)
        if self._watch is not None:
            try:
                self._watch.add(fd)
            except OSError:
                self._must_poll = True

    def note_growth(self, task: str) -> None:
        """Have the next poll() look at a log that is not watched."""
        log = self._logs.get(task)
        if log is not None:
            self._pending[task] = log

    def mark_process_start(self, task: str, now: float) -> None:
        """Note that a new process writes the task's log from here on."""
        log = self._logs.get(task)
        if log is not None:
            self._append(self._index_log(log, now, flush=True))
            log.process_start = log.seen

    def process_start(self, task: str) -> int:
        """Return the offset at which the output of the current process starts; 0 if it truncated the log since."""
        log = self._logs.get(task)
        return 0 if log is None else log.process_start

    def fileno(self) -> int:
        """Return a descriptor that is readable when a log has grown; -1 without inotify."""
        return -1 if self._watch is None else self._watch.fileno()

    def poll(self, now: float) -> float | None:
        """Index new output. Return the seconds until the next call; None: when `fileno()` is readable."""
        if now < self._not_before:
            return self._not_before - now
        if self._watch is not None:
            self._watch.mute()
        records: list[IndexRecord] = []
        logs = [*self._watched, *self._pending.values()]
        seen = sum(log.seen for log in logs)
        if not self._index.is_blocked:  # on a full disk, write the waiting records first
            for log in logs:
                records += self._index_log(log, now, flush=False)
            self._pending = {task: log for task, log in self._pending.items() if log.is_unfinished}
        if not self._append(records):
            return self._defer(now, RETRY_S)
        if any(log.scanned < log.seen for log in logs):
            return self._defer(now, 0.0)
        if records or seen != sum(log.seen for log in logs):
            return self._defer(now, MIN_INTERVAL_S)
        return self._wait_for_growth(now, logs)

    def last_growth(self) -> dict[str, float]:
        """Return {task: monotonic seconds of its last output}, without tasks that have written nothing."""
        return {log.task: log.grown_at for log in self._logs.values() if log.grown_at is not None}

    def take_failure(self) -> str | None:
        """Return why the index cannot be written, once. Writing is still retried."""
        if self._is_failure_reported or self._index.failure is None:
            return None
        self._is_failure_reported = True
        return self._index.failure

    def take_tails(self) -> list[LogTail]:
        """Return the end of each log that has grown since the last call, as far as it is indexed."""
        logs, self._indexed = self._indexed, {}
        return [_take_tail(log) for log in logs.values() if log.tailed < log.indexed]

    def finish(self, task: str, now: float) -> None:
        """Index all output of `task`, with its unterminated line. Later polls index later output."""
        log = self._logs.get(task)
        if log is not None:
            self._append(self._index_log(log, now, flush=True))

    def close(self) -> None:
        """Index all remaining output and close all files."""
        for log in self._logs.values():
            self._append(self._index_log(log, now=0.0, flush=True))
            os.close(log.fd)
        self._logs.clear()
        self._watched.clear()
        self._pending.clear()
        self._indexed.clear()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._index.close()
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _defer(self, now: float, delay: float) -> float:
        self._not_before = now + delay
        return delay

    def _wait_for_growth(self, now: float, logs: list[_Log]) -> float | None:
        if self._watch is not None:
            self._watch.rearm()
        if self._must_poll:
            return POLL_INTERVAL_S
        due = [log.overdue_at for log in logs if log.overdue_at is not None]
        return max(0.0, min(due) - now) if due else None

    def _index_log(self, log: _Log, now: float, *, flush: bool) -> list[IndexRecord]:
        """Return the records of the new output of a log."""
        records = []
        wall = self._wall_clock()
        size = os.fstat(log.fd).st_size
        # A truncated log that has already grown beyond its old size looks like normal growth.
        if size < log.seen:
            records.append(truncation(wall, log.task, log.attempt, log.seen))
            log.restart()
        if size != log.seen:
            log.grown_at = now
        log.seen = size
        end = _chunk_end(log, now, flush=flush)
        if end > log.indexed:
            records.append(IndexRecord(wall, log.task, log.attempt, log.indexed, end - log.indexed))
            log.indexed = end
            self._indexed[log.task] = log
        return records

    def _append(self, records: list[IndexRecord]) -> bool:
        return self._index.append(b"".join(map(format_record, records)))


def _take_tail(log: _Log) -> LogTail:
    start = max(log.tailed, log.indexed - TAIL_BYTES)
    missed = start > log.tailed
    log.tailed = log.indexed
    return LogTail(log.task, log.attempt, os.pread(log.fd, log.indexed - start, start), missed)


def _chunk_end(log: _Log, now: float, *, flush: bool) -> int:
    """Return the end of the log's next chunk: after the last newline, or after an overdue unterminated line."""
    if flush:
        log.scanned = log.seen
        log.overdue_at = None
        return log.seen
    log.scanned = after_hole(log.fd, log.scanned, log.seen)
    window = min(log.seen, log.scanned + _SCAN_BYTES)
    newline = _last_newline(log.fd, log.scanned, window)
    log.scanned = window
    end = log.indexed if newline is None else newline + 1
    if end == window:
        log.overdue_at = None
    elif newline is not None or log.overdue_at is None:
        log.overdue_at = now + UNTERMINATED_S
    elif now >= log.overdue_at and window == log.seen:
        log.overdue_at = None
        return window
    return end


def _last_newline(fd: int, start: int, end: int) -> int | None:
    while end > start:
        begin = max(start, end - _BLOCK)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found
        end = begin
    return None


def _resume_index(index: int) -> dict[str, int]:
    """Return the end of the indexed part of each log, and remove an incomplete last record."""
    size = os.fstat(index).st_size
    newline = _last_newline(index, 0, size)
    whole = 0 if newline is None else newline + 1
    if whole < size:
        os.ftruncate(index, whole)
    return {record.task: record.end for _, record in read_open_index(index, 0, whole)}
