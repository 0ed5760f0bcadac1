"""The stream to an agent on another host: it survives its connections.

The agent's end is worker/agent/resumable_stream.py. Every frame arrives once and in order (delivery.py), over as many
connections as it takes. Each end measures the time since it sent the newest ping that the other end has confirmed: a
cut in one direction counts too. After `link_timeout_s` the agent ends everything, and a little later this end gives the
host up.
"""

from __future__ import annotations

import math
import select
import time
from collections import deque
from collections.abc import Callable

from orchestrator.core.errors import EngineError
from orchestrator.links.bundle import bundle
from orchestrator.links.delivery import BadFrame, Delivery, own_frame, read_own_frame, seconds, split_frame
from orchestrator.links.host_connection import Connect, HostConnection
from orchestrator.links.opening import AgentGone, Opening, OpeningFailed, RemoteAgent
from orchestrator.links.start_queue import StartQueue
from orchestrator.links.stream import LinkBack, LinkSilent
from worker.wire.codec import encode
from worker.wire.messages import Leave

_PING_S = 1.0
# Without a confirmed ping for this long, the host counts as silent and other connections are tried.
_SILENT_S = 3.0
# The agent gives up first, so that its tasks have ended when this end reports them lost.
_LATER_S = 1.5
# Interval of attempts that fail at once. It doubles with each attempt that is under way: on a busy machine more of them
# would only slow each other down. An attempt may take longest on such a machine, or to a distant host.
_RETRY_S = 1.0
_ATTEMPT_S = 15.0
# For the first connection, which may have to wait for a busy host or a slow file system.
_FIRST_S = 30.0
# Interval in which a stream that waits for its turn looks at the queue.
_TURN_CHECK_S = 1.0
# A process whose stream has ended may take this long to exit and say why.
_EXIT_S = 1.0
_EXIT_CHECK_S = 0.02
# If this process itself was stopped for so long, that time does not count against a host.
_STALL_S = 1.0
# The most exact of so many last measurements of the agent's clock counts.
_CLOCK_SAMPLES = 8


