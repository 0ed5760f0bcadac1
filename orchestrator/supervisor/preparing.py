"""The hosts of a job before its run is requested: their agents preload, and answer the questions of the client."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.engines import Engine
from orchestrator.links.client_link import HostReport, HostReports, Preparation
from orchestrator.supervisor.hosts import Hosts
from worker.wire.checks import Checked
from worker.wire.messages import Hello

# Seconds for the answers to a round of questions. The slowest one asks a Python on a network file system for its
# packages.
_ANSWER_S = 60.0


class Prepared:
    """The hosts of a job before its run. They report once after their start, and after each round of questions."""

    def __init__(self, preparation: Preparation, remote: Engine | None) -> None:
        """`remote`: the engine that reaches hosts, in place of the one that the job names. EngineError."""
        self.hosts = Hosts(preparation.spec, remote=remote)
        self.hosts.open_early(preparation.run_id)
        self._preloads = preparation.preloads
        # Hosts that have not reported yet, and their deadline (monotonic seconds). The link limits the first report.
        self._awaited = {*self.hosts.links}
        self._until = math.inf
        self._reports: dict[str, HostReport] = {}
        self._is_owed = True

    def ask(self, questions: Mapping[str, str]) -> None:
        """Ask the hosts that are not lost. `questions`: lines for their agents, by the names of the hosts."""
        self._until = time.monotonic() + _ANSWER_S
        self._is_owed = True
        self._awaited = {
            host for host in questions if host in self._reports and not self._reports[host].error
        }
        for host in self._awaited:
            self.hosts.opened(host).send_line(questions[host].encode())

    def serve_until_readable(self, fd: int, on_reports: Callable[[HostReports], None]) -> None:
        """Serve the agents until there is something to read from `fd`. Their other messages are kept for the run.

        `on_reports` gets the reports of all hosts when the last awaited host has reported."""
        for hosts in self.hosts.turns(math.inf, fd):
            for host in filter(None, hosts):
                self._read(host)
            if time.monotonic() >= self._until:
                for host in [*self._awaited]:
                    self._add(host, HostReport(f"it did not answer a question within {_ANSWER_S:g} s"))
            if self._is_owed and not self._awaited:
                self._is_owed = False
                on_reports(HostReports(self._reports))
            if None in hosts:
                return

    def _read(self, host: str) -> None:
        link = self.hosts.opened(host)
        messages, is_open = link.read_ahead()
        for message in messages:
            if isinstance(message, Hello):
                if self._preloads:
                    self.hosts.preload(host, message)
                self._add(host, HostReport(facts=message.facts))
            elif isinstance(message, Checked):
                known = self._reports.get(host, HostReport())
                self._add(host, replace(known, error=message.error, checked=message))
        if not is_open:
            self._add(host, HostReport(link.lost_reason or "the connection has ended"))

    def _add(self, host: str, report: HostReport) -> None:
        self._reports[host] = report
        self._awaited.discard(host)
