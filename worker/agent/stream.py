"""The agent's inputs: the stream to its supervisor, and signals. They never block the agent."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
from collections.abc import Iterable

from worker.wire.codec import encode
from worker.wire.messages import FromAgent, ToAgent, decode_order
from worker.wire.stream import Stream

# While more bytes wait for a stopped supervisor, its agent sends no progress and no samples.
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
        """True while the supervisor does not read. All messages are kept in memory, so send only what is needed."""
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
