"""The supervisor's end of the link to another host: its turn to open, its heartbeats, and what ends it.

The test is the host, and tells the time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import select
import socket
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from host_driving import NoProcess, Shell

from orchestrator.core.errors import EngineError
from orchestrator.links.agent_link import AgentMessage, LinkBack, LinkSilent
from orchestrator.links.bundle import bundle
from orchestrator.links.host_link import _CREDIT_STEP_BYTES, HostLink
from orchestrator.links.opening import Opening
from orchestrator.links.start_queue import StartQueue
from worker.wire.codec import encode
from worker.wire.messages import Credit, Hello, Listening, Log, Ping, Stop, decode_order

_MOST_BYTES = 1 << 20


class Host:
    """A link and the other end of it. `now` is the time of the link's ticks."""

    def __init__(self, starts: StartQueue | None = None, failure: Exception | None = None) -> None:
        self.ends: list[socket.socket] = []
        self.now = time.monotonic()
        self.failure = failure
        self._open = ExitStack()
        opening = Opening("run", "there", 16.0)
        self.link = HostLink(Shell(), "there", self._connect, opening, 16.0, starts or StartQueue())

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self._open.close()

    def _connect(self, errors: int) -> Any:
        """A process of ssh. The test holds the other end of its stream."""
        if self.failure is not None:
            raise self.failure
        self.errors = os.dup(errors)
        ours, end = socket.socketpair()
        end.setblocking(False)
        self.ends.append(end)
        for each in (ours, end):
            self._open.enter_context(each)
        self._open.callback(os.close, self.errors)
        return NoProcess(ours)

    @property
    def end(self) -> socket.socket:
        return self.ends[-1]

    def answer(self) -> None:
        """Play stage 1, and send the agent's first message."""
        opening = b""
        while len(opening.split(b"\n", 2)) < 3 or not opening.endswith(bundle().data):
            self.link.read()
            opening += self.end.recv(_MOST_BYTES)
        mark = json.loads(opening.split(b"\n", 2)[1])["mark"].encode()
        self.end.send(b"Welcome!\n" + mark + b'{"state": "ready"}\n' + encode(Hello("there", 1, 1)))
        assert self.turn() == [Hello("there", 1, 1)]
        self.now = time.monotonic()

    def turn(self, after_s: float = 0.0) -> list[AgentMessage]:
        self.now += after_s
        self.link.tick(self.now)
        messages, self.is_open = self.link.read()
        return messages

    def pings(self) -> list[Ping]:
        try:
            lines = self.end.recv(_MOST_BYTES).splitlines()
        except BlockingIOError:
            return []
        return [message for message in map(decode_order, lines) if isinstance(message, Ping)]


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as found:
        found.answer()
        yield found


# -- its turn


def test_few_connections_are_opened_at_the_same_time() -> None:
    starts = StartQueue(most=2, slow_s=math.inf)
    with ExitStack() as stack:
        hosts = [stack.enter_context(Host(starts)) for _ in range(5)]
        assert [len(each.ends) for each in hosts] == [1, 1, 0, 0, 0]
        hosts[1].answer()
        hosts[2].answer()
        assert [len(each.ends) for each in hosts] == [1, 1, 1, 1, 0]
        hosts[4].link.leave()
        assert hosts[4].link.read() == ([], False)


def test_connection_that_takes_long_to_open_does_not_delay_the_next_one() -> None:
    starts = StartQueue(most=1, slow_s=2.0)
    with Host(starts) as slow, Host(starts) as waiting:
        slow.turn(1.0)
        assert not waiting.ends
        waiting.turn(2.5)
        assert waiting.ends


def test_connection_that_cannot_be_started_ends_the_link() -> None:
    many = OSError(errno.EMFILE, "Too many open files")
    for failure, text in ((EngineError("no ssh here"), "no ssh here"), (many, "Too many")):
        with Host(failure=failure) as host:
            assert host.link.tick(host.now)
            assert host.link.read() == ([], False)
            assert text in str(host.link.lost_reason)


def test_orders_wait_until_the_connection_is_opened() -> None:
    starts = StartQueue(most=1, slow_s=math.inf)
    with Host(starts) as first, Host(starts) as second:
        assert second.link.send(Stop(1.0))
        first.answer()
        data = second.end.recv(_MOST_BYTES)
        while not data.endswith(encode(Stop(1.0))):
            second.link.read()
            data += second.end.recv(_MOST_BYTES)


# -- heartbeats


def test_host_is_silent_then_back_or_lost(host: Host) -> None:
    """It is lost after the agent has given up: 16 s after it sent its last ping that was confirmed."""
    assert host.pings()
    silent = [host.turn(0.5) for _ in range(8)]
    assert [type(each) for turn in silent for each in turn] == [LinkSilent]
    (*_, ping) = host.pings()
    host.end.send(encode(Ping(7.0, ping.mono)))
    assert [type(each) for each in host.turn()] == [LinkBack]
    confirmation = host.pings()[-1]
    assert confirmation.echo == 7.0, "the agent's lease would be renewed a second later"
    lost_at = next(turn for turn in range(60) if not host.turn(0.5) and not host.is_open)
    # The ping was sent up to 0.5 s earlier.
    assert 17.0 <= (lost_at + 1) * 0.5 <= 18.5
    assert "it has not answered for" in str(host.link.lost_reason)


