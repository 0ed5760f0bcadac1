"""The agent's end of a stream that survives its connections; orchestrator/links/resumable_stream.py is the other end.

Relays of this host connect to a unix socket, one after the other. The newest that knows the id of the agent takes over.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from os import geteuid
from typing import Any

from worker.agent.delivery import (
    BadFrame,
    Delivery,
    LineSplitter,
    own_frame,
    read_own_frame,
    seconds,
    split_frame,
)
from worker.agent.stream import READ_BYTES
from worker.wire.codec import encode
from worker.wire.messages import FromAgent, ToAgent, decode_order

_PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: man 7 unix
# Limit on connections that have not named the agent yet. The oldest is closed when a new one exceeds it.
_MOST_UNNAMED = 4
# The first connection may have to wait for a busy host.
_FIRST_LEASE_S = 30.0


class _Relay:
    """A connection to the orchestrator: received lines, and bytes that it has not taken yet."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self.stream = stream
        self.lines = LineSplitter()
        self.outbox = bytearray()
        self.awaits_room = False


class ResumableStream:
    """Has the interface of Stream. `lease_ends`: when the orchestrator counts as gone (monotonic seconds)."""

    def __init__(
        self, listener: socket.socket, agent_id: str, link_timeout_s: float, poller: select.epoll
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._agent_id = agent_id
        self._link_timeout_s = link_timeout_s
        self._poller = poller
        self._delivery = Delivery()
        self._relays: dict[int, _Relay] = {}
        self._current: _Relay | None = None
        self._turn = 0
        self._has_reader = self._reads = True
        self._sent_ping = time.monotonic()
        self._confirmed: float | None = None
        self.lease_ends = self._sent_ping + max(_FIRST_LEASE_S, link_timeout_s)
        poller.register(listener, select.EPOLLIN)

    @property
    def last(self) -> int:
        """The number of the newest frame."""
        return self._delivery.last

    @property
    def acknowledged(self) -> int:
        """The number up to which the orchestrator has received all frames."""
        return self._delivery.acknowledged

    @property
    def waiting_bytes(self) -> int | None:
        """How much the present connection has not taken yet; None without one."""
        return None if self._current is None else len(self._current.outbox)

    def serves(self, fd: int) -> bool:
        return fd == self._listener.fileno() or fd in self._relays

    def read(self, fd: int) -> tuple[list[ToAgent], bool]:
        """Return (messages that have arrived, True) for one of the descriptors."""
        if fd == self._listener.fileno():
            self._accept()
            return [], True
        return self._read(self._relays[fd]), True

    def send(self, message: FromAgent) -> None:
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        if self._has_reader:
            frame = self._delivery.number(line)
            if self._current is not None:
                self._current.outbox += frame

    def drop_output(self) -> None:
        self._has_reader = False

    def ignore_input(self) -> None:
        self._reads = False

    def flush(self) -> None:
        """Write as much as the relay takes now."""
        for relay in [*self._relays.values()]:
            self._flush(relay)

    def close(self) -> None:
        # The listener first: a relay looks whether the agent is still there.
        self._listener.close()
        for relay in [*self._relays.values()]:
            self._close(relay)

    # -- connections

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:
            return
        credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        if _PEER_CREDENTIALS.unpack(credentials)[1] != geteuid():
            stream.close()
            return
        unnamed = [relay for relay in self._relays.values() if relay is not self._current]
        if len(unnamed) >= _MOST_UNNAMED:
            self._close(unnamed[0])
        self._relays[stream.fileno()] = _Relay(stream)
        self._poller.register(stream, select.EPOLLIN)

    def _close(self, relay: _Relay) -> None:
        self._relays.pop(relay.stream.fileno(), None)
        if relay is self._current:
            self._current = None
        relay.stream.close()

    def _flush(self, relay: _Relay) -> None:
        try:
            while relay.outbox:
                del relay.outbox[: relay.stream.send(relay.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            relay.outbox.clear()  # the end of file follows
        wanted = bool(relay.outbox)
        if wanted != relay.awaits_room:
            relay.awaits_room = wanted
            self._poller.modify(relay.stream, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    # -- frames

    def _read(self, relay: _Relay) -> list[ToAgent]:
        try:
            data = relay.stream.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._close(relay)
            if self._confirmed is None:
                # orch makes no second connection before the first has reached the agent: orch is gone.
                self.lease_ends = time.monotonic()
            return []
        messages: list[ToAgent] = []
        before = self._delivery.heard
        try:
            for line in relay.lines.feed(data):
                number, body = split_frame(line)
                if number == 0:
                    self._take(relay, read_own_frame(body))
                elif relay is self._current and self._delivery.accept(number) and self._reads:
                    messages.append(decode_order(body))
        except BadFrame:
            # The stream continues: the orchestrator sends these frames again over its next connection.
            self._close(relay)
            return messages
        if self._delivery.heard != before:
            relay.outbox += own_frame("heard", heard=self._delivery.heard)
        return messages

    def _take(self, relay: _Relay, fields: dict[str, Any]) -> None:
        kind = fields.get("type")
        if kind == "resume":
            if fields.get("agent_id") != self._agent_id:
                raise BadFrame("a connection to another agent")
            turn = fields.get("turn")
            if not isinstance(turn, int) or turn <= self._turn:
                raise BadFrame("a connection that was opened before the present one")
            self._turn = turn
            self._delivery.acknowledge(fields.get("heard"))
            if self._current is not None and relay is not self._current:
                self._close(self._current)
            self._current = relay
            if self._confirmed is None:
                self._renew_lease(time.monotonic())
            relay.outbox += own_frame("resume", heard=self._delivery.heard)
            relay.outbox += b"".join(self._delivery.unacknowledged())
        elif relay is self._current:
            self._delivery.acknowledge(fields.get("heard"))
            if kind == "ping":
                self._answer(relay, fields)

    def _answer(self, relay: _Relay, fields: dict[str, Any]) -> None:
        """Answer a ping at once. A ping of ours that it confirms renews the lease."""
        echo = seconds(fields.get("mono"))
        if fields.get("echo") is not None:
            sent = seconds(fields["echo"])
            if sent > self._sent_ping:
                raise BadFrame("a ping is confirmed that was never sent")
            if self._confirmed is None or sent > self._confirmed:
                self._renew_lease(sent)
        self._sent_ping = time.monotonic()
        relay.outbox += own_frame(
            "ping", mono=self._sent_ping, echo=echo, held_s=0.0, heard=self._delivery.heard
        )

    def _renew_lease(self, confirmed: float) -> None:
        self._confirmed = confirmed
        self.lease_ends = confirmed + self._link_timeout_s
