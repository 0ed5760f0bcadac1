"""Follows the logs of a run's tasks: indexes them and reads progress from their lines."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Self

from orchestrator.core.progress.line_progress import ProgressReader
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.store.directory import Directory
from orchestrator.store.logs.writer import LogStore

# Shortest time between two looks for progress while logs grow, seconds; Keras draws one frame in it.
_LINES_INTERVAL_S = 0.05


class RunLogs:
    """The logs of one run. `due`: when index() must be called again (monotonic seconds; None: when `fileno()` is
    readable)."""

    def __init__(self, directory: Directory, throttle: ProgressThrottle) -> None:
        self.due: float | None = None
        self._store = LogStore(directory)
        self._throttle = throttle
        self._lines = ProgressReader()
        self._lines_due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def fileno(self) -> int:
        """Readable when a log has grown; -1 without inotify, when only `due` applies."""
        return self._store.fileno()

    def add(self, task: str, attempt: int, log: Path, *, watched: bool) -> None:
        """Without `watched`, note_growth() is called when the log has grown."""
        self._store.add(task, attempt, log.name, watched=watched)

    def note_growth(self, task: str) -> None:
        self._store.note_growth(task)
        self.due = min(self.due or math.inf, time.monotonic())

    def mark_process_start(self, task: str) -> None:
        """Note that from now on a new process of the task writes to its log."""
        self._store.mark_process_start(task, time.monotonic())

    def process_start(self, task: str) -> int:
        """The offset (bytes) at which the output of the task's current process begins."""
        return self._store.process_start(task)

    def quiet_s(self, mono: float) -> dict[str, float]:
        """{task: seconds since it last wrote}, without tasks that have never written."""
        self.index()
        return {task: mono - grown for task, grown in self._store.last_growth().items()}

    def index(self) -> None:
        mono = time.monotonic()
        delay_s = self._store.poll(mono)
        self.due = None if delay_s is None else mono + delay_s
        if delay_s is None or mono >= self._lines_due:
            self._lines_due = mono + _LINES_INTERVAL_S
            self._read_progress()

    def finish(self, task: str) -> None:
        """Index the rest of the log of a task that has exited."""
        self._store.finish(task, time.monotonic())
        self._read_progress()

    def take_failure(self) -> str | None:
        """Why the index cannot be written; returned once."""
        return self._store.take_failure()

    def _read_progress(self) -> None:
        mono = time.monotonic()
        for tail in self._store.take_tails():
            progress = self._lines.read(tail.task, tail.attempt, tail.data, mono, missed=tail.missed)
            if progress is not None:
                self._throttle.put_from_lines(tail.task, progress)
