"""The tasks' progress, as they write it into their pipes. Reading it never blocks the agent."""

from __future__ import annotations

import json
import os
import select
import signal
from typing import Any

from worker.agent.tasks import TaskProcess

_READ_BYTES = 1 << 16
# Read at most this much from the pipe of an exited task; a pipe holds less unless root enlarged it.
_LAST_BYTES = 1 << 20
# Interval between two forwards of a task's progress. The supervisor takes 0.1 ms for each: in a run of many tasks the
# interval is longer.
_INTERVAL_S = 0.1
_MOST_A_SECOND = 4000
# The same for progress marked `at_once`, so that a task that marks all of it costs little.
_AT_ONCE_S = 0.01
# Fields of one phase; they are dropped when the phase changes.
_OF_ONE_PHASE = ("step", "steps", "steps_per_s", "examples_per_s")


class ProgressInbox:
    """Owns the read ends of the tasks' progress pipes. `poller` wakes for them."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        self._tasks: dict[int, TaskProcess] = {}
        self._pending: dict[str, dict[str, Any]] = {}
        self._due = 0.0
        self._at_once_due = 0.0
        self._interval_s = _INTERVAL_S

    def set_tasks(self, count: int) -> None:
        """Set the number of tasks of the run, on all hosts."""
        self._interval_s = max(_INTERVAL_S, count / _MOST_A_SECOND)

    @property
    def due(self) -> float:
        """The time of the next take() (monotonic seconds)."""
        return self._due if self._pending else float("inf")

    def add(self, task: TaskProcess) -> None:
        self._tasks[task.progress_fd] = task
        self._poller.register(task.progress_fd, select.EPOLLIN)

    def remove(self, task: TaskProcess) -> None:
        """Close the pipe of a task, unless all its writers have closed it."""
        if task.progress_fd >= 0:
            del self._tasks[task.progress_fd]
            self._poller.unregister(task.progress_fd)
            os.close(task.progress_fd)
            task.progress_fd = -1

    def serves(self, fd: int) -> bool:
        """Whether this descriptor belongs to it."""
        return fd in self._tasks

    def serve(self, fd: int) -> None:
        """Read once, so that other tasks are served in between."""
        self._read(self._tasks[fd])

    def _read(self, task: TaskProcess) -> int:
        """Return the number of bytes."""
        if task.progress_fd < 0:
            return 0
        try:
            data = os.read(task.progress_fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.remove(task)
            return 0
        *lines, rest = (task.progress_rest + data).split(b"\n")
        # Bounds the memory for a task that never ends its line.
        task.progress_rest = rest[-_READ_BYTES:]
        for line in lines:
            self._keep(task, line)
        return len(data)

    def read_last(self, task: TaskProcess) -> None:
        """Read what the pipe holds, within a bound: the rest of the task's group may still write."""
        left = _LAST_BYTES
        while left > 0 and (taken := self._read(task)):
            left -= taken

    def take(self, now: float, at_once: bool = False) -> dict[str, str]:
        """Return {task: progress as JSON text} that is due. Text, so that invalid progress cannot break a message."""
        if now < self.due and not at_once:
            return {}
        pending, self._pending = self._pending, {}
        self._due = now + self._interval_s
        self._at_once_due = now + _AT_ONCE_S
        taken = {name: _text(progress) for name, progress in pending.items()}
        return {name: text for name, text in taken.items() if text}

    def _keep(self, task: TaskProcess, line: bytes) -> None:
        try:
            progress = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(progress, dict):
            return
        if progress.pop("sigterm", None) == "again":
            task.repeat_sigterm()
        if progress.pop("at_once", None) is True:
            self._due = min(self._due, self._at_once_due)
        if "stacks" in progress:
            # SIGURG only: a process without a handler ignores it.
            handles = progress.pop("stacks") == signal.SIGURG
            task.stacks_signal = int(signal.SIGURG) if handles else None
        if progress:
            pending = self._pending.setdefault(task.name, {})
            if progress.get("phase", pending.get("phase")) != pending.get("phase"):
                for name in _OF_ONE_PHASE:
                    pending.pop(name, None)
            pending.update(progress)


def _text(progress: dict[str, Any]) -> str:
    """Return the JSON text; empty if it is nested too deeply to be written."""
    try:
        return json.dumps(progress)
    except RecursionError:
        return ""
