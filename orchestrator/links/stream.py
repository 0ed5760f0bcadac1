"""Lines over a stream to an agent. Neither reading nor writing blocks the supervisor."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.links.delivery import LineSplitter
from orchestrator.links.outbox import Outbox

_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class LinkSilent:
    """The agent of another host has confirmed nothing for this long. Its tasks may run on."""

    seconds: float


@dataclass(frozen=True)
class LinkBack:
    """The agent of a silent host answers again. No message was lost."""

    seconds: float


class Stream(Protocol):
    """Lines to and from an agent: on this machine (LocalStream), or on another host (ResumableStream)."""

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
    """The stream to an agent on this machine: a socket, which it owns."""

    due: float | None = None
    clock = (0.0, 0.0)
    lost_reason: str | None = None

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._lines = LineSplitter()
        # A common descriptor for both directions, so that the owner only waits until it is readable.
        self._poller = select.epoll()
        self._outbox = Outbox(stream, self._poller)

    def fileno(self) -> int:
        return self._poller.fileno()

    def close(self) -> None:
        self._outbox.drop()
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
        self._outbox.flush()
        try:
            data = self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        return self._lines.feed(data), bool(data)

    def pass_descriptors(self, descriptors: Sequence[int]) -> None:
        """Send copies of these, so that they arrive before the end of the next line."""
        self._outbox.pass_descriptors(descriptors)

    def send(self, line: bytes) -> bool:
        """Send a line, now or when the other end takes it. False if the other end is closed."""
        return self._outbox.send(line)
