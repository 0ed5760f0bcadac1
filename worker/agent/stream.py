"""The agent's inputs: the stream to its supervisor, signals, and the tasks' progress. They never block the agent."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
from collections.abc import Iterable
from typing import Any

from worker.agent.task_process import TaskProcess
from worker.wire.codec import encode
from worker.wire.messages import FromAgent, ToAgent, decode_order
from worker.wire.stream import Stream

READ_BYTES = 1 << 16
# While more waits for a supervisor that is stopped, its agent sends no progress and no samples.
_MOST_WAITING_BYTES = 1 << 20


class SupervisorStream:
    """Messages of the supervisor and to it, over two descriptors that it makes non-blocking."""

    def __init__(self, source: int, sink: int, poller: select.epoll) -> None:
        is_socket = stat.S_ISSOCK(os.fstat(source).st_mode)
        # A duplicate, because a socket object closes its descriptor.
        connected = socket.socket(fileno=os.dup(source)) if is_socket else None
        self._stream = Stream(source, sink, poller, connected)

    @property
    def due(self) -> float:
        """Infinite: only the stream of another host has heartbeats."""
        return float("inf")

    def advance(self, now: float) -> bool:
        """Do what is due. Return False if the supervisor has not answered for too long."""
        return True

    @property
    def is_full(self) -> bool:
        """True while the supervisor takes nothing. Send only what is needed, because all of it is kept."""
        return self._stream.waiting_bytes > _MOST_WAITING_BYTES

    def serves(self, fd: int) -> bool:
        return self._stream.serves(fd)

    def read(self, fd: int) -> tuple[Iterable[ToAgent], bool]:
        """Return (messages that have arrived, whether the other end is still open) for one of its descriptors.

        BadMessage."""
        lines, is_open = self._stream.read()
        return [decode_order(line) for line in lines], is_open

    def take_descriptors(self) -> list[int]:
        """The descriptors that came with a message, which the caller owns from now on."""
        return self._stream.take_descriptors()

    def send(self, message: FromAgent) -> None:
        self._stream.send(encode(message))

    def drop_output(self) -> None:
        """Drop everything sent from now on: the reader is gone, or must not see what happens during the exit."""
        self._stream.drop_output()

    def ignore_input(self) -> None:
        """Read nothing more: the writer sends what cannot be parsed."""
        self._stream.ignore_input()

    def close(self) -> None:
        """Write the rest; the descriptors are closed with the process."""
        self._stream.close()


_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ExitSignals:
    """SIGTERM, SIGINT, SIGHUP and SIGCHLD as a descriptor of `poller`. They have no other effect.

    In a step of Slurm, SIGTERM says that the step will end: seconds or minutes later it gets SIGKILL.
    """

    def __init__(self, poller: select.epoll) -> None:
        self._is_step = "SLURM_STEP_ID" in os.environ
        self._fd, signals_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(signals_in, warn_on_full_buffer=False)
        for number in (*_EXIT_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        poller.register(self._fd, select.EPOLLIN)

    def serves(self, fd: int) -> bool:
        return fd == self._fd

    def read(self) -> tuple[bool, bool]:
        """Return whether a signal that ends the agent has arrived, and one that announces the end of the step."""
        numbers = set(os.read(self._fd, 4096)) & set(_EXIT_SIGNALS)
        is_notice = self._is_step and signal.SIGTERM in numbers
        return bool(numbers - {signal.SIGTERM} if is_notice else numbers), is_notice


# -- progress of the tasks

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
    """Reads the tasks' progress pipes, which are registered with `poller`."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
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

    def read(self, task: TaskProcess) -> int:
        """Read once, so that other tasks are served in between, and return the number of bytes."""
        if task.progress_fd < 0:
            return 0
        try:
            data = os.read(task.progress_fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._poller.unregister(task.progress_fd)
            os.close(task.progress_fd)
            task.progress_fd = -1
            return 0
        *lines, rest = (task.progress_rest + data).split(b"\n")
        # Bounds the memory for a task that never ends its line.
        task.progress_rest = rest[-READ_BYTES:]
        for line in lines:
            self._keep(task, line)
        return len(data)

    def read_last(self, task: TaskProcess) -> None:
        """Read what the pipe holds, within a bound: the rest of the task's group may still write."""
        left = _LAST_BYTES
        while left > 0 and (taken := self.read(task)):
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
