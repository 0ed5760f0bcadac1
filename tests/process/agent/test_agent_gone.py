"""The supervisor's end of a stream whose other end is gone: every order reports it, and nothing raises."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from orchestrator.links.agent_link import AgentLink
from worker.wire.codec import encode
from worker.wire.messages import Hold, Listening, Run, Signal, Stop, TaskOrder, decode_order

TRUE = TaskOrder("worker:0", ("true",), {}, "/", "/dev/null", None, False)


@dataclass
class Pair:
    link: AgentLink
    agent: socket.socket

    def takes_another_run(self) -> bool:
        return self.link.serve(Run("run-2", 0.5, "/dev/null", None, {}, "host"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, its = socket.socketpair()
    with ours, its:
        pair = Pair(AgentLink(ours), its)
        yield pair
        pair.link.close()


@pytest.mark.parametrize("unread", [False, True], ids=["end-of-file", "reset"])
def test_gone_agent_is_noticed_and_every_order_to_it_fails(pair: Pair, unread: bool) -> None:
    """The stream ends with an end of file, or with a reset if the agent has not read all messages."""
    link = pair.link
    assert link.read() == ([], True)
    if unread:
        assert link.send(Stop(0.0))
    pair.agent.close()
    assert link.read() == ([], False)
    orders = (Hold(1, 2, "reuse_port"), TRUE, Signal("worker:0", 10), Stop(1.0))
    assert [link.send(order) for order in orders] == [False] * 4
    assert not pair.takes_another_run()


def test_order_to_an_agent_that_has_just_gone_fails(pair: Pair) -> None:
    pair.agent.close()
    assert not pair.takes_another_run()


def test_live_agent_takes_a_run(pair: Pair) -> None:
    assert pair.takes_another_run()
    assert decode_order(pair.agent.recv(1 << 16)).run_id == "run-2"


def test_order_waits_for_room_and_blocks_nothing(pair: Pair) -> None:
    """An agent reads nothing for a while. Orders are queued, and arrive complete and in order."""
    env = {"FILLER": "x" * 100_000}
    names = [f"worker:{number}" for number in range(40)]
    for name in names:
        assert pair.link.send(replace(TRUE, task=name, env=env))
    received = bytearray()
    while received.count(b"\n") < len(names):
        # The link is readable as soon as there is room for more.
        received += pair.agent.recv(1 << 20)
        if select.select([pair.link], [], [], 0)[0]:
            assert pair.link.read() == ([], True)
    assert [decode_order(line).task for line in received.splitlines()] == names
    assert select.select([pair.link], [], [], 0)[0] == []


def test_message_that_cannot_be_read_ends_its_link(pair: Pair) -> None:
    good = encode(Listening("worker:0"))
    pair.agent.sendall(good + b"no message\n" + good)
    messages, is_open = pair.link.read()
    assert (messages, is_open) == ([Listening("worker:0")], False)
    assert "cannot read" in str(pair.link.lost_reason)
    assert pair.link.read() == ([], False)
    assert not pair.link.send(Stop(0.0))


def test_message_without_an_end_ends_its_link(pair: Pair) -> None:
    is_open = True
    while is_open:
        pair.agent.sendall(b"x" * 50_000)
        messages, is_open = pair.link.read()
        assert not messages
    assert "16 MiB" in str(pair.link.lost_reason)
