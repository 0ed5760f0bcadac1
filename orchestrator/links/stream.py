"""Lines over a stream to an agent. Neither reading nor writing blocks the supervisor."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.links.delivery import LineSplitter

_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class LinkSilent:
    """The agent of another host has confirmed nothing for this long. Its tasks may run on."""

    seconds: float


@dataclass(frozen=True)
class LinkBack:
    """The agent of a silent host is heard again. No message was lost."""

    seconds: float


class Stream(Protocol):
    """Lines to and from an agent: on this machine (LocalStream), or on another host (Session)."""

    @property
    def due(self) -> float | None: ...

    @property
    def clock(self) -> tuple[float, float]: ...

    @property
    def lost_reason(self) -> str | None: ...

    @property
    def is_open(self) -> bool: ...

    def fileno(self) -> int: ...

    def read(self) -> tuple[Sequence[bytes | LinkSilent | LinkBack], bool]: ...

    def send(self, line: bytes) -> bool: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


class LocalStream:
    """The stream to an agent on this machine: a socket, and the lines that it has not taken yet. Owns the socket."""

    due: float | None = None
    clock = (0.0, 0.0)
    lost_reason: str | None = None

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._lines = LineSplitter()
        self._outbox = bytearray()
        # Sent with the next byte.
        self._passed: list[int] = []
        self._awaits_room = False
        # A common descriptor for both directions, so that the owner only waits until it is readable.
        self._poller = select.epoll()
        self._poller.register(stream, select.EPOLLIN)

    def fileno(self) -> int:
        return self._poller.fileno()

    def close(self) -> None:
        self._drop_passed()
        self._poller.close()
        self._stream.close()

    def leave(self) -> None:
        """The end of the stream is enough for an agent on this machine."""
        self.close()

    @property
    def is_open(self) -> bool:
        """False if the other end is closed and everything from it was read."""
        try:
            return self._stream.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def read(self) -> tuple[list[bytes], bool]:
        """Write what waits; return (lines that have arrived, whether the stream is open). ValueError: LineTooLong."""
        self._flush()
        try:
            data = self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        return self._lines.feed(data), bool(data)

    def pass_descriptors(self, descriptors: Sequence[int]) -> None:
        """Send copies of these, so that they arrive before the end of the next line."""
        self._passed += [os.dup(descriptor) for descriptor in descriptors]

    def send(self, line: bytes) -> bool:
        """Send a line, now or when the other end takes it. False if the other end is closed."""
        self._outbox += line
        return self._flush()

    def _flush(self) -> bool:
        try:
            while self._outbox:
                del self._outbox[: self._send_some()]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()
            self._drop_passed()
            self._await_room(False)
            return False
        self._await_room(bool(self._outbox))
        return True

    def _send_some(self) -> int:
        if not self._passed:
            return self._stream.send(self._outbox)
        sent = socket.send_fds(self._stream, [self._outbox], self._passed)
        self._drop_passed()
        return sent

    def _drop_passed(self) -> None:
        while self._passed:
            os.close(self._passed.pop())

    def _await_room(self, wanted: bool) -> None:
        if wanted != self._awaits_room:
            self._awaits_room = wanted
            self._poller.modify(self._stream, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)
