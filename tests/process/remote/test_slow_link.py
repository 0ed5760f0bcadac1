"""The logs of another host over a slow link: they delay neither pings nor exits."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.agent.log_shipping import MOST_BYTES, LogShipping
from worker.wire.codec import encode
from worker.wire.facts import ExitFacts
from worker.wire.messages import Empty, Exited, FromAgent, Log


class SlowLink:
    """Carries `rate` bytes a second to a supervisor, by the clock of the test. Its credit comes back at once."""

    def __init__(self, rate: float) -> None:
        self.now = self.is_free_at = 0.0
        self.rate = rate
        self._on_the_way: deque[tuple[int, float]] = deque()
        self.messages: list[FromAgent] = []

    @property
    def delay_s(self) -> float:
        """How long a message waits that is sent now."""
        return max(0.0, self.is_free_at - self.now)

    def send(self, message: FromAgent) -> None:
        self.messages.append(message)
        self.is_free_at = self.now + self.delay_s + len(encode(message)) / self.rate
        self._on_the_way.append((len(message.data) if isinstance(message, Log) else 0, self.is_free_at))

    def advance(self, now: float, shipping: LogShipping) -> None:
        self.now = now
        while self._on_the_way and self._on_the_way[0][1] <= now:
            if (count := self._on_the_way.popleft()[0]) > 0:
                shipping.confirm(count, now)


@contextmanager
def shipping_over(link: SlowLink, log: Path) -> Iterator[LogShipping]:
    """The shipping of a log of 100 MB."""
    log.write_bytes(b"")
    os.truncate(log, 100_000_000)
    with select.epoll() as poller:
        shipping = LogShipping(link.send, poller)
        shipping.add("worker:0", str(log))
        yield shipping
        shipping.close()


@pytest.mark.parametrize("rate", [2e3, 10e3, 50e3, 300e3, 1e6])
def test_logs_do_not_delay_other_messages_on_a_slow_link(tmp_path: Path, rate: float) -> None:
    """A host counts as silent after 3 s without an answer, and as lost after 16 s."""
    link = SlowLink(rate)
    with shipping_over(link, tmp_path / "log") as shipping:
        delays = []
        for turn in range(3000):
            link.advance(turn * 0.01, shipping)
            shipping.advance(link.now)
            delays.append(link.delay_s)
    assert max(delays) < min(6.0, MOST_BYTES * 4 / 3 / rate + 0.1)
    assert sum(delay > 0 for delay in delays) > 2900, "the link has nothing to carry"


def test_logs_follow_the_rate_of_a_link_that_becomes_slow_and_recovers(tmp_path: Path) -> None:
    link = SlowLink(1e6)
    turn = 0
    with shipping_over(link, tmp_path / "log") as shipping:
        for rate, seconds in ((1e6, 5), (5e3, 100), (300e3, 30)):
            link.rate = rate
            for _ in range(100 * seconds):
                turn += 1
                link.advance(turn * 0.01, shipping)
                shipping.advance(link.now)
            assert link.delay_s < 3.0, rate
    in_the_last_30_s = sum(len(encode(each)) for each in link.messages) - 5e6 - 0.5e6
    assert in_the_last_30_s > 0.9 * 30 * 300e3


def test_rest_of_the_logs_does_not_delay_the_end_of_a_teardown(tmp_path: Path) -> None:
    """The agent reports the missing bytes, and continues behind them in the next attempt. A break does not count."""
    link = SlowLink(300e3)
    with shipping_over(link, tmp_path / "log") as shipping:
        shipping.hold(Exited("worker:0", ExitFacts(0, None, 1.0)))
        for swept in (2, 1):  # the second stop comes before the first one is reported
            shipping.hold_last(Empty(swept))
        for turn in range(3000):
            is_broken = 100 <= turn < 1600
            if not is_broken:
                link.advance(turn * 0.01, shipping)
            shipping.advance(turn * 0.01)
            if 1600 <= turn < 1700:
                assert isinstance(link.messages[-1], Log), "the break counted"
        *logs, exited, empty = link.messages
        with (tmp_path / "log").open("ab") as file:
            file.write(b"next")
        link.advance(60.0, shipping)
        shipping.wake()
        shipping.advance(60.0)
    sent = sum(len(each.data) for each in logs if isinstance(each, Log))
    assert isinstance(exited, Exited) and isinstance(empty, Empty)
    assert (empty.swept, empty.unsent) == (3, {"worker:0": 100_000_000 - sent})
    assert link.messages[-1] == Log("worker:0", sent, b"next")
