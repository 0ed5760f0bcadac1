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
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypedDict, assert_never

from pydantic import ValidationError

from orchestrator import agent_link, control, diagnosis, events
from orchestrator.agent_link import AgentLink, AgentMessage
from orchestrator.client_link import ClientLink
from orchestrator.control import ControlServer, StopOrder
from orchestrator.engines.base import AgentTerms, Engine
from orchestrator.events import Event, StopReason, SymptomKind, TeardownReason
from orchestrator.lifecycle import Action, Finish, Happen, Lifecycle, StartTasks, SweepHost, TearDown, Terms
from orchestrator.plan import RunPlan, planned_tasks
from orchestrator.progress_throttle import ProgressThrottle
from orchestrator.result import RunResult
from orchestrator.runs.last_words import last_words
from orchestrator.runs.leftovers import end_leftovers
from orchestrator.runs.log_store import LogStore
from orchestrator.runs.store import RunStore
from orchestrator.signal_inbox import SignalInbox

_FIRST_ATTEMPT = 1
_AGENT_LEAVES_S = 2.0
_FOREVER_S = 3600.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Planner(Protocol):
    """Plans an attempt once its ports are known."""

    @property
    def hold_mode(self) -> str: ...

    def ports_needed(self) -> int: ...

    def plan(self, attempt: int, ports: tuple[int, ...]) -> RunPlan: ...


