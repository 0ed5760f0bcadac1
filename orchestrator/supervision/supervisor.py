"""Drives one run from one event queue: what comes in becomes an event, what the lifecycle answers gets done.

One thread. Signal handlers and readers only enqueue; the lifecycle decides; `_perform` acts. The loop waits for
the next event or deadline and never polls for exits.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, assert_never

from pydantic import ValidationError

from orchestrator import events
from orchestrator.clocks import now
from orchestrator.engines.base import AgentTerms
from orchestrator.events import Event, StopReason
from orchestrator.lifecycle import Action, Finish, Happen, Lifecycle, StartTasks, SweepHost, TearDown, Terms
from orchestrator.links import control
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.client_link import ClientLink, Lifetime
from orchestrator.links.control import ControlServer, StopOrder
from orchestrator.links.signal_inbox import SignalInbox
from orchestrator.plan import PreloadPlan, RunPlan
from orchestrator.progress.line_progress import ProgressReader
from orchestrator.progress.progress_throttle import ProgressThrottle
from orchestrator.result import RunResult
from orchestrator.runs.leftovers import end_leftovers
from orchestrator.runs.log_store import LogStore
from orchestrator.runs.store import RunStore
from orchestrator.state import RunState
from orchestrator.supervision.agent_reports import AgentReports
from orchestrator.supervision.held_agent import HeldAgent, Tenure

_FIRST_ATTEMPT = 1
_FOREVER_S = 3600.0
# While the logs grow, their lines are looked at for progress no more often; Keras draws a frame in that time.
_LINES_INTERVAL_S = 0.05
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Planner(Protocol):
    """Plans an attempt once its ports are known, and before that what it can begin with."""

    @property
    def hold_mode(self) -> str: ...

    @property
    def start_reason(self) -> str:
        """Why tasks are forked or not, in words."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What those should hear who want to hear more."""

    def ports_needed(self) -> int: ...

    def preload(self) -> PreloadPlan | None: ...

    def plan(self, attempt: int, ports: tuple[int, ...]) -> RunPlan: ...


