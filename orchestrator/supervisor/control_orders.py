"""Serves the control socket of a run: reads one order from each connection, checks it and answers it."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, assert_never

from orchestrator.core.state import events
from orchestrator.core.state.events import Event
from orchestrator.core.state.result import TaskStack, exit_text
from orchestrator.core.state.state import RunState
from orchestrator.links.control import ControlServer, read_order
from orchestrator.links.orders import (
    ControlOrder,
    InvalidOrder,
    KillOrder,
    NoticeOrder,
    RestartOrder,
    StacksOrder,
    StopOrder,
)
from orchestrator.supervisor import now

# Limit on connections that keep the supervisor waiting. The oldest is closed when a new one exceeds it.
_MOST_SLOW = 64
# The agent answers for a task within about 2 s, but not for a task that exits meanwhile.
PATIENCE_S = 4.0
# py-spy first reads all symbols of TensorFlow.
NATIVE_PATIENCE_S = 75.0


@dataclass
class _Request:
    wanted: frozenset[str]
    native: bool
    due: float
    done: Callable[[dict[str, TaskStack]], None]
    received: dict[str, TaskStack] = field(default_factory=dict)


class StackRequests:
    """Open requests for stacks. Each ends once: when all its tasks have answered or exited, or when it is due.

    Times are monotonic seconds.
    """

    def __init__(self, ask: Callable[[tuple[str, ...], bool], tuple[str, ...]]) -> None:
        """`ask` sends an order for the stacks of tasks (native or not), and returns the tasks that were asked."""
        self._ask = ask
        self._open: list[_Request] = []

    @property
    def due(self) -> float | None:
        return min((request.due for request in self._open), default=None)

    def ask_agents(
        self, tasks: tuple[str, ...], native: bool, done: Callable[[dict[str, TaskStack]], None]
    ) -> None:
        """Ask for the stacks of these tasks and call `done` with those that arrive in time."""
        self.add(self._ask(tasks, native), native, time.monotonic(), done)

    def add(
        self, tasks: Collection[str], native: bool, now: float, done: Callable[[dict[str, TaskStack]], None]
    ) -> None:
        patience_s = NATIVE_PATIENCE_S if native else PATIENCE_S
        self._open.append(_Request(frozenset(tasks), native, now + patience_s, done))
        self.close_due(now)

    def answered(self, task: str, native: bool, stack: TaskStack, now: float) -> None:
        """Take one task's stack, for the requests with the same `native`."""
        for request in self._open:
            if task in request.wanted and native == request.native:
                request.received[task] = stack
        self.close_due(now)

    def task_ended(self, task: str, now: float) -> None:
        for request in self._open:
            request.wanted -= {task}
        self.close_due(now)

    def cancel_all(self) -> None:
        """End all requests, because the agent is gone."""
        self.close_due(float("inf"))

    def close_due(self, now: float) -> None:
        settled = [r for r in self._open if r.wanted <= r.received.keys() or r.due <= now]
        self._open = [request for request in self._open if request not in settled]
        for request in settled:
            request.done(request.received)


class StateOwner(Protocol):
    """The lifecycle, as far as orders need it."""

    @property
    def state(self) -> RunState: ...


