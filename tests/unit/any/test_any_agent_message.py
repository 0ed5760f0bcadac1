"""Each message is read as it was written. Anything else from an agent ends its link; anything else to one ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import selectors
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from agent_driving import Driver
from fuzzing import any_bytes, as_json, damaged, documents, fuzzed, torn
from hypothesis import given
from hypothesis import strategies as st
from making import JOB, changed
from run_records import make_run
from waiting import until, until_gone

from orchestrator.core.job.choices import EngineName, NetworkOption
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Happen
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.core.state.events import Event, HostLost, Noticed, TeardownEnded, event_line, parse_event
from orchestrator.links.agent_link import AgentLink
from orchestrator.supervisor.agent_inputs import AgentInputs
from orchestrator.supervisor.agent_orders import Attempts
from orchestrator.supervisor.agent_reports import AgentReports
from orchestrator.supervisor.control_orders import StackRequests
from orchestrator.supervisor.hosts import Hosts
from orchestrator.supervisor.notices import Notices
from orchestrator.supervisor.run_logs import RunLogs
from orchestrator.supervisor.tensorboard_task import TensorBoardTask
from worker.wire.codec import BadMessage, Within, decoder, encode
from worker.wire.facts import HostFacts, IsAddress, IsLetter
from worker.wire.messages import (
    Empty,
    FromAgent,
    Held,
    Hello,
    Hold,
    Plan,
    Signal,
    Stop,
    TakeStacks,
    TaskOrder,
    ToAgent,
    decode_report,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """All values that a field of this type may have."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return annotated(*arguments)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is Mapping:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if arguments:
        return st.one_of(*(st.none() if each is type(None) else values(each) for each in arguments))
    if dataclasses.is_dataclass(kind):
        return messages(kind)
    simple = {
        int: st.integers(-(2**63) + 1, 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: texts,
        bool: st.booleans(),
        bytes: st.binary(max_size=50),
        object: st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    }
    return simple[kind]


def annotated(kind: Any, check: Any) -> st.SearchStrategy[Any]:
    if isinstance(check, Within) and kind is int:
        return st.integers(int(check.least), int(check.most))
    if isinstance(check, Within):
        return st.floats(check.least, check.most)
    if isinstance(check, IsAddress):
        return st.ip_addresses().map(str)
    if isinstance(check, IsLetter):
        return st.sampled_from(["", "?", "R", "t"])
    return values(kind)


@cache
def messages(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
    return st.fixed_dictionaries(fields).map(lambda drawn: kind(**drawn))


reports = st.sampled_from(get_args(FromAgent)).flatmap(messages)
orders = st.sampled_from(get_args(ToAgent)).flatmap(messages)
decode_any = decoder(*get_args(FromAgent), *get_args(ToAgent))


@given(reports | orders)
@fuzzed(100)
def test_every_message_is_read_as_it_was_written(message: Any) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1 and decode_any(line) == message
    # A newer sender may have more fields.
    assert decode_any(json.dumps({**json.loads(line), "more": [1]}).encode()) == message


BAD_NUMBERS = (b"NaN", b"1e999", b"-Infinity", b"1" * 40, b"true", b'"1"', b"null", b"1.5", b"-1")


def test_impossible_number_is_refused() -> None:
    line = b'{"type": "Started", "task": "worker:0", "pid": %s, "start_ticks": 1, "method": "spawn"}'
    assert decode_report(line % b"7").pid == 7
    for number in BAD_NUMBERS:
        with pytest.raises(BadMessage, match="Started: pid: "):
            decode_report(line % number)


def lines(good: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Messages, whole, damaged and torn, and data that is not a message."""
    written = good.map(lambda message: encode(message).rstrip())
    hurt = written.map(json.loads).flatmap(damaged).map(as_json)
    return written | hurt | written.flatmap(torn) | documents.map(as_json) | any_bytes


# -- from the agent


@contextlib.contextmanager
def linked() -> Iterator[tuple[AgentLink, socket.socket]]:
    ours, its = socket.socketpair()
    with ours, its, contextlib.closing(AgentLink(ours)) as link:
        yield link, its


@given(st.lists(lines(reports), max_size=5))
@fuzzed(40)
def test_anything_from_an_agent_is_a_message_or_the_end_of_its_link(said: list[bytes]) -> None:
    with linked() as (link, its):
        its.sendall((b"\n".join(said) + b"\n")[:60_000])
        its.shutdown(socket.SHUT_WR)
        is_there = True
        while is_there:
            found, is_there = link.read()
            assert all(isinstance(message, FromAgent) for message in found)
        assert link.read() == ([], False)


@given(st.lists(reports, min_size=1, max_size=4), st.lists(st.integers(1, 400), max_size=5))
@fuzzed(30)
def test_messages_arrive_from_any_pieces_of_the_stream(said: list[Any], cuts: list[int]) -> None:
    with linked() as (link, its):
        data = b"".join(map(encode, said))
        found = []
        for begin, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
            its.sendall(data[begin:end])
            found += link.read()[0]
        assert found == [message for message in said if type(message).__name__ != "Begun"]


class Reached(Hosts):
    """The agents of hosts, over sockets in place of ssh."""

    def __init__(self, spec: JobSpec) -> None:
        super().__init__(spec)
        self.ends: dict[str, socket.socket] = {}

    def _open(self, host: Host, *_: object) -> AgentLink:  # type: ignore[override]
        ours, self.ends[host.name] = socket.socketpair()
        return AgentLink(ours)

    def end(self) -> None:
        for host in [*self.links]:
            self.end_host(host)
        for each in self.ends.values():
            each.close()


TWO_HOSTS = changed(
    JOB,
    engine=EngineName.SSH,
    hosts=tuple(Host(name=name, destination=name, slots=1) for name in ("n1", "n2")),
    # Reports about its own tasks reach more code than those about others.
    roles={"worker": 2},
)
FACTS = HostFacts("/tmp/orch-1", ("boot",), {}, None, 1, (), None, "3.11", (0,))
# Runs of one second may be given the same id.
numbers = itertools.count()
own_tasks = reports.map(
    lambda message: dataclasses.replace(message, task="worker:0") if hasattr(message, "task") else message
)


class Supervised:
    """The part of a supervisor that reads the agents of TWO_HOSTS. `handled`: what the lifecycle was given."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._queue: deque[Event] = deque()
        self.handled: list[Event] = []
        store = stack.enter_context(contextlib.closing(make_run(run_id=f"run-{next(numbers)}")))
        throttle, self._lifecycle = ProgressThrottle(), Lifecycle(TWO_HOSTS, "run-1", 0.0)
        logs = stack.enter_context(RunLogs(store.directory.sub("logs"), throttle))
        tensorboard = TensorBoardTask(None, NetworkOption.HOST, store, self._queue)
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self.hosts = Reached(TWO_HOSTS)
        stack.callback(self.hosts.end)
        self.attempts = Attempts(TWO_HOSTS, self.hosts, store, logs, tensorboard, self._queue)
        stacks = StackRequests(lambda tasks, native: tasks)
        reports = AgentReports(self._lifecycle, store, throttle, logs, stacks, tensorboard, self._queue)
        notices = Notices(TWO_HOSTS, self._lifecycle, self._queue)
        self.inputs = AgentInputs(
            self.hosts, self._selector, self.attempts, reports, logs, notices, self._queue, lambda: None
        )
        self.hosts.serve(TWO_HOSTS, store)
        self.inputs.watch()
        self.attempts.hold_ports(1, TWO_HOSTS)

    def take(self, host: str, data: bytes) -> None:
        """Read `data` from a host, and handle the events."""
        self.hosts.ends[host].sendall(data)
        while ready := self._selector.select(0):
            for key, _ in ready:
                key.data()
        while self._queue:
            self.handled.append(self._queue.popleft())
            for action in self._lifecycle.handle(self.handled[-1]):
                if isinstance(action, Happen):
                    self._queue.append(action.event)

    def join(self, host: str) -> None:
        self.take(host, encode(Hello(host, 1, 1, FACTS)))

    def plan(self) -> None:
        for number, host in enumerate(self.hosts.links):
            self.take(host, encode(Held(1, (2000 + number,))))

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(each, kind) for each in self.handled)


@given(st.lists(lines(own_tasks), min_size=1, max_size=5), st.booleans())
@fuzzed(60)
def test_supervisor_takes_any_report_or_loses_that_host_only(said: list[bytes], is_planned: bool) -> None:
    with contextlib.ExitStack() as stack:
        run = Supervised(stack)
        for host in ("n1", "n2"):
            run.join(host)
        if is_planned:
            run.plan()
            run.attempts.start_all()
        run.take("n1", (b"\n".join(said) + b"\n")[:60_000])
        assert "n2" in run.hosts.links
        for each in run.handled:
            assert parse_event(event_line(each)) == each
        lost = [each.host for each in run.handled if isinstance(each, HostLost)]
        assert lost == ([] if "n1" in run.hosts.links else ["n1"])


def test_teardown_awaits_one_report_of_each_host_that_has_joined() -> None:
    with contextlib.ExitStack() as stack:
        run = Supervised(stack)
        run.join("n1")
        run.take("n1", encode(Empty(0)))
        run.inputs.tear_down(1.0)
        assert run.count(TeardownEnded) == 0
        run.take("n1", encode(Empty(0)))
        assert run.count(TeardownEnded) == 1


def test_missing_ends_of_logs_are_reported_once_in_a_teardown() -> None:
    empty = encode(Empty(0, unsent={"worker:0": 1}))
    with contextlib.ExitStack() as stack:
        run = Supervised(stack)
        for host in ("n1", "n2"):
            run.join(host)
        run.plan()
        run.take("n1", empty * 3)
        assert run.count(Noticed) == 0
        run.inputs.tear_down(1.0)
        run.take("n1", empty * 3)
        assert run.count(Noticed) == 1
        run.take("n2", encode(Empty(0)))
        run.take("n1", empty * 3)
        assert (run.count(Noticed), run.count(TeardownEnded)) == (1, 1)


# -- to the agent


TRUE = encode(TaskOrder("worker:0", ("/bin/true",), {}, "/", "/dev/null", None, False))
# These orders start no other program, open no file, and need no time.
safe_orders = st.sampled_from((Signal, TakeStacks, Stop, Plan)).flatmap(messages)


def agent_with_task(directory: Path, program: str) -> Driver:
    """A real agent with a task, which is a shell and ignores SIGTERM."""
    agent = Driver(directory, failure_grace_s=0.05).__enter__()
    agent.start("worker:7", [os.path.realpath("/bin/sh"), "-c", f"trap '' TERM; {program}"])
    agent.pid_of("worker:7")
    return agent


@given(st.lists(lines(safe_orders) | st.just(TRUE), min_size=1, max_size=6))
@fuzzed(4)
def test_agent_obeys_or_exits_with_its_tasks(place: Path, said: list[bytes]) -> None:
    """Any input: the agent continues or exits in order, and ends its task, which ignores SIGTERM, in both cases."""
    agent = agent_with_task(place, "sleep 600 & wait")
    try:
        for line in said:
            agent.link.send_line(line + b"\n")
        # It answers unless it has exited: it never hangs.
        agent.link.send(Hold(99, 1, "reuse_port"))
        until(lambda: agent.receive() or not agent.open or agent.all_of(Held))
    finally:
        agent.close()
    until_gone(agent.pid_of("worker:7"))


def test_agent_that_cannot_parse_exits_and_leaves_nothing(place: Path) -> None:
    agent = agent_with_task(place, "setsid sleep 600 & sleep 600")
    agent.link.send_line(b"[1, 2\nand more of it\n")
    # It sends nothing more: the exits are its own doing.
    agent.receive_all()
    agent.close()
    assert not agent.exits() and "BadMessage" in (place / "agent.log").read_text()
