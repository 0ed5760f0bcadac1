"""Raw logs written by a test, and their index written by the real store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.store.directory import Directory
from orchestrator.store.logs.index import log_name
from orchestrator.store.logs.lines import Chunk
from orchestrator.store.logs.merge import LogReader
from orchestrator.store.logs.writer import LogStore


class Writer:
    """Writes logs of tasks and indexes them immediately. The test sets the clocks `now` and `wall`."""

    def __init__(self, logs_dir: Path) -> None:
        self.dir = logs_dir
        self.now = 100.0
        self.wall = 1_700_000_000.0
        self.store = LogStore(Directory.at(logs_dir), wall_clock=lambda: self.wall)
        self._attempts: dict[str, int] = {}

    def path(self, task: str) -> Path:
        return self.dir / log_name(task)

    def append(self, task: str, data: bytes) -> None:
        """Write without indexing."""
        if task not in self._attempts:
            self.begin(task, 1)
        with self.path(task).open("ab") as file:
            file.write(data)

    def begin(self, task: str, attempt: int) -> None:
        self._attempts[task] = attempt
        self.store.add(task, attempt, self.path(task).name)

    def write(self, task: str, data: bytes, after_s: float = 1.0) -> None:
        """Write, and poll the store `after_s` later."""
        self.append(task, data)
        self.poll(after_s)

    def poll(self, after_s: float = 1.0) -> float | None:
        """Advance the clocks, poll until the store has nothing left to do, and return its last answer."""
        self.now += after_s
        self.wall += after_s
        while (wait := self.store.poll(self.now)) == 0.0:
            pass
        return wait

    def close(self) -> None:
        self.store.close()


def read_all(reader: LogReader, max_bytes: int = 1 << 20) -> list[Chunk]:
    """Return all chunks in the index."""
    return _until_empty(lambda: reader.read(max_bytes))


def read_unindexed(reader: LogReader, max_bytes: int = 1 << 20) -> list[Chunk]:
    return _until_empty(lambda: reader.read_unindexed(max_bytes))


def _until_empty(read: Callable[[], list[Chunk]]) -> list[Chunk]:
    chunks: list[Chunk] = []
    while more := read():
        chunks += more
    return chunks