class Supervisor:
    """One run, from run() to its return: owns the streams, the control socket and the log store in between."""

    def __init__(
        self,
        planner: Planner,
        terms: Terms,
        agent: HeldAgent,
        store: RunStore,
        client: ClientLink,
        lifetime: Lifetime,
    ) -> None:
        self._planner = planner
        self._terms = terms
        self._held_agent = agent
        self._store = store
        self._client = client
        self._lifetime = lifetime
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Event] = deque()
        self._lifecycle = Lifecycle(terms, time.monotonic())
        self._logs = LogStore(store.paths.logs)
        self._logs_due: float | None = None
        self._lines_due = 0.0
        self._lines = ProgressReader()
        self._throttle = ProgressThrottle()
        self._reports = AgentReports(self, planner, store, self._throttle, self._queue)
        self._agent: AgentLink | None = None
        self._result: RunResult | None = None
        self._signalled = False

    @property
    def was_signalled(self) -> bool:
        """Whether this process has been told to leave, and not the run alone to end."""
        return self._signalled

    @property
    def state(self) -> RunState:
        return self._lifecycle.state

    def run(self) -> RunResult:
        """Serve until the run has ended and is written down."""
        with self._selector, self._logs, SignalInbox(_STOP_SIGNALS) as inbox:
            self._watch(inbox.fileno(), partial(self._read_signals, inbox))
            self._watch(self._client.fileno(), self._read_client)
            control_server = ControlServer(self._store.paths.control)
            self._watch(control_server.fileno(), partial(self._accept_control, control_server))
            try:
                self._start_agent()
                # Only now: the agent hands the user's own limit on to the tasks.
                with _many_files():
                    while self._result is None:
                        self._turn()
            finally:
                control_server.close()
                if self._result is None:
                    self._end_agent()  # whatever went wrong here, it has nothing to wait for
        return self._result

    # -- the loop

    def _turn(self) -> None:
        ready = self._selector.select(self._patience())
        for key, _ in ready:
            key.data()
        mono = time.monotonic()
        if self._logs_due is not None and mono >= self._logs_due:
            self._index_logs()
        for task, progress in self._throttle.take(mono):
            self._happened(events.TaskProgressed(**now(), task=task, progress=progress))
        deadline = self._lifecycle.next_deadline()
        if deadline is not None and mono >= deadline[0]:
            self._happened(events.DeadlineReached(**now(), deadline=deadline[1]))
        while self._queue and self._result is None:
            event = self._queue.popleft()
            self._store.append(event)
            for action in self._lifecycle.handle(event):
                self._perform(action)

    def _patience(self) -> float:
        """Seconds until something is due by itself."""
        deadline = self._lifecycle.next_deadline()
        wakes = [
            wake
            for wake in (self._logs_due, self._throttle.due(), deadline and deadline[0])
            if wake is not None
        ]
        return max(0.0, min(wakes, default=_FOREVER_S + time.monotonic()) - time.monotonic())

    def _happened(self, event: Event) -> None:
        self._queue.append(event)

    def _watch(self, fd: int, serve: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, serve)

    # -- acting

    def _perform(self, action: Action) -> None:
        match action:
            case StartTasks():
                self._start_tasks()
            case TearDown():
                self._tear_down(action)
            case SweepHost():
                self._sweep_host()
            case Happen():
                self._happened(action.event)
            case Finish():
                self._finish(action.result)
            case _:
                assert_never(action)

    def _start_agent(self) -> None:
        terms = AgentTerms(self._terms.run_id, self._terms.failure_grace_s, self._store.paths.agent_log)
        several = self._lifetime is Lifetime.SESSION
        self._agent = self._held_agent.serve(terms, Tenure.SEVERAL_RUNS if several else Tenure.ONE_RUN)
        self._watch(self._agent.fileno(), self._read_agent)
        # Before the agent has said a word, let alone the ports are known: an import is what takes longest.
        self._preload(self._agent)
        self._agent.hold(_FIRST_ATTEMPT, self._planner.ports_needed(), self._planner.hold_mode)

    def _preload(self, agent: AgentLink) -> None:
        for remark in self._planner.remarks:
            self._happened(events.Noticed(**now(), text=remark, verbose=True))
        preload = self._planner.preload()
        if preload is None:
            self._happened(events.NotPreloaded(**now(), reason=self._planner.start_reason))
            return
        log = str(self._store.paths.preloader_log)
        agent.preload(preload.argv, preload.env, str(preload.cwd), preload.modules, preload.script_env, log)
        self._happened(events.PreloadBegan(**now(), modules=preload.modules))

    def _start_tasks(self) -> None:
        plan = self._reports.plan
        assert plan is not None and self._agent is not None
        for task in plan.tasks:
            name = str(task.task)
            task.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._store.paths.task_exception(name).unlink(missing_ok=True)
            self._logs.add(name, plan.attempt, task.log)
            port = int(task.address.rpartition(":")[2]) if task.address else None
            self._agent.start(
                name,
                task.argv,
                dict(task.env),
                str(task.cwd),
                str(task.log),
                port,
                task.serves,
                task.bootstrap,
                task.fork,
            )
        self._watch_logs()

    def _tear_down(self, action: TearDown) -> None:
        self._happened(events.TeardownBegan(**now(), reason=action.reason, grace_s=action.grace_s))
        if self._agent is not None:
            self._agent.stop(action.grace_s)

    def _sweep_host(self) -> None:
        """Without the agent, everything of the run is a child of this subreaper or carries the run's id."""
        self._end_agent()
        swept = end_leftovers(self._terms.run_id, below=os.getpid())
        self._happened(events.TeardownEnded(**now(), swept=swept))

    def _finish(self, result: RunResult) -> None:
        for task in self._lifecycle.state.tasks:
            self.finish_log(task)
        self._let_go_of_agent()
        self._held_agent.run_ended()
        self._store.remove_scratch()
        self._store.append(events.RunEndedEvent(**now(), outcome=result.outcome, exit_code=result.exit_code))
        self._store.write_result(result)
        self._result = result

    def _let_go_of_agent(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent.fileno())
            self._agent = None

    def _end_agent(self) -> None:
        self._let_go_of_agent()
        self._held_agent.end()

    # -- what comes in

    def _read_signals(self, inbox: SignalInbox) -> None:
        inbox.clear()
        for _ in inbox.take():
            self._signalled = True
            again = self._lifecycle.state.stop is not None
            self._stop(StopOrder(reason=StopReason.TERMINATE, force=again))

    def _stop(self, order: StopOrder) -> None:
        self._happened(events.StopRequested(**now(), reason=order.reason, force=order.force))

    def _read_client(self) -> None:
        try:
            orders, is_there = self._client.read_orders()
        except ValidationError:
            orders, is_there = [], False
        for order in orders:
            self._stop(order)
        if not is_there:
            self._selector.unregister(self._client.fileno())
            if self._lifetime is not Lifetime.DETACHED:
                self._stop(StopOrder(reason=StopReason.CLIENT_GONE))

    def _accept_control(self, server: ControlServer) -> None:
        connection = server.accept()
        if connection is not None:
            self._watch(connection.fileno(), partial(self._serve_control, connection))

    def _serve_control(self, connection: socket.socket) -> None:
        self._selector.unregister(connection.fileno())
        with connection:
            order = control.serve(connection)
        if order is not None:
            self._stop(order)

    def _read_agent(self) -> None:
        assert self._agent is not None
        try:
            messages, is_there = self._agent.read()
        except ValidationError as error:
            self.lose_agent(f"the agent sent what this version does not understand: {error}")
            return
        for message in messages:
            self._reports.take(message)
        if not is_there:
            self.lose_agent("the agent was lost (killed, or it crashed: see agent.log)")

    def lose_agent(self, reason: str) -> None:
        """It is of no use any more: end it, and let the lifecycle decide."""
        if self._agent is None:
            return
        self._end_agent()
        self._happened(events.AgentLost(**now(), reason=reason))

    # -- logs

    def _watch_logs(self) -> None:
        """inotify where there is any; else the store asks for its next poll itself."""
        watched = self._logs.fileno()
        if watched >= 0 and watched not in self._selector.get_map():
            self._watch(watched, self._index_logs)
        self._index_logs()

    def _index_logs(self) -> None:
        mono = time.monotonic()
        delay_s = self._logs.poll(mono)
        self._logs_due = None if delay_s is None else mono + delay_s
        if delay_s is None or mono >= self._lines_due:
            self._lines_due = mono + _LINES_INTERVAL_S
            self._read_progress()
        self._report_truncations()

    def finish_log(self, task: str) -> None:
        """Index all that the task has written; it will write no more."""
        self._logs.finish(task, time.monotonic())
        self._read_progress()
        self._report_truncations()

    def _read_progress(self) -> None:
        mono = time.monotonic()
        for tail in self._logs.take_tails():
            progress = self._lines.read(tail.task, tail.attempt, tail.data, mono, missed=tail.missed)
            if progress is not None:
                self._throttle.put_read(tail.task, progress)

    def _report_truncations(self) -> None:
        for task, lost in self._logs.take_truncations():
            self._happened(events.LogTruncated(**now(), task=task, lost=lost))


@contextmanager
def _many_files() -> Iterator[None]:
    """Room for a log a task."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
