"""A connection to a host: its opening, then lines in both directions; and what its process prints on stderr."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Callable
from typing import Protocol

from orchestrator.links.delivery import LineSplitter
from orchestrator.links.opening import Opening
from orchestrator.links.outbox import Outbox

_READ_BYTES = 1 << 18
# The end of stderr is kept, where programs say why they have failed.
_MOST_ERROR_BYTES = 4096


class ConnectionProcess(Protocol):
    """A process whose stdin and stdout are the other end of `stream`."""

    stream: socket.socket
    process: subprocess.Popen[bytes]

    def wait(self, timeout_s: float) -> bool: ...

    def messages(self) -> str | None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


# Starts a connection whose stderr is the given descriptor. EngineError.
Connect = Callable[[int], ConnectionProcess]


class HostConnection:
    """Owns the process of the connection and its stderr. Its calls never block.

    `is_reached`: the opening is over, and lines are the agent's. `began`: when (monotonic seconds). `turn`: the number
    under which it was offered to the agent, which uses the highest; 0 before. `offered`: when."""

    def __init__(self, connect: Connect, opening: Opening, poller: select.epoll, now: float) -> None:
        """EngineError if the connection cannot be started."""
        self.began = self.offered = now
        self.is_reached = False
        self.turn = 0
        self.opening = opening
        self._poller = poller
        self._lines = LineSplitter()
        self._error_bytes = b""
        self.errors, its = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(its, True)
        try:
            self._process = connect(its)
        except BaseException:
            os.close(self.errors)
            raise
        finally:
            os.close(its)
        self._stream = self._process.stream
        self.fd = self._stream.fileno()
        self._outbox = Outbox(self._stream, poller)
        poller.register(self.errors, select.EPOLLIN)
        self._send_opening()

    @property
    def exit_code(self) -> int | None:
        return self._process.process.returncode

    @property
    def printed(self) -> str:
        """The text that the host printed before its first answer, and on stderr."""
        self.read_errors()
        return "\n".join(
            filter(None, (self.opening.other_text, self._error_bytes.decode(errors="replace").strip()))
        )

    @property
    def messages(self) -> str | None:
        """The messages of its process itself; None if they are part of `printed`."""
        return self._process.messages()

    def read(self) -> tuple[list[bytes], bool]:
        """Return (lines of the agent, whether the connection is open). OpeningFailed, LineTooLong."""
        self._outbox.flush()
        try:
            data = self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        if not data:
            return [], False
        if not self.is_reached:
            rest = self.opening.feed(data)
            self._send_opening()
            if rest is None:
                return [], True
            self.is_reached = True
            data = rest
        return self._lines.feed(data), True

    def read_errors(self) -> None:
        """Read stderr, so that its writer never waits."""
        if self.errors < 0:
            return
        try:
            while data := os.read(self.errors, _MOST_ERROR_BYTES):
                self._error_bytes = (self._error_bytes + data)[-_MOST_ERROR_BYTES:]
        except BlockingIOError:
            return
        self._unregister(self.errors)

    def send(self, data: bytes) -> None:
        """Send now, or when the other end takes it. If it is gone, read() reports it."""
        self._outbox.send(data)

    def stop_reading(self) -> None:
        """The stream has ended; stderr is still read until close()."""
        self._unregister(self.fd)
        self._process.close()
        # Another connection may get the number.
        self.fd = -1

    def has_exited(self) -> bool:
        """Whether the process has exited."""
        return self._process.wait(0.0)

    def close(self) -> None:
        """Kill the process and close everything."""
        self._process.kill()
        self.read_errors()
        for fd in (self.fd, self.errors):
            self._unregister(fd)
        self._process.close()
        os.close(self.errors)
        self.fd = self.errors = -1

    def _send_opening(self) -> None:
        data, self.opening.to_send = self.opening.to_send, b""
        self.send(data)

    def _unregister(self, fd: int) -> None:
        try:
            self._poller.unregister(fd)
        except (OSError, ValueError):
            return
