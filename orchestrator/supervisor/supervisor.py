"""`Supervisor` drives one run with one event queue: inputs become events, and the lifecycle's actions are performed.

There is one thread. Signal handlers and readers only append events; the lifecycle decides; `_perform` acts. The loop
waits for the next input or deadline and never polls for exits.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from math import inf
from typing import assert_never

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle import actions
from orchestrator.core.lifecycle.actions import Action, Deadline
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, NoticeSource, StopReason
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import RunState
from orchestrator.host.headroom import many_files
from orchestrator.host.isolation import own_files
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.client_link import ClientLink
from orchestrator.links.control import ControlServer
from orchestrator.links.orders import DetachOrder, NoticeOrder, StopOrder
from orchestrator.links.signal_inbox import NOTICE_SIGNAL, SignalInbox
from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor import now
from orchestrator.supervisor.agent_inputs import AgentInputs
from orchestrator.supervisor.agent_orders import FIRST_ATTEMPT, Attempts
from orchestrator.supervisor.agent_reports import AgentReports
from orchestrator.supervisor.control_orders import ControlOrders, StackRequests
from orchestrator.supervisor.hosts import Hosts
from orchestrator.supervisor.notices import Notices
from orchestrator.supervisor.run_logs import RunLogs
from orchestrator.supervisor.tensorboard_task import TensorBoardTask
from worker.wire.messages import Signal, TakeStacks

_FOREVER_S = 3600.0
# Percent of one core; a task that uses more is busy.
_BUSY_PERCENT = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, NOTICE_SIGNAL)


class Supervisor:
    """Drives one run: run() returns its result. Owns the control socket and the log store meanwhile."""

    def __init__(
        self,
        spec: JobSpec,
        is_detached: bool,
        hosts: Hosts,
        store: RunStore,
        client: ClientLink,
    ) -> None:
        self._spec = spec
        self._is_detached = is_detached
        self._hosts = hosts
        self._store = store
        self._client = client
        self._selector = selectors.DefaultSelector()
        # The attempt whose ports are to be held when all hosts are there.
        self._awaited_attempt: int | None = None
        self._queue: deque[Event] = deque()
        mono = time.monotonic()
        ends_mono = None if spec.slurm_ends_at is None else spec.slurm_ends_at - time.time() + mono
        policies = {spec.policy_of(role) for role in spec.roles}
        files = own_files() if policies & {FailurePolicy.RESTART, FailurePolicy.RESTART_TASK} else {}
        self._lifecycle = Lifecycle(
            spec,
            store.paths.run_id,
            mono,
            ends_mono,
            lambda: bool(files) and own_files() != files,
        )
        self._notices = Notices(spec, self._lifecycle, self._queue, is_continued=bool(store.record.continues))
        # A limit on silence takes progress as a sign of life.
        self._throttle = ProgressThrottle(spec.chaos, (spec.stall_timeout_s or inf) / 4)
        self._logs = RunLogs(store.directory.sub(store.paths.logs.name), self._throttle)
        self._stacks = StackRequests(self._ask_for_stacks)
        tensorboard = TensorBoardTask(spec.tensorboard, spec.network, store, self._queue)
        self._attempts = Attempts(spec, hosts, store, self._logs, tensorboard, self._queue)
        self._reports = AgentReports(
            self._lifecycle,
            store,
            self._throttle,
            self._logs,
            self._stacks,
            tensorboard,
            self._queue,
        )
        self._agents = AgentInputs(
            hosts,
            self._selector,
            self._attempts,
            self._reports,
            self._logs,
            self._notices,
            self._queue,
            self._begin_attempt,
        )
        self._result: RunResult | None = None
        self._was_signalled = False

    @property
    def was_signalled(self) -> bool:
        """Whether a signal told this process, and not only the run, to stop."""
        return self._was_signalled

    @property
    def state(self) -> RunState:
        return self._lifecycle.state

    def run(self) -> RunResult:
        """Serve until the run has ended and its result is written."""
        with self._selector, self._logs, SignalInbox(_SIGNALS) as inbox:
            self._watch(inbox.fileno(), partial(self._read_signals, inbox))
            self._watch(self._client.fileno(), self._read_client)
            server = ControlServer(self._store.directory, self._store.paths.control.name)
            control = ControlOrders(server, self._selector, self._lifecycle, self._stacks, self._queue)
            try:
                with closing(control), many_files() if self._spec.hosts else nullcontext():
                    self._hosts.serve(self._spec, self._store)
                    self._begin()
                    if self._client.has_line:
                        self._read_client()  # what came with the nodes of a run that waited for them
                    # The agent of this machine has started, and passes the user's own limit on to the tasks.
                    with many_files():
                        while self._result is None:
                            self._turn()
            finally:
                if self._result is None:
                    self._agents.end()  # after an error of orch's own
        return self._result

    def _begin(self) -> None:
        self._attempts.report_start_method()
        self._agents.watch()
        if not self._spec.is_elastic:  # the lifecycle plans the attempts of an elastic run
            self._plan_attempt(FIRST_ATTEMPT, None)

    # -- the loop

    def _turn(self) -> None:
        ready = self._selector.select(self._wait_s())
        # The agents first: an exit must not wait until the other tasks' logs have been read.
        for key, _ in sorted(ready, key=lambda each: not self._agents.has(each[0].fd)):
            key.data()
            self._handle_events()
            if self._result is not None:
                return
        mono = time.monotonic()
        if self._agents.due is not None and mono >= self._agents.due:
            self._agents.tick(mono)
        if self._logs.due is not None and mono >= self._logs.due:
            self._logs.index()
        at = now()
        for task, progress in self._throttle.take(at["mono"]):
            self._queue.append(events.TaskProgressed(**at, task=task, progress=progress))
        deadline = self._lifecycle.next_deadline()
        if deadline is not None and mono >= deadline[0]:
            self._queue.append(self._deadline_reached(deadline[1]))
        self._stacks.close_due(mono)
        self._handle_events()
        self._reports.write_sample()
        self._handle_events()  # a failure to write the sample may be the only event

    def _handle_events(self) -> None:
        """Write and handle the queued events."""
        self._check_storage()
        while self._queue and self._result is None:
            event = self._queue.popleft()
            self._store.append(event)
            for action in self._lifecycle.handle(event):
                self._perform(action)
            self._check_storage()

    def _wait_s(self) -> float:
        """Seconds until the next deadline."""
        deadline = self._lifecycle.next_deadline()
        wakes = [
            wake
            for wake in (
                self._logs.due,
                self._throttle.due(),
                self._reports.due,
                self._stacks.due,
                self._agents.due,
                deadline and deadline[0],
            )
            if wake is not None
        ]
        # The kernel refuses to wait for more than 24 days.
        return min(_FOREVER_S, max(0.0, min(wakes, default=inf) - time.monotonic()))

    def _check_storage(self) -> None:
        for reason in (self._store.take_failure(), self._logs.take_failure()):
            if reason is not None:
                self._queue.append(events.StorageFailed(**now(), reason=reason))

    def _deadline_reached(self, deadline: str) -> Event:
        if deadline == Deadline.NOTICE:
            return self._notices.limit_reached()
        if deadline not in (Deadline.STALL_LIMIT, Deadline.SILENCE):
            return events.DeadlineReached(**now(), deadline=deadline)
        at = now()
        # Tasks of an earlier attempt may be missing in this one.
        logs = self._logs.quiet_s(at["mono"])
        quiet_s = {task: seconds for task, seconds in logs.items() if task in self.state.tasks}
        busy = tuple(task for task, used in self._reports.cpu_percent().items() if used > _BUSY_PERCENT)
        return events.DeadlineReached(**at, deadline=deadline, quiet_s=quiet_s, busy=busy)

    def _watch(self, fd: int, serve: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, serve)

    # -- actions

    def _perform(self, action: Action) -> None:
        match action:
            case actions.StartTasks():
                self._start_tasks()
            case actions.PlanAttempt():
                self._plan_attempt(action.attempt, action.job)
            case actions.ReopenHosts():
                self._reopen_hosts()
            case actions.StartTask():
                self._attempts.start_again(action.task, self.state.tasks[action.task].restarts)
            case actions.SendSignal():
                if (link := self._attempts.link_to(action.task)) is not None:
                    link.send(Signal(action.task, action.signal))
            case actions.TakeStacks():
                self._take_stacks(action.why)
            case actions.TearDown():
                self._tear_down(action)
            case actions.SweepHost():
                self._sweep_host()
            case actions.Happen():
                self._queue.append(action.event)
            case actions.Finish():
                self._finish(action.result)
            case _:
                assert_never(action)

    def _plan_attempt(self, attempt: int, job: JobSpec | None) -> None:
        """Hold the ports of an attempt: of this job, or without one as soon as all hosts are there."""
        if job is not None:
            self._attempts.hold_ports(attempt, job)
            return
        self._awaited_attempt = attempt
        if attempt != FIRST_ATTEMPT:
            self._reopen_hosts()
        self._begin_attempt()

    def _reopen_hosts(self) -> None:
        self._hosts.reopen()
        self._agents.watch()

    def _begin_attempt(self) -> None:
        if self._awaited_attempt is not None and self._hosts.are_complete:
            self._attempts.hold_ports(self._awaited_attempt, self._spec)
            self._awaited_attempt = None

    def _start_tasks(self) -> None:
        self._attempts.start_all()
        logs = self._logs.fileno()
        if logs >= 0 and logs not in self._selector.get_map():
            self._watch(logs, self._logs.index)
        self._logs.index()

    def _take_stacks(self, why: str) -> None:
        live = tuple(task.name for task in self.state.tasks.values() if task.is_live)
        self._stacks.ask_agents(
            live,
            False,
            lambda stacks: self._queue.append(events.StacksTaken(**now(), why=why, stacks=stacks)),
        )

    def _ask_for_stacks(self, tasks: tuple[str, ...], native: bool) -> tuple[str, ...]:
        """Ask the agents of these tasks for their stacks; return the tasks whose agent is there."""
        by_link: dict[AgentLink, list[str]] = {}
        for task in tasks:
            if (link := self._attempts.link_to(task)) is not None:
                by_link.setdefault(link, []).append(task)
        for link, its in by_link.items():
            link.send(TakeStacks(tuple(its), native))
        return tuple(task for its in by_link.values() for task in its)

    def _tear_down(self, action: actions.TearDown) -> None:
        self._queue.append(events.TeardownBegan(**now(), reason=action.reason, grace_s=action.grace_s))
        self._agents.tear_down(action.grace_s)
        if self._spec.hosts:
            self._agents.report_teardown()  # all of them may be lost

    def _sweep_host(self) -> None:
        """Kill the run's processes without the agent: children of this subreaper, or marked with the run's id."""
        self._agents.end()
        self._stacks.cancel_all()
        swept = end_leftovers(self._store.paths, ancestor_pid=os.getpid())
        self._queue.append(events.TeardownEnded(**now(), swept=swept.ended, left=swept.left))

    def _finish(self, result: RunResult) -> None:
        for task in self.state.tasks:
            self._logs.finish(task)
        self._stacks.cancel_all()
        if self._hosts.are_kept:
            self._agents.unwatch()
        else:
            self._agents.end()
        self._store.remove_scratch()
        self._result = self._notices.requeued(result)
        if self._result is not None:
            return  # the next start of the job records the end
        result = self._notices.with_reason(result)
        self._store.append(events.RunEndedEvent(**now(), outcome=result.outcome, exit_code=result.exit_code))
        self._store.write_result(result)
        self._result = result

    # -- inputs

    def _read_signals(self, inbox: SignalInbox) -> None:
        inbox.clear()
        for number in inbox.take():
            if number == NOTICE_SIGNAL:
                self._notices.give(NoticeSource.SIGNAL)
                continue
            self._was_signalled = True
            self._stop(StopOrder(reason=StopReason.TERMINATE, force=self.state.stop is not None))

    def _stop(self, order: StopOrder) -> None:
        if self._notices.take_as_notice(order):
            return
        self._queue.append(events.StopRequested(**now(), reason=order.reason, force=order.force))

    def _read_client(self) -> None:
        for order in self._client.orders():
            match order:
                case StopOrder():
                    self._stop(order)
                case NoticeOrder():
                    self._notices.give(order.source)
                case DetachOrder():
                    self._is_detached = True
        if not self._client.is_connected:
            self._selector.unregister(self._client.fileno())
            if not self._is_detached:
                self._stop(StopOrder(reason=StopReason.CLIENT_GONE))
