"""Any message from or to an agent is understood or ends it in order; it never hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing import any_bytes, as_json, damaged, documents, fuzzed, torn
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE_S, until, until_gone

from orchestrator.engines import AgentOptions
from orchestrator.engines.local import LocalEngine
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.stream import LocalStream
from worker.agent.stream import Stream

RUN = "run-1"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


# -- from the agent

SAID: list[dict[str, Any]] = [
    {"type": "hello", "host": "h", "pid": 1, "cores": 2},
    {"type": "held", "attempt": 1, "ports": [1, 2]},
    {"type": "started", "task": "worker:0", "pid": 5, "start_ticks": 7, "method": "fork"},
    {"type": "progress", "task": "worker:0", "progress": "{}"},
    {"type": "sample", "mono": 1.0, "tasks": {"worker:0": {"cpu_percent": 1.0, "memory_bytes": 5}}},
    {
        "type": "exited",
        "task": "worker:0",
        "exit_code": 1,
        "signal": None,
        "order": 0,
        "mono": 1.0,
        "peers": {"worker:1": "S"},
    },
    {"type": "stacked", "task": "worker:0", "how": "none"},
    {"type": "log", "task": "worker:0", "offset": 0, "data": "YWJj"},
    {"type": "empty", "swept": 0},
]
said = st.sampled_from(SAID).map(lambda message: {**message, "run_id": RUN})
frames = (
    said.map(as_json)
    | said.flatmap(damaged).map(as_json)
    | said.map(as_json).flatmap(torn)
    | documents.map(as_json)
    | any_bytes
)


@given(st.lists(frames, max_size=5), st.integers(1, 50))
@fuzzed(80)
def test_anything_from_an_agent_is_a_message_or_the_end_of_its_link(lines: list[bytes], size: int) -> None:
    ours, its = socket.socketpair()
    with ours, its, contextlib.ExitStack() as stack:
        link = stack.enter_context(contextlib.closing(AgentLink(LocalStream(ours), RUN)))
        data = b"\n".join(lines) + b"\n"
        its.sendall(data[:60_000])
        its.shutdown(socket.SHUT_WR)
        is_there = True
        while is_there:
            messages, is_there = link.read()
            assert all(message.run_id == RUN for message in messages)
        assert link.read() == ([], False)


@given(st.lists(said, min_size=1, max_size=6), st.lists(st.integers(1, 400), max_size=5))
@fuzzed(40)
def test_messages_arrive_from_any_pieces_of_the_stream(
    messages: list[dict[str, Any]], cuts: list[int]
) -> None:
    ours, its = socket.socketpair()
    with ours, its, contextlib.ExitStack() as stack:
        link = stack.enter_context(contextlib.closing(AgentLink(LocalStream(ours), RUN)))
        data = b"".join(as_json(message) + b"\n" for message in messages)
        found = []
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            its.sendall(data[begin:end])
            found += link.read()[0]
        assert [message.type for message in found] == [message["type"] for message in messages]


# -- to the agent

ORDERED: list[dict[str, Any]] = [
    {"type": "hold", "attempt": 1, "count": 1, "mode": "reuse_port"},
    {
        "type": "start",
        "task": "worker:0",
        "argv": ["/bin/true"],
        "env": {},
        "cwd": "/",
        "log": "/dev/null",
        "port": None,
        "serves": False,
    },
    {"type": "signal", "task": "worker:0", "signal": 10},
    {"type": "stacks", "tasks": ["worker:0"], "native": False},
    {"type": "stop", "grace_s": 0.1},
]
ordered = st.sampled_from(ORDERED).map(lambda message: {**message, "run_id": RUN})
# No number is so large that obeying takes very long, and no command is other than /bin/true.
safe_damage = st.sampled_from(
    [None, True, -1, 0, 10**30, 99_999, "", "x", "\ud800", "\x00", [], {}, [None], {"": None}, float("nan")]
)


@st.composite
def bad_orders(draw: st.DrawFn) -> bytes:
    order = dict(draw(ordered))
    is_hold = order["type"] == "hold"
    for key in draw(st.lists(st.sampled_from(sorted(order)), min_size=1, max_size=2, unique=True)):
        if draw(st.booleans()):
            del order[key]
        elif not (is_hold and key == "count"):
            order[key] = draw(safe_damage)
    return as_json(order)


@given(
    st.lists(ordered.map(as_json) | bad_orders() | any_bytes.filter(lambda d: b"hold" not in d), max_size=5)
)
@fuzzed(60)
def test_agent_stream_gives_messages_or_a_value_error(lines: list[bytes]) -> None:
    its, ours = socket.socketpair()
    with select.epoll() as poller, its, ours:
        stream = Stream(its.fileno(), its.fileno(), poller)
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            ours.send(b"\n".join(lines)[:60_000] + b"\n")
        try:
            messages, _ = stream.read(its.fileno())
        except ValueError:
            return
        finally:
            stream._socket.close()
        assert all(isinstance(message["type"], str) for message in messages)


class Wild:
    """A real agent with one task in its care that ignores SIGTERM, and whatever is said to it."""

    def __init__(self, directory: Path) -> None:
        with (directory / "agent.log").open("ab") as errors:
            self.connection = LocalEngine().connect("", AgentOptions(RUN, 0.05).words(), errors.fileno())
        self.stream = self.connection.stream
        self.heard = b""

    def say(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.stream.sendall(data + b"\n")

    def hears(self, word: bytes) -> bool:
        """Whether the agent has said that by now, or has left."""
        if word in self.heard:
            return True  # it may have come while another word was listened for
        if not select.select([self.stream], [], [], 0.05)[0]:
            return False
        try:
            data = self.stream.recv(1 << 16)
        except ConnectionResetError:
            return True
        self.heard += data
        return not data or word in self.heard

    def close(self) -> None:
        self.stream.close()
        assert self.connection.wait(PATIENCE_S), "the agent did not leave"


def start_order(program: str, **changes: object) -> bytes:
    argv = [os.path.realpath("/bin/sh"), "-c", program]
    return as_json({**ORDERED[1], "run_id": RUN, "argv": argv, **changes})


@given(st.lists(bad_orders() | any_bytes.filter(lambda data: b"hold" not in data), min_size=1, max_size=6))
@fuzzed(4)
def test_agent_obeys_or_exits_with_its_tasks(place: Path, lines: list[bytes]) -> None:
    """Any input: the agent continues or exits in order, and ends its task, which ignores SIGTERM, in both cases."""
    agent = Wild(place)
    try:
        agent.say(start_order("trap '' TERM; sleep 600 & wait", task="worker:7", log=str(place / "task.log")))
        until(lambda: agent.hears(b'"started"'))
        pid = next(
            message["pid"]
            for message in map(json.loads, agent.heard.splitlines())
            if message["type"] == "started"
        )
        for line in lines:
            agent.say(line)
        # It answers unless it has exited: it never hangs.
        agent.say(as_json({"type": "hold", "run_id": RUN, "attempt": 99, "count": 1, "mode": "reuse_port"}))
        until(lambda: agent.hears(b'"attempt": 99') or agent.hears(b'"hold_failed"'))
    finally:
        agent.close()
    until_gone(pid)


def test_agent_that_cannot_parse_exits_and_leaves_nothing(place: Path) -> None:
    agent = Wild(place)
    log = str(place / "task.log")
    agent.say(start_order("trap '' TERM; setsid sleep 600 & sleep 600", task="worker:7", log=log))
    until(lambda: agent.hears(b'"started"'))
    agent.say(b"[1, 2")
    agent.say(b"and more of it")
    # It sends nothing more: the exits are its own doing.
    until(lambda: agent.hears(b"never said"))
    assert b'"exited"' not in agent.heard
    agent.close()
    assert "JSONDecodeError" in (place / "agent.log").read_text()
