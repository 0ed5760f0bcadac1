"""The index of a run's raw logs: one text record for each chunk, in order of arrival.

A record is `<unix time> <task> <attempt> <offset> <length>` and a newline. A length of -1 is a truncation: the task
truncated its own log (`> /dev/stdout`), `offset` is the number of bytes lost, and the file starts again at 0.
A last line without a newline was cut off by a crash and is ignored.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from orchestrator.store.directory import Directory
from orchestrator.store.files import open_if_exists
from orchestrator.store.open_files import written_bytes

INDEX_NAME = "index"
_TRUNCATION = -1
_BLOCK = 64 << 10
# Longer data without a newline is not a record.
LONGEST_RECORD = 4 << 10
_TRUNCATION_MARK = b" -1\n"
# The number of digits limits each value; 11 digits of seconds still convert to a date.
_RECORD = re.compile(
    rb"^(\d{1,11}\.\d{1,9}) ([A-Za-z0-9_.]{1,64}(?::\d{1,6})?) (\d{1,9}) (\d{1,18}) (-1|\d{1,18})\n",
    re.MULTILINE,
)
_LOG_NAME = re.compile(r"(?P<role>[A-Za-z0-9_.]+?)(?:-(?P<index>\d{1,6}))?\.log\Z")


class IndexRecord(NamedTuple):
    """A chunk of a task's raw log: `length` bytes at `offset`, seen at `time` (Unix seconds)."""

    time: float
    task: str
    attempt: int
    offset: int
    length: int

    @property
    def is_truncation(self) -> bool:
        return self.length == _TRUNCATION

    @property
    def lost(self) -> int:
        """The number of bytes that a truncation removed; 0 for a chunk."""
        return self.offset if self.is_truncation else 0

    @property
    def end(self) -> int:
        """The offset up to which the raw log is indexed after this record."""
        return 0 if self.is_truncation else self.offset + self.length


def truncation(time: float, task: str, attempt: int, lost: int) -> IndexRecord:
    return IndexRecord(time, task, attempt, lost, _TRUNCATION)


def format_record(record: IndexRecord) -> bytes:
    """Return the line of a record, with its newline."""
    text = f"{record.time:.6f} {record.task} {record.attempt} {record.offset} {record.length}\n"
    return text.encode("ascii")


def parse_records(data: bytes, start: int = 0) -> Iterator[tuple[int, IndexRecord]]:
    """Yield (index position after the record, record) for each complete record. `data` begins at `start`.

    Other lines are skipped.
    """
    for match in _RECORD.finditer(data):
        time, task, attempt, offset, length = match.groups()
        record = IndexRecord(float(time), task.decode("ascii"), int(attempt), int(offset), int(length))
        yield start + match.end(), record


def log_name(task: str) -> str:
    """Return the name of a task's raw log: `worker-0.log` for `worker:0`."""
    return task.replace(":", "-") + ".log"


def task_of_log(name: str) -> str | None:
    """Return the task whose raw log has this name; None if it is not the name of a log."""
    match = _LOG_NAME.match(name)
    if match is None:
        return None
    return match["role"] if match["index"] is None else f"{match['role']}:{match['index']}"


def task_order(task: str) -> tuple[str, int]:
    """Return a sort key that puts worker:2 before worker:10."""
    role, _, index = task.partition(":")
    return role, int(index or 0)


def tasks_with_logs(logs_dir: Path) -> list[str]:
    """Return the tasks with a raw log in `logs_dir`, in task order. Empty if it does not exist."""
    try:
        with Directory.at(logs_dir) as logs:
            names = logs.entries()
    except OSError:
        return []
    tasks = (task_of_log(name) for name in names)
    return sorted((task for task in tasks if task is not None), key=task_order)


def index_size(index: Path) -> int:
    """Return the bytes of the index; 0 without one."""
    fd = open_if_exists(index)
    if fd < 0:
        return 0
    try:
        return written_bytes(fd, 0)
    finally:
        os.close(fd)


def read_records(index: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[int, IndexRecord]]:
    """Yield the complete records of the index file in [start, end), like parse_records()."""
    fd = open_if_exists(index)
    if fd < 0:
        return
    try:
        yield from read_open_index(fd, start, end)
    finally:
        os.close(fd)


def read_open_index(fd: int, start: int = 0, end: int | None = None) -> Iterator[tuple[int, IndexRecord]]:
    """Like read_records(), for an open index."""
    rest = b""
    written = start + written_bytes(fd, start)
    end = written if end is None else min(end, written)
    while block := os.pread(fd, max(0, min(_BLOCK, end - start - len(rest))), start + len(rest)):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        yield from parse_records(whole + newline, start)
        start += len(whole) + len(newline)
        if len(rest) > LONGEST_RECORD:
            start += len(rest)
            rest = b""


def last_records(index: Path, end: int, tasks: Collection[str]) -> dict[str, IndexRecord]:
    """Return the last record of each of these tasks before the index position `end`."""
    window = _BLOCK
    while True:
        start = max(0, end - window)
        # A window can begin inside a record; the rest of that record may parse as another one.
        records = list(read_records(index, start, end))[1 if start else 0 :]
        found = {record.task: record for _, record in records if record.task in tasks}
        if start == 0 or len(found) == len(tasks):
            return found
        window *= 8


def last_truncations(index: Path) -> dict[str, int]:
    """Return the index position after the last truncation of each task that has one."""
    found: dict[str, int] = {}
    fd = open_if_exists(index)
    if fd < 0:
        return found
    try:
        with os.fdopen(fd, "rb") as file:
            size = written_bytes(fd, 0)
            if not size:
                return found
            data = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        with data:
            at = data.find(_TRUNCATION_MARK)
            while at >= 0:
                end = at + len(_TRUNCATION_MARK)
                for _, record in parse_records(data[data.rfind(b"\n", 0, at) + 1 : end]):
                    found[record.task] = end
                at = data.find(_TRUNCATION_MARK, end)
    except ValueError:  # the file was truncated in the meantime
        return {}
    return found
