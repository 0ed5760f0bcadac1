"""The stream to an agent on another host: every message once and in order, and a lease that both ends agree on."""

from __future__ import annotations

import ast
import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acting_as import as_user, needs_root
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_pair import Pair, until
from users import ORDINARY
from waiting import PATIENCE_S

from orchestrator.links import delivery
from orchestrator.links.delivery import BadFrame
from orchestrator.links.start_queue import MOST_STARTING, StartQueue
from orchestrator.links.stream import LinkBack, LinkSilent
from worker.agent import delivery as its_delivery
from worker.wire.codec import encode
from worker.wire.messages import Signal, StartFailed, decode_report

# How far the bytes of both directions come before the next step.
sizes = st.sampled_from([0, 1, 7, 100, 5_000, 1 << 20])
steps = st.one_of(
    st.tuples(st.sampled_from(["order", "report"]), st.integers(0, 30_000)),
    st.tuples(st.just("carry"), st.tuples(sizes, sizes)),
    st.tuples(st.just("cut"), st.none()),
)


@pytest.fixture(autouse=True)
def _clean(no_leaked_descriptors: None) -> None:
    """Descriptors are counted in every test here."""


def order(number: int, size: int = 0) -> bytes:
    return encode(Signal("x" * size, number + 1))


def report(number: int, size: int = 0) -> StartFailed:
    return StartFailed("y" * size, number, "")


def here(pair: Pair) -> list[int]:
    return [decode_report(line).exit_code for line in pair.received_here if isinstance(line, bytes)]


def there(pair: Pair) -> list[int]:
    return [message.number - 1 for message in pair.received_there]


@contextlib.contextmanager
def reached(link_timeout_s: float = 60.0) -> Iterator[Pair]:
    """A pair whose first report, number 0, has arrived: a host that cannot be reached at first is given up."""
    with Pair(link_timeout_s) as pair:
        pair.its.send(report(0))
        until(pair, lambda: here(pair) == [0])
        yield pair


@given(st.lists(steps, max_size=25))
@settings(max_examples=60)
def test_every_message_arrives_once_and_in_order(plan: list[tuple[str, Any]]) -> None:
    with reached() as pair:
        orders, reports = 0, 1
        for kind, value in plan:
            if kind == "order":
                assert pair.ours.send(order(orders, value))
                orders += 1
            elif kind == "report":
                pair.its.send(report(reports, value))
                reports += 1
            elif kind == "cut":
                pair.cut()
            else:
                pair.turn(*value)
        until(pair, lambda: len(there(pair)) >= orders and len(here(pair)) >= reports)
        until(pair, lambda: pair.its.acknowledged == reports)
        assert there(pair) == list(range(orders))
        assert here(pair) == list(range(reports))


def test_both_packages_have_the_same_format() -> None:
    trees = [ast.parse(Path(module.__file__ or "").read_text()) for module in (delivery, its_delivery)]
    ours, its = (ast.dump(ast.Module(tree.body[1:], [])) for tree in trees)
    assert ours == its


@pytest.mark.parametrize("direction", ["there", "back"])
def test_cut_in_one_direction_ends_the_lease_of_both(direction: str) -> None:
    with reached(link_timeout_s=3.5) as pair:
        lease = pair.its.lease_ends
        until(pair, lambda: pair.its.lease_ends > lease)
        pair.loses.add(direction)
        until(pair, lambda: not pair.is_open)
        # The agent gives up first: its tasks have ended when they are reported lost.
        assert pair.its.lease_ends <= time.monotonic()
        assert any(isinstance(each, LinkSilent) for each in pair.received_here)
        assert "has not answered" in str(pair.ours.lost_reason)
        assert not pair.ours.send(order(1))


def test_agent_leaves_if_its_first_connection_ends_unused() -> None:
    """The orchestrator was killed while the agent started. It would have made no other connection."""
    with Pair() as pair:
        pair.stranger().close()
        its = pair.its
        assert its.lease_ends > time.monotonic()
        deadline = time.monotonic() + PATIENCE_S
        while its.lease_ends > time.monotonic():
            assert time.monotonic() < deadline
            for fd, _ in pair.poller.poll(1.0):
                its.read(fd)


def test_short_silence_is_reported_and_loses_nothing() -> None:
    with reached() as pair:
        pair.loses |= {"there", "back"}
        pair.its.send(report(1))
        pair.ours.send(order(0))
        until(pair, lambda: any(isinstance(each, LinkSilent) for each in pair.received_here))
        assert here(pair) == [0]
        pair.loses.clear()
        until(pair, lambda: here(pair) == [0, 1] and there(pair) == [0])
        until(pair, lambda: any(isinstance(each, LinkBack) for each in pair.received_here))


