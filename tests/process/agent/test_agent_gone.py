"""The supervisor's end of a stream whose other end is gone: every order reports it, and nothing raises."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from orchestrator.links.agent_link import AgentLink
from worker.wire.messages import Hold, Run, Signal, Stop, TaskOrder, decode_order

TRUE = TaskOrder("worker:0", ("true",), {}, "/", "/dev/null", None, False)


@pytest.fixture
def ends() -> Iterator[tuple[AgentLink, socket.socket]]:
    """The link, and the agent's end of its stream."""
    ours, its = socket.socketpair()
    with ours, its, closing(AgentLink(ours)) as link:
        yield link, its


def takes_another_run(link: AgentLink) -> bool:
    return link.serve(Run("run-2", 0.5, "/dev/null", None, {}, "host"))


@pytest.mark.parametrize("unread", [False, True], ids=["end-of-file", "reset"])
def test_gone_agent_is_noticed_and_every_order_to_it_fails(
    ends: tuple[AgentLink, socket.socket], unread: bool
) -> None:
    """The stream ends with an end of file, or with a reset if the agent has not read all messages."""
    link, agent = ends
    assert link.read() == ([], True)
    if unread:
        assert link.send(Stop(0.0))
    agent.close()
    if not unread:
        assert not takes_another_run(link)  # before its end is read
    assert link.read() == ([], False)
    orders = (Hold(1, 2, "reuse_port"), TRUE, Signal("worker:0", 10), Stop(1.0))
    assert [link.send(order) for order in orders] == [False] * 4
    assert not takes_another_run(link)


def test_live_agent_takes_a_run(ends: tuple[AgentLink, socket.socket]) -> None:
    link, agent = ends
    assert takes_another_run(link)
    assert decode_order(agent.recv(1 << 16)).run_id == "run-2"


def test_order_waits_for_room_and_blocks_nothing(ends: tuple[AgentLink, socket.socket]) -> None:
    """An agent reads nothing for a while. Orders are queued, and arrive complete and in order."""
    link, agent = ends
    env = {"FILLER": "x" * 100_000}
    names = [f"worker:{number}" for number in range(40)]
    for name in names:
        assert link.send(replace(TRUE, task=name, env=env))
    received = bytearray()
    while received.count(b"\n") < len(names):
        # The link is readable as soon as there is room for more.
        received += agent.recv(1 << 20)
        if select.select([link], [], [], 0)[0]:
            assert link.read() == ([], True)
    assert [decode_order(line).task for line in received.splitlines()] == names
    assert select.select([link], [], [], 0)[0] == []
