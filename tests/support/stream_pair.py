"""A resumable stream with both ends in one process, over real sockets. The test is the network between them."""

from __future__ import annotations

import errno
import json
import select
import socket
import time
from typing import Any

from orchestrator.links.opening import RemoteAgent
from orchestrator.links.resumable_stream import ResumableStream
from orchestrator.links.start_queue import StartQueue
from worker.agent.resumable_stream import ResumableStream as AgentStream

_MOST_BYTES = 1 << 20


class _Process:
    returncode = 0


class _Connection:
    """A process of ssh, for the stream. The test holds the other end of its stream."""

    def __init__(self) -> None:
        self.stream, self.host_end = socket.socketpair()
        self.host_end.setblocking(False)
        self.process: Any = _Process()

    def wait(self, timeout_s: float) -> bool:
        return True

    def messages(self) -> str | None:
        return None

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        self.stream.close()


class _Way:
    """Bytes on their way in one direction."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.waiting = b""

    def carry(self, most: int) -> bool:
        """Carry at most so many bytes; False once the source is closed."""
        is_open = True
        if len(self.waiting) < most:
            try:
                data = self.source.recv(most - len(self.waiting))
                is_open = bool(data)
                self.waiting += data
            except BlockingIOError:
                pass
            except OSError:
                is_open = False
        try:
            self.waiting = self.waiting[self.sink.send(self.waiting[:most]) :] if self.waiting else b""
        except (BlockingIOError, OSError):
            pass
        return is_open


class Pair:
    """`ours` and `its`: the orchestrator's end and the agent's. turn() lets them work.

    `holds_openings`: new connections reach no agent. `has_no_descriptors`: none can be made."""

    def __init__(self, link_timeout_s: float = 60.0, starts: StartQueue | None = None) -> None:
        self.loses: set[str] = set()
        self.received_here: list[Any] = []
        self.received_there: list[dict[str, Any]] = []
        self.is_open = True
        self.holds_openings = self.has_no_descriptors = False
        self._connections: list[_Connection] = []
        self._ways: list[tuple[_Way, _Way]] = []
        self._openings: dict[_Connection, bytes] = {}
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("")
        listener.listen()
        self.address = listener.getsockname()
        host = RemoteAgent("s", "there", link_timeout_s)
        self.poller = select.epoll()
        self.its = AgentStream(listener, "s", link_timeout_s, self.poller)
        self.ours = ResumableStream(self._connect, host, lambda code, text, _: text, starts or StartQueue())

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self.ours.close()
        self.its.close()
        self.poller.close()
        for connection in self._connections:
            connection.close()
            connection.host_end.close()

    def turn(self, there: int = _MOST_BYTES, back: int = _MOST_BYTES) -> None:
        """Let both ends work once; carry at most so many bytes in each direction."""
        lines, self.is_open = self.ours.read()
        self.received_here += lines
        for connection in [] if self.holds_openings else [*self._openings]:
            self._answer_opening(connection)
        for ways in [*self._ways]:
            carried = [
                way.carry(most)
                for way, most, name in zip(ways, (there, back), ("there", "back"), strict=True)
                if name not in self.loses
            ]
            if not all(carried):
                self._close(ways)
        for fd, _ in self.poller.poll(0):
            if self.its.serves(fd):
                messages, _ = self.its.read(fd)
                self.received_there += messages
        self.its.flush()

    def cut(self) -> None:
        """Break all connections, and lose the bytes on their way."""
        for ways in [*self._ways]:
            self._close(ways)

    def stranger(self) -> socket.socket:
        """Connect to the agent as another relay."""
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(self.address)
        stream.setblocking(False)
        return stream

    def _connect(self, errors: int) -> _Connection:
        if self.has_no_descriptors:
            raise OSError(errno.EMFILE, "Too many open files")
        connection = _Connection()
        self._connections.append(connection)
        self._openings[connection] = b""
        return connection

    def _answer_opening(self, connection: _Connection) -> None:
        """Play stage 1 on a host that has the bundle."""
        try:
            self._openings[connection] += connection.host_end.recv(_MOST_BYTES)
        except OSError:
            return
        lines = self._openings[connection].split(b"\n")
        if len(lines) < 3:
            return
        del self._openings[connection]
        mark = json.loads(lines[1])["mark"].encode()
        connection.host_end.send(b"Welcome!\n" + mark + b'{"state": "ready"}\n')
        relay = self.stranger()
        self._ways.append((_Way(connection.host_end, relay), _Way(relay, connection.host_end)))

    def _close(self, ways: tuple[_Way, _Way]) -> None:
        self._ways.remove(ways)
        for way in ways:
            way.source.close()


def until(pair: Pair, condition: Any, timeout_s: float = 60.0) -> None:
    """Let both ends work until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "still not so"
        pair.turn()
        select.select([pair.ours, pair.poller], [], [], 0.005)