def test_other_connections_replace_a_dead_one() -> None:
    """The network swallows everything of one connection, whose ends stay open; a new one works."""
    with reached() as pair:
        ((dead, also_dead),) = pair._ways
        pair._ways.clear()
        pair.its.send(report(1))
        until(pair, lambda: here(pair) == [0, 1])
        assert any(isinstance(each, LinkSilent) for each in pair.received_here)
        dead.source.close()
        also_dead.source.close()


def test_connections_that_open_together_do_not_end_each_other() -> None:
    """After a cut, several may get through in the same moment. The agent's answers arrive after all were offered."""
    with reached() as pair:
        pair.holds_openings = True
        pair.cut()
        until(pair, lambda: len(pair._openings) == 2)
        pair.holds_openings = False
        for _ in range(20):
            pair.turn(back=0)
        pair.its.send(report(1))
        pair.ours.send(order(0))
        until(pair, lambda: here(pair) == [0, 1] and there(pair) == [0])
        assert len(pair._connections) == 3


def test_connection_that_cannot_be_made_is_tried_again() -> None:
    with reached() as pair:
        pair.has_no_descriptors = True
        pair.cut()
        until(pair, lambda: "Too many open files" in pair.ours._last_error)
        pair.has_no_descriptors = False
        pair.ours.send(order(0))
        until(pair, lambda: there(pair) == [0])


def test_few_connections_are_opened_at_the_same_time() -> None:
    starts = StartQueue(slow_s=math.inf)
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(Pair(starts=starts)) for _ in range(MOST_STARTING + 2)]
        for pair in pairs:
            pair.holds_openings = True
        first, *_, waiting, last = pairs
        assert [len(pair._connections) for pair in pairs] == [*[1] * MOST_STARTING, 0, 0]
        assert waiting.ours.send(order(0))
        first.holds_openings = waiting.holds_openings = False
        first.its.send(report(0))
        until(first, lambda: here(first) == [0])
        assert (len(waiting._connections), len(last._connections)) == (1, 0)
        until(waiting, lambda: there(waiting) == [0])
        assert len(last._connections) == 1


def test_connection_that_takes_long_to_open_does_not_delay_the_next_one() -> None:
    """Its host may be off."""
    started: list[str] = []
    queue = StartQueue(most=1, slow_s=2.0)
    queue.enter("a", lambda: started.append("a"), 10.0)
    queue.enter("b", lambda: started.append("b"), 11.0)
    queue.advance(11.9)
    assert (started, queue.due) == (["a"], 12.0)
    queue.advance(12.0)
    assert (started, queue.due) == (["a", "b"], None)


def test_first_connection_that_cannot_be_started_ends_the_stream() -> None:
    starts = StartQueue(most=1, slow_s=math.inf)
    starts.enter("another", int, time.monotonic())
    with Pair(starts=starts) as pair:
        pair.has_no_descriptors = True
        starts.leave("another", 0.0)
        until(pair, lambda: not pair.is_open)
        assert "Too many open files" in str(pair.ours.lost_reason)


def test_stream_that_leaves_before_its_turn_opens_no_connection() -> None:
    starts = StartQueue(most=1, slow_s=math.inf)
    starts.enter("another", int, time.monotonic())
    with Pair(starts=starts) as pair:
        assert pair.ours.due <= time.monotonic() + 2.0
        pair.ours.leave()
        assert pair.ours.due <= time.monotonic()
        until(pair, lambda: not pair.is_open)
        starts.leave("another", 0.0)
        assert (pair.ours.lost_reason, pair._connections) == (None, [])


def test_older_connection_does_not_replace_a_newer_one() -> None:
    with reached() as pair, pair.stranger() as stranger:
        stranger.sendall(b'0 {"type": "resume", "agent_id": "s", "turn": 1, "heard": 0}\n')
        for _ in range(20):
            pair.turn()
        pair.ours.send(order(0))
        until(pair, lambda: there(pair) == [0])
        assert len(pair._connections) == 1


def test_lease_is_renewed_one_round_trip_after_a_break() -> None:
    """The next regular ping would come a second later, which may be too late."""
    with reached() as pair:
        before = pair.ours._urgent_ping
        pair.cut()
        until(pair, lambda: pair.ours._urgent_ping > before)
        while pair.ours._confirmed < pair.ours._urgent_ping:
            lease = pair.its.lease_ends
            pair.turn()
        # In that turn the agent's answer arrived here, and its confirmation there.
        assert pair.its.lease_ends > lease