def test_pings_of_the_host_alone_do_not_renew_its_lease(host: Host) -> None:
    """Only what the host confirms counts: a cut in one direction is a cut."""
    for _ in range(80):
        host.end.send(encode(Ping(host.now)))
        host.turn(0.5)
        if not host.is_open:
            break
    assert not host.is_open


def test_answers_to_a_host_that_does_not_read_have_a_limit(host: Host) -> None:
    """It confirms pings that it has not read. Once it reads again, it gets the credit for all its logs."""
    (ping,) = host.pings()
    data = b"x" * (_CREDIT_STEP_BYTES * 2)
    for number in range(1000):
        host.end.send(encode(Log("worker:0", 0, data)) + encode(Ping(7.0, ping.mono + number * 1e-9)))
        assert host.link.read()[1], (number, host.link.lost_reason)
    assert 0 < host.link._stream.waiting_bytes < 1000  # type: ignore[union-attr]
    received = host.end.recv(_MOST_BYTES)
    host.link.read()
    orders = [decode_order(line) for line in (received + host.end.recv(_MOST_BYTES)).splitlines()]
    assert sum(each.count for each in orders if isinstance(each, Credit)) == 1000 * len(data)
    host.turn(5.0)
    assert host.pings()


def test_time_in_which_the_supervisor_was_stopped_does_not_count(host: Host) -> None:
    assert host.turn(600.0) == []
    assert host.is_open
    host.turn(0.5)
    assert host.is_open


def test_clock_of_the_host_is_measured(host: Host) -> None:
    assert host.link.clock[1] == math.inf
    ping = host.pings()[-1]
    host.end.send(encode(Ping(ping.mono + 1000.0, ping.mono)))
    host.turn()
    offset, error = host.link.clock
    assert abs(offset - 1000.0) <= error + 1e-6 < 1.0


# -- its end


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"hello\n", "cannot read"),
        (b'{"type": "Ping", "mono": "x"}\n', "cannot read: Ping: mono"),
        (b'{"type": "Held", "number": 1, "ports": [70000]}\n', "Held: ports: 70000 is not between"),
        (b'{"type": "Listening"}\n', "cannot read"),
        (b"x" * (17 << 20), "cannot read"),
    ],
    ids=range(5),
)
def test_forged_message_of_an_agent_ends_its_link(host: Host, line: bytes, says: str) -> None:
    sent = 0
    host.end.send(encode(Listening("worker:0")))
    while host.link.read()[1] and sent < len(line):
        sent += host.end.send(line[sent : sent + (1 << 16)])
    host.turn()
    assert not host.is_open
    assert says in str(host.link.lost_reason)


def test_end_of_the_stream_is_the_end_of_the_host(host: Host) -> None:
    host.end.send(encode(Listening("worker:0")))
    host.end.close()
    assert host.turn() == [Listening("worker:0")]
    host.turn()
    assert not host.is_open
    assert host.link.lost_reason == "the agent has ended there: it was killed, or it crashed"
    assert not host.link.send(Stop(0.0))
    assert not select.select([host.link], [], [], 0)[0], "who waits for it would not wait"


def test_stderr_without_end_does_not_stop_the_supervisor(host: Host) -> None:
    """It is read in turn with all else, not until there is nothing left."""
    fcntl.fcntl(host.errors, fcntl.F_SETPIPE_SZ, _MOST_BYTES)
    os.set_blocking(host.errors, False)
    written = os.write(host.errors, b"x" * _MOST_BYTES)
    host.link.read()
    left = int.from_bytes(fcntl.ioctl(host.errors, termios.FIONREAD, bytes(4)), sys.byteorder)
    assert written / 2 < left < written


def test_host_that_sends_without_end_before_its_run_is_lost(host: Host) -> None:
    log = encode(Log("@agent", 0, bytes(48_000)))
    kept = 0
    for _ in range(1000):
        with suppress(BlockingIOError):
            host.end.send(log)
        messages, is_open = host.link.read_ahead()
        kept = max(kept, len(messages))
        if not is_open:
            break
    assert kept < 200
    assert "before the run has begun" in str(host.link.lost_reason)


def test_leave_sends_the_end_of_the_stream_and_waits_for_that_of_the_host(host: Host) -> None:
    host.link.leave()
    host.pings()
    assert host.end.recv(100) == b""
    host.turn()
    assert host.is_open
    host.end.close()
    host.turn()
    host.turn()
    assert (host.is_open, host.link.lost_reason) == (False, None)
