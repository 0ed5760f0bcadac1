"""Sends over a socket without blocking, and keeps what it has not taken yet."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence


class Outbox:
    """`poller` reports the socket when it is readable, and while bytes wait, when it has room."""

    def __init__(self, stream: socket.socket, poller: select.epoll) -> None:
        self._stream = stream
        self._poller = poller
        self._waiting = bytearray()
        # Descriptors that are sent with the next byte.
        self._passed: list[int] = []
        self._awaits_room = False
        stream.setblocking(False)
        poller.register(stream, select.EPOLLIN)

    def send(self, data: bytes) -> bool:
        """Send now, or when the other end takes it. False if the other end is closed."""
        self._waiting += data
        return self.flush()

    def pass_descriptors(self, descriptors: Sequence[int]) -> None:
        """Send copies of these, so that they arrive before the end of the next line."""
        self._passed += [os.dup(descriptor) for descriptor in descriptors]

    def flush(self) -> bool:
        """Send what the other end takes now. False if it is closed."""
        is_open = True
        try:
            while self._waiting:
                del self._waiting[: self._send_some()]
        except BlockingIOError:
            pass
        except OSError:
            is_open = False
            self.drop()
        self._await_room(bool(self._waiting))
        return is_open

    def drop(self) -> None:
        """Give up what waits."""
        self._waiting.clear()
        self._close_passed()

    def _send_some(self) -> int:
        if not self._passed:
            return self._stream.send(self._waiting)
        sent = socket.send_fds(self._stream, [self._waiting], self._passed)
        self._close_passed()
        return sent

    def _close_passed(self) -> None:
        while self._passed:
            os.close(self._passed.pop())

    def _await_room(self, wanted: bool) -> None:
        if wanted != self._awaits_room:
            self._awaits_room = wanted
            self._poller.modify(self._stream, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)
