"""The link to the agent of another host: its opening, its heartbeats, and why it ended.

A lost link is a lost host. The agent ends everything if it has heard nothing for the link timeout; a little later this
end gives the host up.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable

from orchestrator.core.errors import EngineError
from orchestrator.core.text.clean import one_line
from orchestrator.engines import Connection, Engine
from orchestrator.links.agent_link import TICK_S, AgentLink, AgentMessage, LinkBack, LinkSilent
from orchestrator.links.bundle import bundle
from orchestrator.links.opening import ENDLESS, Opening, OpeningFailed
from orchestrator.links.start_queue import StartQueue
from worker.wire.checks import Checked
from worker.wire.codec import BadMessage
from worker.wire.lease import Lease
from worker.wire.messages import Credit, FromAgent, Log, Ping
from worker.wire.stream import Stream

_PING_S = 1.0
# Without a confirmed ping for this long, the host counts as silent.
_SILENT_S = 3.0
# The agent gives up first, so that its tasks have ended when this end reports them lost.
_LATER_S = 1.5
# Longest wait for the agent's first message (seconds): a host may be busy, or its file system slow.
_FIRST_S = 30.0
# A process whose stream has ended may take this long to exit and say why.
_EXIT_S = 2.0
# If this process itself was stopped for so long, that time does not count against a host.
_STALL_S = 1.0
# After so many log bytes, report that they were read: at most half of the least window in worker/agent/log_shipping.py.
_CREDIT_STEP_BYTES = 1 << 10
# The end of stderr is kept, where programs say why they have failed. Read at once: what a pipe holds.
_MOST_ERROR_BYTES, _PIPE_BYTES = 4096, 1 << 16
# Limit on what is kept of a host before its run begins.
_MOST_AHEAD_BYTES = 4 << 20
_LONGEST_QUOTE = 200
_GONE = "the agent has ended there: it was killed, or it crashed"


class HostLink(AgentLink):
    """Opens its connection when its turn in `starts` comes. `lost_reason`: why it has ended; None after leave()."""

    def __init__(
        self,
        engine: Engine,
        host: str,
        connect: Callable[[int], Connection],
        opening: Opening,
        link_timeout_s: float,
        starts: StartQueue,
    ) -> None:
        """`connect` starts a connection whose stderr is the given descriptor; `engine` explains its end."""
        self.lost_reason = None
        self.clock = (0.0, math.inf)
        self._is_open = True
        self._poller = select.epoll()
        self._stream = self._socket = None
        self._awaited_run = None
        self._engine, self._host = engine, host
        self._connect = connect
        self._opening = opening
        self._link_timeout_s = link_timeout_s
        self._starts = starts
        self._connection: Connection | None = None
        # Lines that were sent before the connection was opened.
        self._early: list[bytes] = []
        self._errors, self._error_bytes = -1, b""
        self._began = math.inf
        self._is_ready = self._is_leaving = self._is_silent = False
        self._lease: Lease | None = None
        self._ticked = self._judged_from = time.monotonic()
        self._ping_at = 0.0
        self._reports: list[AgentMessage] = []
        self._read_bytes = self._kept_bytes = 0
        # While its process is exiting.
        self._exit_by = math.inf
        self._exit_fd = -1
        starts.enter(self, self._open, self._ticked)

    def send_line(self, line: bytes, descriptors: object = ()) -> bool:
        if self._is_open and self._began == math.inf:
            self._early.append(line)
            return True
        return super().send_line(line)

    def leave(self) -> None:
        self._is_leaving = True
        if self._began == math.inf:
            self._end(None)
        super().leave()

    def close(self) -> None:
        """Kill the process of the connection and close everything. The agent ends everything when it notices."""
        self._starts.leave(self, time.monotonic())
        self._is_open = False
        if self._connection is not None:
            self._connection.kill()
            self._connection = None
        self._close_descriptors()
        super().close()

    def _close_descriptors(self) -> None:
        """Close all descriptors that are read."""
        for fd in (self._errors, self._exit_fd):
            if fd >= 0:
                os.close(fd)
        self._errors = self._exit_fd = -1
        if self._stream is not None:
            self._stream.close()

    def read(self) -> tuple[list[AgentMessage], bool]:
        self._read_errors()
        earlier, self._reports = self._reports, []
        messages, _ = super().read()
        if self._read_bytes >= _CREDIT_STEP_BYTES and not self._is_behind:
            self.send(Credit(self._read_bytes))
            self._read_bytes = 0
        self._look_at_exit(time.monotonic())
        reports, self._reports = self._reports, []
        return [*earlier, *messages, *reports], self._is_open

    @property
    def is_ready(self) -> bool:
        """Whether the host's agent has been reached."""
        return self._is_ready

    def read_ahead(self) -> tuple[list[AgentMessage], bool]:
        """Read before there is a run. All messages except answers are returned again by the next read(), which tick()
        requests."""
        kept, self._reports = self._reports, []
        messages, _ = self.read()
        self._reports = [*kept, *(each for each in messages if not isinstance(each, Checked))]
        if self._kept_bytes > _MOST_AHEAD_BYTES:
            self._end("it sends messages without end before the run has begun")
        return messages, self._is_open

    def tick(self, now: float) -> bool:
        if now - self._ticked > TICK_S + _STALL_S:
            self._judged_from = now
        self._ticked = now
        self._starts.advance(now)
        if not self._is_open:
            return True
        if self._exit_by < math.inf:
            self._look_at_exit(now)
        elif self._lease is not None:
            self._judge(self._lease, now)
        elif now - self._began >= _FIRST_S:
            self._end(self._short(self._engine.explain_silence(self._host, _FIRST_S, self._printed)))
        return bool(self._reports) or not self._is_open

    # -- the connection

    def _open(self) -> None:
        self._began = time.monotonic()
        self._errors, its = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(its, True)
        try:
            self._connection = self._connect(its)
        except (EngineError, OSError) as error:
            self._end(str(error))
            return
        finally:
            os.close(its)
        self._poller.register(self._errors, select.EPOLLIN)
        self._socket = self._connection.stream
        fd = self._socket.fileno()
        self._stream = Stream(fd, fd, self._poller, self._socket)
        for data in (self._opening.header, bundle().data, *self._early):
            self._stream.send(data)
        self._early.clear()

    def _why_unreadable(self, error: BadMessage) -> str:
        return super()._why_unreadable(error) if self._is_ready else ENDLESS

    def _take_line(self, line: bytes, messages: list[AgentMessage]) -> None:
        if self._is_ready:
            known = len(messages)
            super()._take_line(line, messages)
            self._kept_bytes += len(line) if len(messages) > known else 0
            return
        try:
            self._is_ready = self._opening.take(line)
        except OpeningFailed as failure:
            self._end(str(failure))
        if self._is_ready:
            self._starts.leave(self, time.monotonic())
            self._read_errors()
            self._error_bytes = b""  # of the login; the guard prints there why the agent has crashed

    def _take_end(self) -> None:
        """Wait until the process has exited and has said why."""
        assert self._connection is not None
        self._exit_by = time.monotonic() + _EXIT_S
        try:
            self._exit_fd = os.pidfd_open(self._connection.process.pid)
        except OSError:  # it is reaped, or this container refuses it
            return
        self._poller.register(self._exit_fd, select.EPOLLIN)

    def _look_at_exit(self, now: float) -> None:
        if self._connection is None or not self._is_open or self._exit_by == math.inf:
            return
        if self._connection.wait(0.0) or now >= self._exit_by:
            self._read_errors()
            self._end(self._explanation(self._connection))

    def _explanation(self, connection: Connection) -> str:
        code, messages = connection.process.returncode, connection.messages()
        if self._is_ready and (code == 0 or (code is not None and code > 0 and messages == "")):
            said = one_line(self._error_bytes.decode(errors="replace").strip().rpartition("\n")[2])
            return f"{_GONE} ({said[:_LONGEST_QUOTE]})" if said else _GONE
        return self._short(self._engine.explain(self._host, code, self._printed, messages))

    def _short(self, reason: str) -> str:
        """Events and messages name the host themselves."""
        return reason.removeprefix(f"{self._host}: ")

    @property
    def _printed(self) -> str:
        """The text that the host has printed before its answer, and on stderr."""
        self._read_errors()
        if self._stream is not None and not self._is_ready:
            self._opening.keep_other(self._stream.rest)
        said = self._error_bytes.decode(errors="replace").strip()
        return "\n".join(filter(None, (self._opening.other_text, said)))

    def _read_errors(self) -> None:
        """Read what stderr holds now, so that its writer never waits, nor this process for one that never stops."""
        if self._errors < 0:
            return
        try:
            data = os.read(self._errors, _PIPE_BYTES)
        except BlockingIOError:
            return
        self._error_bytes = (self._error_bytes + data)[-_MOST_ERROR_BYTES:]
        if not data:
            os.close(self._errors)
            self._errors = -1

    def _end(self, reason: str | None) -> None:
        self._starts.leave(self, time.monotonic())
        self._close_descriptors()
        super()._end(None if self._is_leaving else reason)

    # -- heartbeats

    @property
    def _is_behind(self) -> bool:
        """Whether earlier messages wait because the host does not read.

        No ping or credit is added to them: a host that asked for more and more would fill the memory, and one that
        confirmed pings without reading them would never be lost."""
        return self._stream is not None and self._stream.waiting_bytes > 0

    def _take(self, message: FromAgent, messages: list[AgentMessage]) -> None:
        now = time.monotonic()
        if self._lease is None:
            self._lease = Lease(now)
            self.send(self._lease.ping(now))
        if isinstance(message, Ping):
            self._take_ping(self._lease, message, now)
            return
        if isinstance(message, Log):
            self._read_bytes += len(message.data)
        super()._take(message, messages)

    def _take_ping(self, lease: Lease, ping: Ping, now: float) -> None:
        """Confirm the answer to a ping of ours at once: it renews the agent's lease."""
        silent_s = now - lease.confirmed
        if not lease.take(ping, now):
            return
        self.clock = lease.clock
        if not self._is_behind:
            self.send(lease.ping(now))
        if self._is_silent:
            self._is_silent = False
            self._reports.append(LinkBack(silent_s))

    def _judge(self, lease: Lease, now: float) -> None:
        unheard_s = now - max(lease.confirmed, self._judged_from)
        if unheard_s >= self._link_timeout_s + _LATER_S:
            self._end(f"it has not answered for {now - lease.confirmed:.0f} s")
            return
        if unheard_s >= _SILENT_S and not self._is_silent:
            self._is_silent = True
            self._reports.append(LinkSilent(now - lease.confirmed))
        if now >= self._ping_at and not self._is_behind:
            self._ping_at = now + _PING_S
            self.send(lease.ping(now))
