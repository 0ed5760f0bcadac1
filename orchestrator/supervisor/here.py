"""`LocalAgent`: the agent of this machine, which serves several runs, one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.spec import JobSpec
from orchestrator.engines import Connection, Engine, agent_words
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.client_link import Descriptor, pack_environ
from orchestrator.store.runs.liveness import is_stopped
from orchestrator.store.runs.writer import RunStore
from worker.wire.messages import Run


class LocalAgent:
    """Starts the agent of this machine, and keeps it between runs.

    `link`: to the agent, None without one. `are_kept`: whether the agent stays for another run."""

    def __init__(self, engine: Engine, early: Connection | None = None) -> None:
        """`early`: to an agent that was started before there was a run."""
        self.link: AgentLink | None = None
        self.are_kept = False
        self._engine = engine
        self._connection: Connection | None = None
        # The network of the runs so far. None: an agent without a run can still enter any network.
        self._network: NetworkOption | None = None
        self._descriptors: Mapping[Descriptor, int] = {}
        if early is not None:
            self._take(early)

    def is_stopped(self) -> bool:
        """Whether the agent or its preloader was stopped, as by SIGSTOP."""
        if self._connection is None:
            return False
        pid = self._connection.process.pid
        return any(map(is_stopped, (pid, *_children(pid))))

    def take_descriptors(self, descriptors: Mapping[Descriptor, int]) -> None:
        """Set the descriptors that the tasks of the next run get. The caller keeps them open until serve()."""
        self._descriptors = descriptors

    def serve(self, spec: JobSpec, store: RunStore) -> AgentLink:
        """Have the agent serve this run; start one if there is none, or if it is in another network. EngineError."""
        run = Run(
            run_id=store.paths.run_id,
            failure_grace_s=spec.failure_grace_s,
            log=str(store.paths.agent_log),
            directory=store.directory.identity,
            environ=pack_environ(os.environ),
            network=spec.network.value,
            descriptors=tuple((each.name, each.task) for each in self._descriptors),
        )
        passed = tuple(self._descriptors.values())
        link = self.link if self._network in (None, spec.network) else None
        if link is None or not link.serve(run, passed):
            self.end()
            link = self._start(store)
            link.serve(run, passed)
        self._network = spec.network
        return link

    def _start(self, store: RunStore) -> AgentLink:
        errors = store.open_log(store.paths.agent_log)
        try:
            return self._take(self._engine.connect("", agent_words(), errors))
        finally:
            os.close(errors)

    def _take(self, connection: Connection) -> AgentLink:
        self._connection = connection
        self.link = AgentLink(connection.stream)
        return self.link

    def end(self) -> None:
        """End the agent and what it has started."""
        if self.link is not None:
            self.link.close()
            self.link = None
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