class Supervisor:
    """One run, from run() to its return: owns the streams, the control socket and the log store in between."""

    def __init__(
        self,
        planner: Planner,
        terms: Terms,
        engine: Engine,
        store: RunStore,
        client: ClientLink,
        detached: bool,
    ) -> None:
        self._planner = planner
        self._terms = terms
        self._engine = engine
        self._store = store
        self._client = client
        self._detached = detached
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Event] = deque()
        self._lifecycle = Lifecycle(terms, time.monotonic())
        self._logs = LogStore(store.paths.logs)
        self._logs_due: float | None = None
        self._throttle = ProgressThrottle()
        self._plan: RunPlan | None = None
        self._agent: AgentLink | None = None
        self._usage: dict[str, dict[str, float]] = {}
        self._result: RunResult | None = None

    def run(self) -> RunResult:
        """Serve until the run has ended and is written down."""
        with self._selector, self._logs, SignalInbox(_STOP_SIGNALS) as inbox:
            self._watch(inbox.fileno(), partial(self._read_signals, inbox))
            self._watch(self._client.fileno(), self._read_client)
            control_server = ControlServer(self._store.paths.control)
            self._watch(control_server.fileno(), partial(self._accept_control, control_server))
            try:
                self._start_agent()
                _raise_file_limit()  # only now: the agent hands the user's own limit on to the tasks
                while self._result is None:
                    self._turn()
            finally:
                control_server.close()
                self._close_agent()
        return self._result

    # -- the loop

    def _turn(self) -> None:
        ready = self._selector.select(self._patience())
        for key, _ in ready:
            key.data()
        now = time.monotonic()
        if self._logs_due is not None and now >= self._logs_due:
            self._index_logs()
        for task, progress in self._throttle.take(now):
            self._happened(events.TaskProgressed(**_now(), task=task, progress=progress))
        deadline = self._lifecycle.next_deadline()
        if deadline is not None and now >= deadline[0]:
            self._happened(events.DeadlineReached(**_now(), deadline=deadline[1]))
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
        (stream,) = self._engine.start_agents(terms)
        self._agent = AgentLink(stream, self._terms.run_id)
        self._watch(self._agent.fileno(), self._read_agent)

    def _start_tasks(self) -> None:
        assert self._plan is not None and self._agent is not None
        for task in self._plan.tasks:
            name = str(task.task)
            task.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._logs.add(name, self._plan.attempt, task.log)
            port = int(task.address.rpartition(":")[2]) if task.address else None
            env = dict(task.env)
            self._agent.start(name, task.argv, env, str(task.cwd), str(task.log), port, task.serves)
        self._watch_logs()

    def _tear_down(self, action: TearDown) -> None:
        self._happened(events.TeardownBegan(**_now(), reason=action.reason, grace_s=action.grace_s))
        if self._agent is not None:
            self._agent.stop(action.grace_s)

    def _sweep_host(self) -> None:
        """Without the agent, everything of the run is a child of this subreaper or carries the run's id."""
        self._close_agent()
        swept = end_leftovers(self._terms.run_id, below=os.getpid())
        self._happened(events.TeardownEnded(**_now(), swept=swept))

    def _finish(self, result: RunResult) -> None:
        for task in self._lifecycle.state.tasks:
            self._finish_log(task)
        self._close_agent()
        self._store.remove_scratch()
        self._store.append(events.RunEndedEvent(**_now(), outcome=result.outcome, exit_code=result.exit_code))
        self._store.write_result(result)
        self._result = result

    def _close_agent(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent.fileno())
            self._agent.close()
            self._agent = None
        if not self._engine.agents_gone(_AGENT_LEAVES_S):
            self._engine.cancel()

    # -- what comes in

    def _read_signals(self, inbox: SignalInbox) -> None:
        inbox.clear()
        for _ in inbox.take():
            again = self._lifecycle.state.stop is not None
            self._stop(StopOrder(reason=StopReason.TERMINATE, force=again))

    def _stop(self, order: StopOrder) -> None:
        self._happened(events.StopRequested(**_now(), reason=order.reason, force=order.force))

    def _read_client(self) -> None:
        try:
            orders, is_there = self._client.read_orders()
        except ValidationError:
            orders, is_there = [], False
        for order in orders:
            self._stop(order)
        if not is_there:
            self._selector.unregister(self._client.fileno())
            if not self._detached:
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
            self._lose_agent(f"the agent sent what this version does not understand: {error}")
            return
        for message in messages:
            self._take(message)
        if not is_there:
            self._lose_agent("the agent was lost (killed, or it crashed: see agent.log)")

    def _lose_agent(self, reason: str) -> None:
        if self._agent is None:
            return
        self._close_agent()
        self._happened(events.AgentLost(**_now(), reason=reason))

    def _take(self, message: AgentMessage) -> None:
        match message:
            case agent_link.Hello():
                assert self._agent is not None
                self._agent.hold(_FIRST_ATTEMPT, self._planner.ports_needed(), self._planner.hold_mode)
            case agent_link.Held():
                self._plan = self._planner.plan(message.attempt, message.ports)
                tasks = planned_tasks(self._plan)
                self._happened(events.AttemptPlanned(**_now(), attempt=message.attempt, tasks=tasks))
            case agent_link.HoldFailed():
                self._lose_agent(f"no ports: {message.reason}")
            case agent_link.Started():
                started = events.TaskStarted(
                    **_now(), task=message.task, pid=message.pid, start_ticks=message.start_ticks
                )
                self._happened(started)
                if not self._serves(message.task):
                    self._happened(events.TaskReady(**_now(), task=message.task))
            case agent_link.StartFailed():
                failed = events.TaskStartFailed(
                    **_now(), task=message.task, exit_code=message.exit_code, reason=message.reason
                )
                self._happened(failed)
            case agent_link.Listening():
                self._happened(events.TaskReady(**_now(), task=message.task))
            case agent_link.ProgressMade():
                progress = message.checked()
                if progress is not None:
                    self._throttle.put(message.task, progress)
            case agent_link.Sampled():
                self._take_sample(message)
            case agent_link.Exited():
                self._take_exit(message)
            case agent_link.Empty():
                if message.swept and self._lifecycle.state.teardown is TeardownReason.FINISHED:
                    many = "processes" if message.swept > 1 else "process"
                    text = f"killed {message.swept} {many} that the tasks had left running"
                    self._happened(events.Noticed(**_now(), text=text))
                self._happened(events.TeardownEnded(**_now(), swept=message.swept))
            case _:
                assert_never(message)

    def _serves(self, name: str) -> bool:
        return self._plan is not None and any(
            task.serves for task in self._plan.tasks if str(task.task) == name
        )

    def _take_exit(self, message: agent_link.Exited) -> None:
        now = _now()
        self._usage.pop(message.task, None)
        progress = self._throttle.take_last(message.task, now["mono"])
        if progress is not None:
            self._happened(events.TaskProgressed(**now, task=message.task, progress=progress))
        self._finish_log(message.task)
        exited = events.TaskExited(
            **now,
            task=message.task,
            exit_code=message.exit_code,
            signal=message.signal,
            order=message.order,
            noticed_s=max(0.0, now["mono"] - message.mono),
            peers=message.peers,
            symptom=None if message.exit_code == 0 else self._last_words(message.task),
            peer_symptoms=self._raised_by(message.peers) if self._is_first_failure(message) else {},
        )
        self._happened(exited)

    def _is_first_failure(self, message: agent_link.Exited) -> bool:
        if message.exit_code == 0 or self._lifecycle.state.teardown is not None:
            return False
        waiting = (event for event in self._queue if isinstance(event, events.TaskExited))
        return all(event.exit_code == 0 for event in waiting)

    def _raised_by(self, tasks: Iterable[str]) -> dict[str, events.Symptom]:
        """Those with an exception of their own. Read before a teardown makes others raise something too."""
        symptoms = {task: self._last_words(task) for task in tasks}
        return {task: symptom for task, symptom in symptoms.items() if symptom.kind is SymptomKind.OWN}

    def _last_words(self, task: str) -> events.Symptom:
        return diagnosis.read_symptom(last_words(self._store.paths.task_log(task)))

    def _take_sample(self, message: agent_link.Sampled) -> None:
        self._usage |= {task: usage.model_dump() for task, usage in message.tasks.items()}
        try:
            self._store.write_sample(tasks=self._usage, **_now())
        except OSError as error:
            # Figures to look at are not worth a run, on a full disk for instance.
            sys.stderr.write(f"sample.json: {error}\n")

    # -- logs

    def _watch_logs(self) -> None:
        """inotify where there is any; else the store asks for its next poll itself."""
        watched = self._logs.fileno()
        if watched >= 0 and watched not in self._selector.get_map():
            self._watch(watched, self._index_logs)
        self._index_logs()

    def _index_logs(self) -> None:
        delay_s = self._logs.poll(time.monotonic())
        self._logs_due = None if delay_s is None else time.monotonic() + delay_s
        self._report_truncations()

    def _finish_log(self, task: str) -> None:
        self._logs.finish(task, time.monotonic())
        self._report_truncations()

    def _report_truncations(self) -> None:
        for task, lost in self._logs.take_truncations():
            self._happened(events.LogTruncated(**_now(), task=task, lost=lost))


def _raise_file_limit() -> None:
    """Room for a log a task."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Now(TypedDict):
    at: float
    mono: float


def _now() -> _Now:
    """Both clocks: `at` for people, `mono` for durations."""
    return {"at": time.time(), "mono": time.monotonic()}
