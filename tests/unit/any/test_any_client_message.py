"""Anything that clients send to a supervisor is an order or refused; no client can block it."""

from __future__ import annotations

import contextlib
import json
import select
import selectors
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fuzzing import DEEP, any_bytes, as_json, damaged, fuzzed, torn
from hypothesis import given
from hypothesis import strategies as st
from making import JOB
from waiting import PATIENCE_S, until

from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state.events import Event
from orchestrator.core.state.result import TaskStack
from orchestrator.links import control
from orchestrator.links.client_link import ClientLink
from orchestrator.links.control import ControlServer
from orchestrator.links.orders import ControlOrder, InvalidOrder, KillOrder, Order, RestartOrder, StacksOrder
from orchestrator.store.directory import Directory
from orchestrator.supervisor.control_orders import ControlOrders, StackRequests

orders = st.sampled_from(
    [
        {"op": "stop", "reason": "down", "force": False},
        {"op": "kill", "task": "worker:0", "signal": 9},
        {"op": "restart"},
        {"op": "notice", "source": "user", "left_s": 30},
        {"op": "stacks", "tasks": [], "native": False},
    ]
)
any_order = (
    orders.map(as_json) | orders.flatmap(damaged).map(as_json) | orders.map(as_json).flatmap(torn) | any_bytes
)


def served_in(directory: Path) -> ControlServer:
    with Directory.at(directory) as place:
        return ControlServer(place, "control")


@given(any_order)
@fuzzed(80)
def test_any_order_gets_an_answer(data: bytes) -> None:
    ours, its = socket.socketpair()
    queue: deque[Event] = deque()
    with its, tempfile.TemporaryDirectory() as directory, selectors.DefaultSelector() as selector:
        its.sendall(data[:60_000])
        its.shutdown(socket.SHUT_WR)
        ours.setblocking(False)
        lifecycle, stacks = Lifecycle(JOB, "run-1", 0.0), StackRequests(lambda tasks, native: tasks)
        orders = ControlOrders(served_in(Path(directory)), selector, lifecycle, stacks, queue)
        with closing(orders):
            orders.serve(ours)
        its.settimeout(PATIENCE_S)
        answer = b""
        while more := its.recv(1 << 16):
            answer += more
    answered = json.loads(answer)
    assert answered["ok"] is bool(queue or "stacks" in answered)
    assert answered["ok"] or answered["error"]


INTEGER = "Input should be a valid integer"
MALFORMED = {
    b'{"op": "kill", "task": "worker:0", "signal": true}': f"invalid order: kill.signal: {INTEGER}",
    b'{"op": "kill", "task": "worker:0", "signal": "9"}': f"invalid order: kill.signal: {INTEGER}",
    b'{"op": "stop", "force": "no"}': "invalid order: stop.force: Input should be a valid boolean",
    b"hello": "invalid order: Invalid JSON",
    b"": "",  # a silent client
}


def test_malformed_order_is_refused_in_one_line() -> None:
    for data, error in MALFORMED.items():
        ours, its = socket.socketpair()
        with its, ours:
            its.sendall(data)
            ours.setblocking(False)
            with pytest.raises(InvalidOrder) as refused:
                control.read_order(ours)
        assert str(refused.value).startswith(error) and "\n" not in str(refused.value)


@contextlib.contextmanager
def serving(directory: Path, stacks: dict[str, TaskStack]) -> Iterator[Callable[[], int]]:
    """A control socket in a directory, whose tasks have these stacks. Yields a function that serves once what is ready
    and returns how many connections and sockets are awaited."""
    with selectors.DefaultSelector() as selector:
        requests = StackRequests(lambda tasks, native: tasks)
        requests.ask_agents = lambda tasks, native, done: done(stacks)  # type: ignore[method-assign]
        lifecycle = Lifecycle(JOB, "run-1", 0.0)
        orders = ControlOrders(served_in(directory), selector, lifecycle, requests, deque())

        def serve() -> int:
            for key, _ in selector.select(0.01):
                key.data()
            return len(selector.get_map())

        with closing(orders):
            yield serve