class ControlOrders:
    """Owns the control socket and its connections until close(). Orders become events at the end of `queue`."""

    def __init__(
        self,
        server: ControlServer,
        selector: selectors.BaseSelector,
        run: StateOwner,
        stacks: StackRequests,
        queue: deque[Event],
    ) -> None:
        self._selector = selector
        self._run = run
        self._stacks = stacks
        self._queue = queue
        # Connections that have not sent an order, or have not taken their whole answer; the oldest first.
        self._slow: deque[socket.socket] = deque()
        self._server = server
        selector.register(self._server.fileno(), selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        self._server.close()
        for connection in self._slow:
            connection.close()

    def _accept(self) -> None:
        connection = self._server.accept()
        if connection is not None:
            self._await(connection, selectors.EVENT_READ, partial(self._read, connection))

    def _await(self, connection: socket.socket, event: int, serve: Callable[[], None]) -> None:
        self._selector.register(connection, event, serve)
        self._slow.append(connection)
        if len(self._slow) > _MOST_SLOW:
            oldest = self._slow[0]
            self._take(oldest)
            oldest.close()

    def _take(self, connection: socket.socket) -> bool:
        """Take a connection out of those that are awaited; False if it was closed in this turn."""
        if connection not in self._slow:
            return False
        self._slow.remove(connection)
        self._selector.unregister(connection)
        return True

    def _read(self, connection: socket.socket) -> None:
        if self._take(connection):
            self.serve(connection)

    def serve(self, connection: socket.socket) -> None:
        """Read one order and carry it out. The connection is closed after the answer."""
        try:
            order = read_order(connection)
        except InvalidOrder as error:
            self._answer(connection, ok=False, error=str(error))
            return
        refusal = _refusal(order, self._run.state)
        if refusal is not None:
            self._answer(connection, ok=False, error=refusal)
            return
        self._carry_out(order, self._run.state, connection)

    def _carry_out(self, order: ControlOrder, state: RunState, connection: socket.socket) -> None:
        match order:
            case StopOrder():
                self._queue.append(events.StopRequested(**now(), reason=order.reason, force=order.force))
                self._answer(connection, ok=True)
            case KillOrder():
                self._queue.append(
                    events.SignalRequested(**now(), task=order.task, signal=order.signal, by="user")
                )
                self._answer(connection, ok=True, pid=state.tasks[order.task].pid)
            case RestartOrder():
                self._queue.append(events.RestartRequested(**now()))
                self._answer(connection, ok=True, attempt=state.attempt)
            case NoticeOrder():
                self._queue.append(events.NoticeGiven(**now(), source=order.source, left_s=order.left_s))
                self._answer(connection, ok=True)
            case StacksOrder():
                tasks = order.tasks or tuple(task.name for task in state.tasks.values() if task.is_live)
                self._stacks.ask_agents(tasks, order.native, partial(self._answer_stacks, connection))
            case _:
                assert_never(order)

    def _answer_stacks(self, connection: socket.socket, stacks: dict[str, TaskStack]) -> None:
        dumped = {task: stack.model_dump(mode="json") for task, stack in stacks.items()}
        self._answer(connection, ok=True, stacks=dumped)
        if stacks:
            self._queue.append(events.StacksTaken(**now(), why=events.StacksTaken.BY_USER, stacks=stacks))

    def _answer(self, connection: socket.socket, ok: bool, **fields: object) -> None:
        """The order stays valid if its sender does not read the answer."""
        self._send(connection, json.dumps({"ok": ok, **fields}).encode() + b"\n")

    def _send(self, connection: socket.socket, rest: bytes) -> None:
        """Send without waiting, and close. The stacks of hundreds of tasks do not fit into the socket's buffer."""
        try:
            rest = rest[connection.send(rest) :]
        except BlockingIOError:
            pass
        except OSError:
            rest = b""
        if rest:
            self._await(connection, selectors.EVENT_WRITE, partial(self._send_rest, connection, rest))
        else:
            connection.close()

    def _send_rest(self, connection: socket.socket, rest: bytes) -> None:
        if self._take(connection):
            self._send(connection, rest)


def _refusal(order: ControlOrder, state: RunState) -> str | None:
    """Why the order cannot be carried out; None if it can."""
    match order:
        case StopOrder():
            return None
        case RestartOrder() | NoticeOrder():
            return "the run is being stopped" if state.stop is not None else None
        case KillOrder():
            return _why_not_live(order.task, state)
        case StacksOrder():
            return next((why for task in order.tasks if (why := _why_not_live(task, state))), None)
        case _:
            assert_never(order)


def _why_not_live(name: str, state: RunState) -> str | None:
    task = state.tasks.get(name)
    if task is None:
        known = ", ".join(state.tasks)
        return f"there is no {name} in this run; it has {known or 'no tasks yet'}"
    if task.phase.is_end:
        return f"{name} has ended ({exit_text(task.exit_code, task.signal)})"
    return None if task.pid is not None else f"{name} has not started yet"
