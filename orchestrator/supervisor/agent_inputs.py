"""Reads the agents of a run: their messages, the loss of one, and the end of a teardown on all of them."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable
from functools import partial

from orchestrator.core.state import events
from orchestrator.core.state.events import Event, NoticeSource
from orchestrator.links.agent_link import TICK_S, AgentLink, AgentMessage, LinkBack, LinkSilent
from orchestrator.store.logs.received import ForgedLog
from orchestrator.supervisor import now
from orchestrator.supervisor.agent_orders import Attempts
from orchestrator.supervisor.agent_reports import AgentReports
from orchestrator.supervisor.hosts import HERE, Hosts, HostUnusable
from orchestrator.supervisor.notices import Notices
from orchestrator.supervisor.run_logs import RunLogs
from worker.wire.messages import Empty, Held, Hello, Log, Notice, Stop


class AgentInputs:
    """Registers the links of the agents in `selector`, and reports what they send to the end of `queue`.

    `due`: when tick() is to be called (monotonic seconds; None: never). `host_joined` is called for a new host."""

    def __init__(
        self,
        hosts: Hosts,
        selector: selectors.BaseSelector,
        attempts: Attempts,
        reports: AgentReports,
        logs: RunLogs,
        notices: Notices,
        queue: deque[Event],
        host_joined: Callable[[], None],
    ) -> None:
        self.due: float | None = None
        self._hosts = hosts
        self._selector = selector
        self._attempts = attempts
        self._reports = reports
        self._logs = logs
        self._notices = notices
        self._queue = queue
        self._host_joined = host_joined
        self._fds: set[int] = set()
        # The hosts of the current teardown, and their reports about it.
        self._stopped: set[str] = set()
        self._emptied: dict[str, Empty] = {}
        self._awaits_end = False

    def has(self, fd: int) -> bool:
        """Whether this descriptor is that of an agent."""
        return fd in self._fds

    def watch(self) -> None:
        """Read all links that are there from now on."""
        for host, link in self._hosts.links.items():
            if link.fileno() not in self._fds:
                self._fds.add(link.fileno())
                self._selector.register(link.fileno(), selectors.EVENT_READ, partial(self._read, host))
                self.due = None if host == HERE else 0.0  # it may have been read ahead

    def tick(self, mono: float) -> None:
        """Let the links to other hosts do what is due."""
        self.due = mono + TICK_S
        for host, link in [*self._hosts.links.items()]:
            if link.tick(mono):
                self._read(host)

    def unwatch(self) -> None:
        for host in self._hosts.links:
            self._unwatch(host)

    def end(self) -> None:
        """End the agents and what they have started."""
        self.unwatch()
        self._hosts.end()

    def tear_down(self, grace_s: float) -> None:
        """Order all agents to end the tasks. A host that has not joined has none, and may never answer."""
        self._emptied.clear()
        self._stopped = self._hosts.links.keys() & {HERE, *self._hosts.facts}
        for host in self._stopped:
            self._hosts.links[host].send(Stop(grace_s))
        self._awaits_end = True

    def _unwatch(self, host: str) -> None:
        link = self._hosts.links.get(host)
        fd = -1 if link is None else link.fileno()
        if fd in self._fds:
            self._fds.discard(fd)
            self._selector.unregister(fd)

    def _read(self, host: str) -> None:
        link = self._hosts.links.get(host)
        if link is None:
            return  # ended meanwhile, with another host
        messages, is_open = link.read()
        try:
            for message in messages:
                self._take(host, link, message)
            joined = self._hosts.take_joined(host)
        except (ForgedLog, HostUnusable) as error:
            self._lose_agent(host, str(error))
            return
        if joined is not None:
            self._queue.append(joined)
            self._host_joined()
        if not is_open:
            self._lose_agent(host, link.lost_reason or self._hosts.why_lost(host))

    def _take(self, host: str, link: AgentLink, message: AgentMessage) -> None:
        match message:
            case LinkSilent():
                self._queue.append(events.HostSilent(**now(), host=host, seconds=message.seconds))
            case LinkBack():
                self._queue.append(events.HostBack(**now(), host=host, seconds=message.seconds))
            case Hello():
                self._hosts.take_hello(host, message)
            case Log():
                self._write_log(host, message)
            case Notice():
                self._notices.give(NoticeSource.SLURM)
            case Held():
                self._attempts.take_held(host, message)
            case Empty():
                self._attempts.check_report(host, message)
                self._take_empty(host, message)
            case _:
                if host != HERE:  # here, TensorBoard runs beside the tasks
                    self._attempts.check_report(host, message)
                self._reports.take(message, link.clock)

    def _write_log(self, host: str, log: Log) -> None:
        try:
            self._hosts.write_log(host, log)
        except OSError as error:
            reason = f"the log of {log.task} cannot be written: {error.strerror}"
            self._queue.append(events.StorageFailed(**now(), reason=reason))
        self._logs.note_growth(log.task)

    def _take_empty(self, host: str, empty: Empty) -> None:
        """Take the first report of each host. A stop that was ordered twice may be reported twice, and later."""
        if self._awaits_end and host in self._stopped and host not in self._emptied:
            self._reports.take_unsent(host, empty.unsent)
            self._emptied[host] = empty
            self.report_teardown()

    def report_teardown(self) -> None:
        """Report the end of the teardown once no process is left on any host that is there."""
        if self._awaits_end and self._hosts.links.keys() & self._stopped <= self._emptied.keys():
            self._awaits_end = False
            swept = sum(report.swept for report in self._emptied.values())
            left = tuple(process for report in self._emptied.values() for process in report.left)
            self._reports.take_empty(swept, left)

    def _lose_agent(self, host: str, reason: str) -> None:
        """End the agent of a host, and report it unless its loss is already known."""
        self._unwatch(host)
        was_away = host in self._hosts.away
        self._hosts.end_host(host)
        self._attempts.lose_host(host)
        if was_away:  # it is still lost
            if (why := self._hosts.drop_gone_host(host)) is not None:
                text = f"{host} will not come back: {why}"
                self._queue.append(events.Noticed(**now(), text=text))
            return
        if host != HERE:
            self._queue.append(events.HostLost(**now(), host=host, reason=reason))
            self.report_teardown()
        elif not any(isinstance(event, events.AgentLost) for event in self._queue):
            self._queue.append(events.AgentLost(**now(), reason=reason))
