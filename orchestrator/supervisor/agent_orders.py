"""`Attempts`: what the agents are ordered to start in each attempt of a run."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.job.tf_config import TFConfigTooLong
from orchestrator.core.plan.placement import place
from orchestrator.core.plan.places import TaskPlace, local_places
from orchestrator.core.plan.plan import (
    RunPlan,
    TaskPlan,
    build_plan,
    hold_mode,
    planned_tasks,
    preload_order,
    takes_bootstrap,
)
from orchestrator.core.state import events
from orchestrator.core.state.events import Event
from orchestrator.core.text.clean import one_line
from orchestrator.links.agent_link import AgentLink, AgentMessage
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor import now
from orchestrator.supervisor.hosts import HERE, Hosts, HostUnusable
from orchestrator.supervisor.run_logs import RunLogs
from orchestrator.supervisor.tensorboard_task import TensorBoardTask
from worker.wire.codec import encode
from worker.wire.messages import (
    AboutTask,
    Empty,
    Exited,
    Held,
    Hold,
    HoldFailed,
    Plan,
    Sampled,
    TaskOrder,
)

FIRST_ATTEMPT = 1
_ADDRESS = "127.0.0.1"
_NO_BOOTSTRAP = (
    "Python's options -I, -E and -S keep orch's code out of the script's process: no fixes for Keras, no stacks, and"
    " the script itself decides how it handles a stop"
)


class Attempts:
    """Plans the attempts of one run and sends the orders to start them. Appends events to `queue`."""

    def __init__(
        self,
        spec: JobSpec,
        hosts: Hosts,
        store: RunStore,
        logs: RunLogs,
        tensorboard: TensorBoardTask,
        queue: deque[Event],
    ) -> None:
        # In an elastic run, the job of this attempt.
        self._spec = spec
        self._hosts = hosts
        self._store = store
        self._logs = logs
        self._tensorboard = tensorboard
        self._queue = queue
        # The number of the last order to hold ports, and the attempt that it was for.
        self._order = self._attempt = 0
        # For this attempt: the host of each task, the number of tasks of each host, and the addresses that are held.
        self._placement: tuple[str, ...] = ()
        self._counts: Counter[str] = Counter()
        self._held: dict[str, tuple[str, ...]] = {}
        self._taken: set[str] = set()
        # The last plan, and the host of each task in it.
        self._plan: RunPlan | None = None
        self._host_of: dict[str, str] = {}

    def hold_ports(self, attempt: int, job: JobSpec) -> None:
        """Order the ports of an attempt; before the first, the preloading, which takes longest.

        On other hosts it begins as soon as their agents are there (Hosts). A second call for the same attempt
        replaces the first one.
        """
        self._spec = job
        if attempt == FIRST_ATTEMPT and (link := self._hosts.links.get(HERE)) is not None:
            # Each run imports the user's own modules again.
            installed_only = self._hosts.are_kept
            order = preload_order(self._spec, self._store.paths, os.environ)
            if order is not None:
                link.send(replace(order, installed_only=installed_only))
        self._placement = place(self._spec) if self._spec.hosts else (HERE,) * len(self._spec.tasks)
        self._counts = Counter(self._placement)
        self._held.clear()
        self._taken.clear()
        self._order += 1
        self._attempt = attempt
        for host, count in self._counts.items():
            if (agent := self._hosts.links.get(host)) is not None:
                agent.send(Hold(self._order, count, hold_mode(self._spec, os.environ)))

    def lose_host(self, host: str) -> None:
        """Forget what a host was ordered. An attempt that is not planned yet lacks its ports from now on."""
        self._taken.difference_update(self._held.pop(host, ()))

    def report_start_method(self) -> None:
        """Report that the run's tasks will be forked, or why not. It comes before what an agent reports."""
        commands = self._spec.commands
        if any(command.interpreter and not takes_bootstrap(command) for command in commands):
            self._queue.append(events.Noticed(**now(), text=_NO_BOOTSTRAP, verbose=True))
        start = self._spec.command.start
        if start.fork:
            self._queue.append(events.Preload(**now(), modules=start.modules))
        else:
            self._queue.append(events.Preload(**now(), refused=start.reason))

    def take_held(self, host: str, held: Held) -> None:
        """Plan the attempt once the ports of all its hosts are held. HostUnusable."""
        if held.number < self._order:
            return  # the attempt has ended, or was planned again, before its ports were held
        if (held.number, len(held.ports)) != (self._order, self._counts[host]) or host in self._held:
            raise HostUnusable(f"it reports {len(held.ports)} ports, which it was not asked for")
        addresses = self._addresses(host, held.ports)
        for address in addresses:
            if address in self._taken:
                raise HostUnusable(f"it reports the address {address}, which another task has")
            self._taken.add(address)
        self._held[host] = addresses
        if self._held.keys() < self._counts.keys():
            return
        try:
            self._plan = build_plan(
                self._spec, self._places(), self._store.paths, self._attempt, os.environ, self._hosts.facts
            )
        except (TFConfigTooLong, SettingMisfit) as error:
            self._queue.append(events.AgentLost(**now(), reason=str(error)))
            return
        self._host_of = dict(zip(map(str, self._spec.tasks), self._placement, strict=True))
        tasks, cluster = planned_tasks(self._plan, self._store.paths), self._plan.cluster.addresses
        self._queue.append(
            events.AttemptPlanned(**now(), attempt=self._attempt, tasks=tasks, cluster=cluster)
        )

    def _addresses(self, host: str, ports: tuple[int, ...]) -> tuple[str, ...]:
        if host == HERE:
            return tuple(f"{_ADDRESS}:{port}" for port in ports)
        if (facts := self._hosts.facts.get(host)) is None:
            raise HostUnusable("it reports ports before facts about itself")
        return tuple(_host_and_port(facts.address, port) for port in ports)

    def _places(self) -> list[TaskPlace]:
        if not self._spec.hosts:
            return local_places(self._held[HERE])
        addresses = {host: iter(held) for host, held in self._held.items()}
        layouts = {host: self._hosts.layout(host, self._store.paths) for host in self._held}
        return [TaskPlace(host, next(addresses[host]), layouts[host]) for host in self._placement]

    def check_report(self, host: str, message: AgentMessage) -> None:
        """HostUnusable for a report about a task that is not planned or not on this host, and if the host has no ports
        for its tasks."""
        tasks: Iterable[str] = ()
        if isinstance(message, HoldFailed):
            raise HostUnusable(f"it has no ports for its tasks: {one_line(message.reason)}")
        if isinstance(message, Exited):
            tasks = (message.task, *message.exit.peers)
        elif isinstance(message, AboutTask):
            tasks = (message.task,)
        elif isinstance(message, Sampled):
            tasks = message.tasks
        elif isinstance(message, Empty):
            tasks = message.unsent
        for task in tasks:
            if self._host_of.get(task) != host:
                raise HostUnusable(f"it reports about {task!r:.80}, which it does not run")

    def link_to(self, task: str) -> AgentLink | None:
        """The link to the agent of a task; None if it is lost."""
        if task not in self._host_of:
            return None
        return self._hosts.links.get(self._host_of[task])

    def start_all(self) -> None:
        """Start every task of the planned attempt."""
        if self._plan is None:
            return
        plan = encode(Plan(self._plan.cluster.addresses))
        for host in self._counts:
            if (agent := self._hosts.links.get(host)) is not None:
                agent.send_line(plan)
        with self._storage_errors_reported():
            self._store.require_place()  # tasks find their directories by path
            for task in self._plan.tasks:
                name = task.order.task
                log = self._store.paths.task_log(name)
                if self.link_to(name) is not None:
                    self._hosts.expect_log(self._host_of[name], name, log)
                self._logs.add(name, self._plan.attempt, log, watched=task.host is None)
                self._start(task, task.order)
            if (link := self._hosts.links.get(HERE)) is not None:
                self._tensorboard.start(link)

    def start_again(self, name: str, restarts: int) -> None:
        """Start one task again with its port, while the other tasks continue. `restarts`: so far."""
        if self._plan is None:
            return
        with self._storage_errors_reported():
            for task in self._plan.tasks:
                if task.order.task == name:
                    env = {**task.order.env, "ORCH_RESTARTS": str(restarts)}
                    self._start(task, replace(task.order, env=env))

    @contextmanager
    def _storage_errors_reported(self) -> Iterator[None]:
        """Report an OSError about a task's files as a failure of the storage."""
        try:
            yield
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            self._queue.append(events.StorageFailed(**now(), reason=reason))

    def _start(self, task: TaskPlan, order: TaskOrder) -> None:
        name = order.task
        link = self.link_to(name)
        if link is None:
            return
        if task.host is None:
            scratch = self._store.paths.task_scratch(name)
            with self._store.directory.make(scratch.parent.name) as directory:
                directory.make(scratch.name).close()
        # It may hold the exception of an earlier process of this task.
        self._store.forget_exception(name)
        self._logs.mark_process_start(name)
        link.send(order)


def _host_and_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