LONG = {f"worker:{index}": TaskStack(how="none", note="x" * 4096) for index in range(256)}


def connected(directory: Path, order: ControlOrder) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(directory / "control"))
    client.sendall(order.model_dump_json().encode())
    return client


def test_clients_that_never_read_block_no_other(tmp_path: Path) -> None:
    """The oldest of many is closed."""
    with serving(tmp_path, LONG) as serve, contextlib.ExitStack() as clients:
        for _ in range(70):
            clients.enter_context(connected(tmp_path, StacksOrder()))
            serve()
            serve()
        with connected(tmp_path, RestartOrder()) as client:
            until(lambda: serve() and select.select([client], [], [], 0)[0])
            assert json.loads(client.recv(1 << 16))["ok"]
        assert serve() <= 65  # with the listening socket


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    with closing(served_in(tmp_path)) as made:
        yield made


def calls(directory: Path, stack: contextlib.ExitStack) -> socket.socket | None:
    """A client that has connected and says nothing; None if there is no place for it."""
    client = stack.enter_context(socket.socket(socket.AF_UNIX))
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.connect(str(directory / "control"))
        return client
    return None


def test_order_after_many_idle_connections(tmp_path: Path, server: ControlServer) -> None:
    """After hundreds of silent or closed connections the next order is read."""
    order = KillOrder(task="worker:0", signal=9)
    accepted = 0
    with contextlib.ExitStack() as stack:
        for number in range(300):
            client = calls(tmp_path, stack)
            if number % 3 == 0 and client is not None:
                client.close()
            while (connection := server.accept()) is not None:
                stack.enter_context(connection)
                accepted += 1
        assert accepted >= 200
        stack.enter_context(connected(tmp_path, order))
        assert control.read_order(stack.enter_context(until(server.accept))) == order


def test_client_with_an_order_waits_for_a_place(tmp_path: Path, server: ControlServer) -> None:
    """Many clients are before it, and the queue of connections is full."""
    answers: list[object] = []
    path = tmp_path / "control"
    with contextlib.ExitStack() as stack:
        callers = 1
        while calls(tmp_path, stack) is not None:
            callers += 1
        asking = threading.Thread(
            target=lambda: answers.append(control.ask(path, RestartOrder(), PATIENCE_S))
        )
        asking.start()
        # The last caller found the queue full, so the last connection is that of the client with the order.
        while callers:
            select.select([server], [], [], PATIENCE_S)
            if (connection := server.accept()) is not None:
                last = stack.enter_context(connection)
                callers -= 1
        select.select([last], [], [], PATIENCE_S)
        assert control.read_order(last) == RestartOrder()
        last.sendall(b'{"ok": true}')
        last.close()
        asking.join()
    assert answers == [{"ok": True}]


@given(st.lists(any_order | st.just(DEEP), max_size=4), st.booleans())
@fuzzed(120)
def test_any_message_from_the_starting_client_is_an_order_or_an_error(
    lines: list[bytes], is_first: bool
) -> None:
    """Lines are read up to the first one that is not a message. The first of all is no request."""
    ours, its = socket.socketpair()
    with its, ours:
        link = ClientLink(ours)
        its.sendall(b"".join(line.replace(b"\n", b" ") + b"\n" for line in lines)[:60_000])
        its.shutdown(socket.SHUT_WR)
        if is_first:
            assert link.read_request() is None
        while not is_first and link.is_connected:
            assert all(isinstance(order, Order) for order in link.orders())


def test_answer_of_any_size_arrives_complete(tmp_path: Path) -> None:
    answers: list[dict[str, object] | None] = []
    asking = threading.Thread(
        target=lambda: answers.append(control.ask(tmp_path / "control", StacksOrder(), PATIENCE_S))
    )
    with serving(tmp_path, LONG) as serve:
        asking.start()
        while asking.is_alive():
            serve()
    assert answers == [
        {"ok": True, "stacks": {task: stack.model_dump(mode="json") for task, stack in LONG.items()}}
    ]
