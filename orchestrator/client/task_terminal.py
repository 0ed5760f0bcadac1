"""The terminal of a task: a pseudo-terminal between a task and the user's own terminal.

This process has one end, and the task's standard streams are the other one. The output of the
task is added to its log, and shown as it is while the user is connected.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import tty
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from orchestrator.client.follow import Follower
from orchestrator.client.view.output import Output
from orchestrator.core.state.state import TaskState
from orchestrator.links.client_link import Descriptor
from orchestrator.store.runs.reader import RunView

# As the agent and the bootstrap have them (worker/bootstrap/terminal.py).
_TERMINAL, _POST_MORTEM = "terminal", "post_mortem"
# Ctrl-], as in telnet: no debugger or shell uses it.
_LEAVE, LEAVE_KEY = b"\x1d", "Ctrl-]"
_READ_BYTES = 1 << 16
_INTERRUPT = b"\x03"
# Seconds for the user's terminal to take the last output.
LAST_DRAIN_S = 1.0


class TaskTerminal:
    """Owns both ends of the pseudo-terminal. Use it in a `with`, which restores the user's terminal."""

    def __init__(self, task: str | None, keyboard: int, out: Output) -> None:
        """`keyboard` and `out` are the user's terminal. Without a `task`, it is that of the first one that fails."""
        self.task = task or ""
        self._is_for_failure = task is None
        self._keyboard = keyboard
        self._out = out
        self._master, self._slave = pty.openpty()
        self._name = os.ttyname(self._slave)
        self._size = os.terminal_size((0, 0))
        self._modes: list[Any] | None = None
        # Whether the process that the user was connected to has closed the terminal.
        self.has_ended = False
        self._log: int | None = None
        self._log_of = ""
        self._line_end = b""
        self._typed = b""
        # The process that the user was connected to last. A task without a process has None.
        self._known_pid: int | None = 0
        # Until the user is connected to a new process, its output stays where it is.
        self._awaits = True
        os.set_blocking(self._master, False)
        termios.tcsetattr(self._slave, termios.TCSANOW, termios.tcgetattr(keyboard))
        self._fit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        for fd in (self._master, self._slave, self._log):
            if fd is not None:
                os.close(fd)

    @property
    def descriptors(self) -> Mapping[Descriptor, int]:
        """The descriptor that the request for the run passes to the task."""
        if self._is_for_failure:
            return {Descriptor(name=_POST_MORTEM): self._slave}
        return {Descriptor(name=_TERMINAL, task=self.task): self._slave}

    @property
    def greeting(self) -> str:
        """The message when the user is connected."""
        what = f"in pdb of {self.task}; q ends it" if self._is_for_failure else f"in {self.task}"
        return f"orch: this terminal is {what}; {LEAVE_KEY} leaves it, and other lines wait"

    @property
    def is_connected(self) -> bool:
        return self._modes is not None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The descriptors that serve() reads."""
        if self._awaits or not self._out.drain(0.0):
            return ()
        return (self._master, self._keyboard) if self.is_connected else (self._master,)

    def read_rest(self, run: RunView, follower: Follower) -> None:
        """Take the last output of the task, which has ended."""
        self._awaits = False
        while self.serve(run, follower) and _is_readable(self._master):
            pass

    def is_due(self, tasks: Mapping[str, TaskState]) -> bool:
        """Whether the task has a process that the user has not been connected to, or has failed."""
        if self._is_for_failure:
            failed = next((task for task in tasks.values() if _is_in_pdb(task)), None)
            self.task = self.task if failed is None else failed.name
        task = tasks.get(self.task)
        self._awaits = task is None or (not task.phase.is_end and task.pid != self._known_pid)
        if task is None or (self._is_for_failure and not _is_in_pdb(task)):
            return False
        return self._awaits and task.is_live

    def connect(self, tasks: Mapping[str, TaskState]) -> None:
        """Connect the user's terminal to the task: keys go to it, and its output is shown as it is."""
        self._known_pid = tasks[self.task].pid
        self._awaits = self.has_ended = False
        self._modes = termios.tcgetattr(self._keyboard)
        tty.setraw(self._keyboard, termios.TCSADRAIN)
        self._fit()

    def leave(self) -> None:
        """Give the user's terminal its modes back."""
        if self.is_connected:
            self._out.write(b"\r\n")
            self._restore()

    def serve(self, run: RunView, follower: Follower) -> bool:
        """Pass on what was typed and written. Return False when the user or the task has left."""
        if self._awaits:
            return True
        leaves = False
        if self.is_connected:
            self._fit()  # first: keys may be for the new size
            leaves = self._read_keys()
        data = self._read_output() if self._out.drain(0.0) else b""
        if data:
            appended = self._append(run, data)
            if self.is_connected:
                self._out.write(data)
                for start, end in appended:
                    follower.hide(self.task, start, end)
        return not leaves and data is not None

    def _read_keys(self) -> bool:
        """Send typed keys to the task. Return whether the key that leaves was among them."""
        leaves = b""
        # Read also while the task does not: the key that leaves may follow input that the task has not read.
        if _is_readable(self._keyboard):
            typed, leaves, rest = os.read(self._keyboard, _READ_BYTES).partition(_LEAVE)
            self._typed += typed
            if _INTERRUPT in rest:
                # It came with the key that leaves, so it is for this process.
                signal.raise_signal(signal.SIGINT)
        try:
            while self._typed:
                self._typed = self._typed[os.write(self._master, self._typed) :]
        except BlockingIOError:
            pass  # the task does not read
        return bool(leaves)

    def _read_output(self) -> bytes | None:
        """Return new output of the task; None when its last process has closed the terminal."""
        if not _is_readable(self._master):
            return b""
        try:
            return os.read(self._master, _READ_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        # The exit of the task has hung up all descriptors of the other end, also ours.
        os.close(self._slave)
        self._slave = os.open(self._name, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self.has_ended = True
        return None

    def _append(self, run: RunView, data: bytes) -> list[tuple[int, int]]:
        """Add output to the task's log, with line ends as the task wrote them. Return the ranges of bytes in the log:
        the task may write into it at the same time."""
        if self._log is None or self._log_of != self.task:
            if self._log is not None:
                os.close(self._log)
            self._log_of = self.task
            path = run.paths.task_log(self.task)
            with run.open_to_change() as directory, directory.sub(path.parent.name) as logs:
                self._log = logs.open_private(path.name, os.O_WRONLY | os.O_APPEND)
        data = self._line_end + data
        # The terminal's line end may arrive in two parts.
        self._line_end = b"\r" if data.endswith(b"\r") else b""
        data = data.removesuffix(b"\r").replace(b"\r\n", b"\n")
        appended = []
        while data:
            written = os.write(self._log, data)
            data = data[written:]
            end = os.lseek(self._log, 0, os.SEEK_CUR)
            appended.append((end - written, end))
        return appended

    def _fit(self) -> None:
        """Give the task's terminal the size of the user's. The kernel tells the task."""
        size = os.get_terminal_size(self._keyboard)
        if size != self._size:
            self._size = size
            packed = struct.pack("4H", size.lines or 24, size.columns or 80, 0, 0)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, packed)

    def _restore(self) -> None:
        modes, self._modes = self._modes, None
        if modes is not None:
            self._out.drain(LAST_DRAIN_S)
            with suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, modes)


def _is_in_pdb(task: TaskState) -> bool:
    debugger = task.progress.debugger
    return task.is_live and debugger is not None and debugger.state == _POST_MORTEM


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