class ResumableStream:
    """The stream to one agent. It opens its first connection when its turn in `starts` comes; close() closes all.

    `lost_reason`: why it has ended; None while it is open and after leave()."""

    def __init__(
        self,
        connect: Connect,
        agent: RemoteAgent,
        explain: Callable[[int | None, str, str | None], str],
        starts: StartQueue,
        explain_silence: Callable[[float, str], str] = "no answer within {:g} s {}".format,
    ) -> None:
        """`connect` starts a connection whose stderr is the given descriptor. `explain` says why one has ended, from
        its exit code, what the host has printed and the messages of its process. `explain_silence` says why the first
        one got no answer, from the seconds waited and what the host has printed. `starts`: the queue for the first
        connections of all streams. Later ones do not wait in it, because a lease is running."""
        self.lost_reason: str | None = None
        self._connect = connect
        self._agent = agent
        self._explain = explain
        self._explain_silence = explain_silence
        self._starts = starts
        self._poller = select.epoll()
        self._delivery = Delivery()
        self._received: list[bytes | LinkSilent | LinkBack] = []
        self._connections: dict[int, HostConnection] = {}
        self._current: HostConnection | None = None
        self._exiting: list[tuple[HostConnection, float]] = []
        self._last_error = ""
        self._is_leaving = self._has_left = self._is_silent = False
        self._was_reached = False
        self._resumes = 0
        # When the newest confirmed ping was sent; when the last ping was sent; the agent's newest ping.
        self._confirmed = self._pinged = time.monotonic()
        self._heard_ping: tuple[float, float] | None = None
        # The ping whose answer is confirmed at once, and not by the next ping: it renews the agent's lease.
        self._urgent_ping = -math.inf
        # (error, offset), and the best of them as (offset, error).
        self._clocks: deque[tuple[float, float]] = deque(maxlen=_CLOCK_SAMPLES)
        self._clock = (0.0, math.inf)
        self._retry_at = math.inf
        self._judged_from = 0.0
        # When the first connection was started.
        self._began = math.inf
        starts.enter(self, self._open_first, self._confirmed)
        self._promised = self._next_wake()

    def fileno(self) -> int:
        return self._poller.fileno()

    @property
    def is_open(self) -> bool:
        return self.lost_reason is None and not self._has_left

    @property
    def due(self) -> float:
        """When read() has something to do although nothing arrives (monotonic seconds)."""
        self._promised = self._next_wake()
        return self._promised if self.is_open else time.monotonic()

    @property
    def clock(self) -> tuple[float, float]:
        """(The agent's monotonic clock minus ours, the largest error of that), in seconds."""
        return self._clock

    def send(self, line: bytes) -> bool:
        """Send a line, now or over a later connection. False if the stream has ended."""
        if not self.is_open:
            return False
        frame = self._delivery.number(line)
        if self._current is not None:
            self._current.send(frame)
        return True

    def leave(self) -> None:
        """Order the agent to end everything and to exit."""
        if not self._is_leaving:
            self.send(encode(Leave()))
            self._is_leaving = True
        if not self._has_begun:
            self._end("")

    def close(self) -> None:
        """Close all connections. An agent that was not ordered to leave waits for `link_timeout_s`, then leaves."""
        if not self._poller.closed:
            self._starts.leave(self, time.monotonic())
            self._close_connections()
            self._poller.close()

    def read(self) -> tuple[list[bytes | LinkSilent | LinkBack], bool]:
        """Do what is due; return (what has arrived, whether the stream is open). BadFrame."""
        now = time.monotonic()
        if now - self._promised > _STALL_S:
            self._judged_from = now
        if self.is_open:
            for fd, _ in self._poller.poll(0):
                self._serve(fd, now)
        if self.is_open:
            self._advance(now)
        received, self._received = self._received, []
        return received, self.is_open

    # -- connections

    @property
    def _has_begun(self) -> bool:
        return self._began < math.inf

    def _open_first(self) -> None:
        self._began = time.monotonic()
        try:
            self._open_connection(self._began)
        except (EngineError, OSError) as error:
            self._end(str(error))

    def _open_connection(self, now: float) -> None:
        opening = Opening(bundle(), self._agent, is_first=not self._was_reached)
        connection = HostConnection(self._connect, opening, self._poller, now)
        self._connections[connection.fd] = connection

    def _serve(self, fd: int, now: float) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            for each in (*self._connections.values(), *(connection for connection, _ in self._exiting)):
                if each.errors == fd:
                    each.read_errors()
            return
        was_reached, before = connection.is_reached, self._delivery.heard
        try:
            lines, is_open = connection.read()
        except AgentGone as gone:
            self._end(str(gone))
            return
        except OpeningFailed as failure:
            self._last_error = str(failure)
            self._drop(connection, now)
            return
        if connection.is_reached and not was_reached:
            self._resumes += 1
            connection.turn, connection.offered = self._resumes, now
            self._starts.leave(self, now)
            connection.send(
                own_frame(
                    "resume", agent_id=self._agent.agent_id, turn=connection.turn, heard=self._delivery.heard
                )
            )
        for line in lines:
            self._take(connection, line, now)
        if self._delivery.heard != before:
            connection.send(own_frame("heard", heard=self._delivery.heard))
        if not is_open:
            connection.stop_reading()
            del self._connections[fd]
            self._exiting.append((connection, now + _EXIT_S))
            self._forget_current(connection, now)

    def _drop(self, connection: HostConnection, now: float) -> None:
        """Close a connection that is no longer needed."""
        del self._connections[connection.fd]
        connection.close()
        self._forget_current(connection, now)
        if not self._was_reached:
            self._end(self._last_error)

    def _forget_current(self, connection: HostConnection, now: float) -> None:
        if connection is self._current:
            self._current = None
            # The agent may use another connection already.
            is_resuming = any(other.turn for other in self._connections.values())
            self._retry_at = now + _RETRY_S if is_resuming else now

    def _close_connections(self) -> None:
        for connection in (*self._connections.values(), *(connection for connection, _ in self._exiting)):
            connection.close()
        self._connections.clear()
        self._exiting.clear()
        self._current = None

    def _end(self, reason: str) -> None:
        """End the stream: as ordered, or lost."""
        self._starts.leave(self, time.monotonic())
        self._close_connections()
        if self._is_leaving:
            self._has_left = True
        else:
            self.lost_reason = reason

    # -- frames

    def _take(self, connection: HostConnection, line: bytes, now: float) -> None:
        number, body = split_frame(line)
        if number:
            if connection is self._current and self._delivery.accept(number):
                self._received.append(body)
            return
        fields = read_own_frame(body)
        kind = fields.get("type")
        if kind == "resume":
            self._resume(connection, fields.get("heard"), now)
        elif connection is self._current:
            self._delivery.acknowledge(fields.get("heard"))
            if kind == "ping":
                self._take_ping(fields, now)

    def _resume(self, connection: HostConnection, heard: object, now: float) -> None:
        """Use this connection from now on, as the agent does, unless both use one of a later turn already."""
        self._delivery.acknowledge(heard)
        if self._current is not None and self._current.turn > connection.turn:
            return
        for other in [each for each in self._connections.values() if each.turn < connection.turn]:
            del self._connections[other.fd]
            other.close()
        self._current = connection
        self._was_reached = True
        for frame in self._delivery.unacknowledged():
            connection.send(frame)
        self._confirm(connection.offered, now)
        self._ping(connection, now)
        self._urgent_ping = now

    def _ping(self, connection: HostConnection, now: float) -> None:
        self._pinged = now
        echo, at = self._heard_ping or (None, now)
        connection.send(own_frame("ping", mono=now, echo=echo, held_s=now - at, heard=self._delivery.heard))

    def _take_ping(self, fields: dict[str, object], now: float) -> None:
        mono = seconds(fields.get("mono"))
        self._heard_ping = mono, now
        if fields.get("echo") is None:
            return
        sent, held_s = seconds(fields["echo"]), seconds(fields.get("held_s"))
        if sent > self._pinged:
            raise BadFrame("a ping is confirmed that was never sent")
        trip_s = now - sent - held_s
        if sent > self._confirmed and trip_s >= 0.0:
            # It was received at mono - held_s, on the way back for the other half of the trip.
            offset = (mono - held_s - sent + mono - now) / 2
            self._clocks.append((trip_s / 2, offset))
            error, offset = min(self._clocks)
            self._clock = offset, error
        self._confirm(sent, now)
        if self._current is not None and sent == self._urgent_ping:
            self._ping(self._current, now)

    def _confirm(self, sent: float, now: float) -> None:
        if sent <= self._confirmed:
            return
        if self._is_silent:
            self._is_silent = False
            self._received.append(LinkBack(now - self._confirmed))
        self._confirmed = sent

    # -- time

    def _advance(self, now: float) -> None:
        self._reap(now)
        if not self.is_open:
            return
        if not self._was_reached:
            self._starts.advance(now)
            if now - self._began >= _FIRST_S:
                printed = "\n".join(connection.printed for connection in self._connections.values())
                self._end(self._explain_silence(_FIRST_S, printed))
            return
        if self._current is not None and now - self._pinged >= _PING_S:
            self._ping(self._current, now)
        unheard_s = now - max(self._confirmed, self._judged_from)
        if unheard_s >= self._agent.link_timeout_s + _LATER_S:
            error = f" ({self._last_error})" if self._last_error and self._current is None else ""
            self._end(f"it has not answered for {now - self._confirmed:.0f} s{error}")
            return
        if unheard_s >= _SILENT_S and not self._is_silent:
            self._is_silent = True
            self._retry_at = min(self._retry_at, now)
            self._received.append(LinkSilent(now - self._confirmed))
        for connection in [*self._connections.values()]:
            if connection is not self._current and now - connection.began >= _ATTEMPT_S:
                self._last_error = connection.messages or connection.printed or self._last_error
                self._drop(connection, now)
        if self._wants_connection and now >= self._retry_at:
            self._retry_at = now + _RETRY_S * 2 ** sum(
                connection is not self._current for connection in self._connections.values()
            )
            try:
                self._open_connection(now)
            except (
                EngineError,
                OSError,
            ) as error:  # no free descriptor, or no memory for a process: tried again
                self._last_error = str(error)

    @property
    def _wants_connection(self) -> bool:
        is_cut = self._current is None or self._is_silent
        return self._was_reached and is_cut and not self._was_told_to_leave

    @property
    def _was_told_to_leave(self) -> bool:
        return self._is_leaving and self._delivery.is_all_acknowledged

    def _reap(self, now: float) -> None:
        """Read why connections have ended."""
        exiting, self._exiting = self._exiting, []
        for connection, deadline in exiting:
            if now < deadline and not connection.has_exited():
                self._exiting.append((connection, deadline))
                continue
            said = connection.printed, connection.messages
            connection.close()
            self._last_error = self._explain(connection.exit_code, *said)
        if self._exiting or not exiting:
            return
        if not self._was_reached or self._was_told_to_leave:
            self._end(self._last_error)

    def _next_wake(self) -> float:
        wakes = [time.monotonic() + _EXIT_CHECK_S] if self._exiting else []
        if not self._has_begun:
            return time.monotonic() + _TURN_CHECK_S
        if not self._was_reached:
            return min((self._began + _FIRST_S, *wakes))
        judged_from = max(self._confirmed, self._judged_from)
        wakes.append(judged_from + self._agent.link_timeout_s + _LATER_S)
        if self._current is not None:
            wakes.append(self._pinged + _PING_S)
        if not self._is_silent:
            wakes.append(judged_from + _SILENT_S)
        if self._wants_connection:
            wakes.append(self._retry_at)
        wakes += [
            connection.began + _ATTEMPT_S
            for connection in self._connections.values()
            if connection is not self._current
        ]
        return min(wakes)
