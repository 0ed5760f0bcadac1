"""Lines over descriptors. Neither reading nor writing blocks."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence

from worker.wire.codec import BadMessage

# Longest line. The longest text in one is the exception of a task.
MAX_LINE_BYTES = 16 << 20
_READ_BYTES = 1 << 17
# Limit on descriptors that come with one line.
MOST_DESCRIPTORS = 16


class LineSplitter:
    """Cuts received bytes into lines. Takes time in proportion to the bytes, however long a line is."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    @property
    def rest(self) -> bytes:
        """The beginning of a line whose end has not arrived."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their ends. BadMessage for one that is too long."""
        first, *others = data.split(b"\n")
        lines = []
        self._keep(first)
        for piece in others:
            lines.append(self.rest)
            self._pieces, self._length = [], 0
            self._keep(piece)
        return lines

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._length += len(piece)
            if self._length > MAX_LINE_BYTES:
                raise BadMessage(f"a message of more than {MAX_LINE_BYTES >> 20} MiB")


class Stream:
    """Lines from `source` and to `sink`, which may be the same socket. The caller owns both.

    `poller` reports them when there is something to read, and while bytes wait, when there is room. Call read() then.
    """

    def __init__(
        self, source: int, sink: int, poller: select.epoll, connected: socket.socket | None = None
    ) -> None:
        """`connected`: the socket that `source` is. It can pass descriptors, too, and be closed in one direction."""
        self._source, self._sink = source, sink
        self._poller = poller
        self._lines = LineSplitter()
        self._outbox = bytearray()
        self._reads = self._has_reader = True
        self._must_half_close = False
        # Descriptors that came with lines; those that are sent with the next byte.
        self._received: list[int] = []
        self._passed: list[int] = []
        self._socket = connected
        self._watched: dict[int, int] = {}
        for fd in (source, sink):
            os.set_blocking(fd, False)
        self._watch()

    @property
    def rest(self) -> bytes:
        """The beginning of a line whose end has not arrived."""
        return self._lines.rest

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that could not be sent yet, because the other end does not read."""
        return len(self._outbox)

    @property
    def is_open(self) -> bool:
        """False if the other end of a socket is closed and everything from it was read."""
        try:
            return self._reads and (self._socket is None or self._socket.recv(1, socket.MSG_PEEK) != b"")
        except BlockingIOError:
            return True
        except OSError:
            return False

    def serves(self, fd: int) -> bool:
        return fd in (self._source, self._sink)

    def read(self) -> tuple[list[bytes], bool]:
        """Write what waits; return (lines that have arrived, whether the other end is open). BadMessage."""
        self.flush()
        if not self._reads:
            return [], True
        try:
            data = self._receive()
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        if not data:
            self.ignore_input()
            self.drop_output()
            return [], False
        return self._lines.feed(data), True

    def take_descriptors(self) -> list[int]:
        """The descriptors that have come with lines. The caller owns them from now on."""
        received, self._received = self._received, []
        return received

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send lines, now or when the other end takes them. False if it is gone.

        Copies of `descriptors` arrive before the end of the line."""
        if self._has_reader:
            self._passed += [os.dup(each) for each in descriptors]
            self._outbox += data
            self.flush()
        return self._has_reader

    def flush(self) -> None:
        """Write as much as the other end takes now."""
        try:
            while self._outbox:
                del self._outbox[: self._send_some()]
        except BlockingIOError:
            pass
        except OSError:  # the end of the input follows
            self._outbox.clear()
            self.drop_output()
        if self._must_half_close and not self._outbox and self._socket is not None:
            self._must_half_close = False
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:  # the other end is gone
                self.drop_output()
        self._watch()

    def half_close(self) -> None:
        """After what waits, send the end of the stream. The other end can still send. Only for sockets."""
        self._must_half_close = True
        self.flush()

    def drop_output(self) -> None:
        """Drop everything that is sent from now on."""
        self._has_reader = False
        while self._passed:
            os.close(self._passed.pop())

    def ignore_input(self) -> None:
        """Read nothing more."""
        self._reads = False
        self._watch()

    def close(self) -> None:
        """Write what the other end takes, and leave the descriptors to their owner."""
        self.flush()
        self._outbox.clear()
        self.drop_output()
        self.ignore_input()
        for fd in self.take_descriptors():
            os.close(fd)

    def _receive(self) -> bytes:
        if self._socket is None:
            return os.read(self._source, _READ_BYTES)
        data, received, _, _ = socket.recv_fds(self._socket, _READ_BYTES, MOST_DESCRIPTORS)
        self._received += received
        return bytes(data)

    def _send_some(self) -> int:
        if not self._passed or self._socket is None:
            return os.write(self._sink, self._outbox)
        sent = socket.send_fds(self._socket, [self._outbox], self._passed)
        while self._passed:
            os.close(self._passed.pop())
        return sent

    def _watch(self) -> None:
        wanted = {self._source: select.EPOLLIN} if self._reads else {}
        if self._outbox:
            wanted[self._sink] = wanted.get(self._sink, 0) | select.EPOLLOUT
        if wanted == self._watched:
            return
        for fd in self._watched.keys() - wanted.keys():
            self._poller.unregister(fd)
        for fd, events in wanted.items():
            if fd not in self._watched:
                self._poller.register(fd, events)
            elif events != self._watched[fd]:
                self._poller.modify(fd, events)
        self._watched = wanted
