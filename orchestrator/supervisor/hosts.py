"""The agents of a run: the interface (`Agents`), and the agent of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Protocol

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.plan.places import HostFacts
from orchestrator.core.state.events import HostJoined
from orchestrator.engines import Connection, Engine, agent_words
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.client_link import Descriptor, pack_environ
from orchestrator.store.logs.received import ForgedLog
from orchestrator.store.runs.liveness import is_stopped
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.writer import RunStore
from worker.wire.messages import Hello, Log, Run

# The name of the host of a run without hosts.
HERE = ""


class Agents(Protocol):
    """The agents of a run. `links`: those that are there, by the name of their host."""

    @property
    def links(self) -> Mapping[str, AgentLink]: ...

    @property
    def are_kept(self) -> bool:
        """Whether the agents stay for another run."""

    @property
    def facts(self) -> Mapping[str, HostFacts]:
        """The facts of the hosts that have joined. Empty for this machine, whose facts are in the job."""

    @property
    def run_id(self) -> str | None:
        """The id of their run if they have one before it is created."""

    def serve(self, spec: JobSpec, store: RunStore) -> None:
        """Have all agents serve this run from now on. EngineError if one cannot be started."""

    @property
    def are_complete(self) -> bool:
        """Whether all agents are there, and the facts of their hosts are known."""

    @property
    def away(self) -> Set[str]:
        """Hosts of an elastic run that were lost and are not back. There may be a link to them that is being opened."""

    def reopen(self) -> None:
        """Try again to reach the hosts that were lost."""

    def take_hello(self, host: str, hello: Hello) -> None:
        """Take the facts of a host."""

    def take_joined(self, host: str) -> HostJoined | None:
        """The event that a host has joined, once; None for this machine."""

    def layout(self, host: str, paths: RunPaths) -> RunPaths:
        """The files of the run on a host that has joined. `paths` are those of this machine."""

    def expect_log(self, host: str, task: str, path: Path) -> None:
        """Before a task is started: its log is written to `path`, by the task itself or by write_log(). OSError."""

    def write_log(self, host: str, log: Log) -> None:
        """Write what a host has sent. ForgedLog, OSError."""

    def why_lost(self, host: str) -> str:
        """Why the agent of a host was lost, in words for the user."""

    def drop_gone_host(self, host: str) -> str | None:
        """Return why a lost host cannot come back, and stop trying to reach it; None if it may come back."""

    def end_host(self, host: str) -> None:
        """Close the stream to an agent, which then kills everything it started."""

    def end(self) -> None:
        """End all agents and what they started."""


class LocalAgent:
    """The agent of this machine. It serves several runs, one after the other."""

    facts: Mapping[str, HostFacts] = {}
    away: Set[str] = frozenset()
    run_id: str | None = None

    def __init__(self, engine: Engine, early: Connection | None = None) -> None:
        """`early`: to an agent that was started before there was a run."""
        self._engine = engine
        self._connection = early
        self._links: dict[str, AgentLink] = {}
        self.are_kept = False
        # The network of the runs so far. None: an agent without a run can still enter any network.
        self._network: NetworkOption | None = None
        self._descriptors: Mapping[Descriptor, int] = {}
        if early is not None:
            self._open(early)

    @property
    def links(self) -> Mapping[str, AgentLink]:
        return self._links

    @property
    def link(self) -> AgentLink | None:
        return self._links.get(HERE)

    def is_stopped(self) -> bool:
        """Whether the agent or its preloader was stopped, as by SIGSTOP."""
        if self._connection is None:
            return False
        pid = self._connection.process.pid
        return any(map(is_stopped, (pid, *_children(pid))))

    def take_descriptors(self, descriptors: Mapping[Descriptor, int]) -> None:
        """Take what the tasks of the next run get. The caller keeps them until serve()."""
        self._descriptors = descriptors

    def _open(self, connection: Connection) -> None:
        self._links[HERE] = AgentLink(connection.stream)

    def serve(self, spec: JobSpec, store: RunStore) -> None:
        if self._network not in (None, spec.network) or not self._order_run(spec, store):
            self.end()
            self._start(store)
            self._order_run(spec, store)
        self._network = spec.network

    def _order_run(self, spec: JobSpec, store: RunStore) -> bool:
        """Give the run to the agent that is here already; False if there is none."""
        link = self._links.get(HERE)
        if link is None:
            return False
        run = Run(
            run_id=store.paths.run_id,
            failure_grace_s=spec.failure_grace_s,
            log=str(store.paths.agent_log),
            directory=store.directory.identity,
            environ=pack_environ(os.environ),
            network=spec.network.value,
            descriptors=tuple((each.name, each.task) for each in self._descriptors),
        )
        return link.serve(run, tuple(self._descriptors.values()))

    def _start(self, store: RunStore) -> None:
        errors = store.open_log(store.paths.agent_log)
        try:
            self._connection = self._engine.connect("", agent_words(), errors)
        finally:
            os.close(errors)
        self._open(self._connection)

    @property
    def are_complete(self) -> bool:
        return HERE in self._links

    def reopen(self) -> None:
        """A run whose agent is lost has no other attempt."""

    def take_hello(self, host: str, hello: Hello) -> None:
        """The facts of this machine are in the job."""

    def take_joined(self, host: str) -> HostJoined | None:
        return None

    def layout(self, host: str, paths: RunPaths) -> RunPaths:
        return paths

    def expect_log(self, host: str, task: str, path: Path) -> None:
        """The task writes it."""

    def write_log(self, host: str, log: Log) -> None:
        raise ForgedLog("an agent on this machine sends no logs")

    def why_lost(self, host: str) -> str:
        return self._engine.explain(host, None, "")

    def drop_gone_host(self, host: str) -> str | None:
        return None

    def end_host(self, host: str) -> None:
        self.end()

    def end(self) -> None:
        if HERE in self._links:
            self._links.pop(HERE).close()
        if self._connection is not None:
            self._connection.close()
            if not self._connection.wait(self._engine.leave_s):
                self._connection.kill()
            self._connection = None


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # not every kernel lists them
        return []