def test_busy_host_gets_few_connections_and_time_to_answer() -> None:
    """More attempts would slow each other down, and none would ever get through."""
    with reached() as pair:
        pair.holds_openings = True
        pair.cut()
        until(pair, lambda: len(pair._openings) == 3)
        first = next(iter(pair._openings))
        busy_until = time.monotonic() + 3.0
        until(pair, lambda: time.monotonic() >= busy_until)
        assert len(pair._openings) <= 4
        pair.its.send(report(1))
        pair.holds_openings = False
        until(pair, lambda: here(pair) == [0, 1])
        assert first.stream.fileno() >= 0


def test_host_that_is_slow_to_connect_is_neither_silent_nor_lost() -> None:
    """Its lease begins when it is reached, not when the connection was started."""
    with Pair(link_timeout_s=3.5) as pair:
        pair.holds_openings = True
        slow_until = time.monotonic() + 5.5
        until(pair, lambda: time.monotonic() >= slow_until)
        pair.holds_openings = False
        pair.its.send(report(0))
        until(pair, lambda: here(pair) == [0])
        assert pair.is_open
        assert not [event for event in pair.received_here if isinstance(event, LinkSilent)]


def test_clock_of_the_agent_is_measured() -> None:
    with Pair() as pair:
        assert pair.ours.clock[1] == float("inf")
        until(pair, lambda: pair.ours.clock[1] < 60.0)
        offset, error = pair.ours.clock
        assert abs(offset) <= error


FOREIGN = [
    b"",
    b"hello\n",
    b"1 {}\n",
    b'0 {"type": "resume", "agent_id": "another", "heard": 0}\n',
    b'0 {"type": "resume", "agent_id": "s", "heard": 99}\n',
    b'0 {"type": "resume", "agent_id": "s", "heard": NaN}\n',
    b"0 [1]\n",
    b"0 " + b"[" * 100_000 + b"\n",
    b"9" * 5_000 + b" {}\n",
    b"0 {",
]


@pytest.mark.parametrize("frames", FOREIGN, ids=range(len(FOREIGN)))
def test_foreign_connection_to_the_agent_changes_nothing(frames: bytes) -> None:
    with reached() as pair, pair.stranger() as stranger:
        stranger.sendall(frames)
        for _ in range(20):
            pair.turn()
        pair.ours.send(order(0))
        until(pair, lambda: there(pair) == [0])
        pair.its.send(report(1))
        until(pair, lambda: here(pair) == [0, 1])
        assert len(pair._connections) == 1


FORGED = [
    b"hello\n",
    b'7 {"type": "StartFailed", "task": "", "exit_code": 7, "reason": ""}\n',
    b'0 {"type": "heard", "heard": 99}\n',
    b'0 {"type": "heard", "heard": true}\n',
    b'0 {"type": "ping", "mono": "x", "echo": null, "heard": 0}\n',
    b'0 {"type": "ping", "mono": 1e999, "echo": null, "heard": 0}\n',
    b'0 {"type": "ping", "mono": 1, "echo": 1e14, "held_s": 0, "heard": 0}\n',
    b"x" * (17 << 20),
]


@pytest.mark.parametrize("frames", FORGED, ids=range(len(FORGED)))
def test_forged_frame_of_an_agent_ends_its_stream(frames: bytes) -> None:
    with reached() as pair:
        ((_, back),) = pair._ways
        back.waiting += frames
        with pytest.raises(BadFrame):
            until(pair, lambda: not pair.is_open)


def test_repeated_frame_is_ignored() -> None:
    with reached() as pair:
        ((_, back),) = pair._ways
        back.waiting += b'1 {"type": "StartFailed", "task": "", "exit_code": 0, "reason": ""}\n'
        pair.its.send(report(1))
        until(pair, lambda: here(pair)[-1] == 1)
        assert here(pair) == [0, 1]


@needs_root
def test_agent_refuses_another_user() -> None:
    with reached() as pair:

        def take_over() -> None:
            with pair.stranger() as stranger:
                stranger.sendall(b'0 {"type": "resume", "agent_id": "s", "heard": 0}\n')

        as_user(ORDINARY, take_over)
        for _ in range(20):
            pair.turn()
        pair.its.send(report(1))
        until(pair, lambda: here(pair) == [0, 1])
        assert len(pair._connections) == 1
