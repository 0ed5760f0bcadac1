"""The agents of a run: one on this machine. A run's supervisor speaks to them over `Hosts.links`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.spec import JobSpec
from orchestrator.engines import AgentOptions, Connection, Engine
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.client_link import pack_environ
from orchestrator.links.stream import LocalStream
from orchestrator.store.runs.writer import RunStore

# The name of the host of a run without hosts.
HERE = ""


class Hosts:
    """Owns the agents of a run until end().

    `links` holds those that can be spoken to, by the name of their host. The agent of this machine may serve several
    runs, one after the other.
    """

    def __init__(self, engine: Engine, early: Connection | None = None) -> None:
        """`early`: to an agent on this machine that was started before there was a run."""
        self._engine = engine
        self._connections: dict[str, Connection] = {}
        self._links: dict[str, AgentLink] = {}
        # The network of the runs so far. None: an agent without a run can still enter any network.
        self._network: NetworkOption | None = None
        if early is not None:
            self._add(HERE, early, run_id="")

    @property
    def links(self) -> Mapping[str, AgentLink]:
        return self._links

    def serve(self, spec: JobSpec, store: RunStore) -> None:
        """Have an agent on each host serve this run from now on. EngineError if one cannot be started."""
        if self._network not in (None, spec.network) or not self._order_run(spec, store):
            self.end()
            self._start_here(spec, store)
            self._order_run(spec, store)
        self._network = spec.network

    def _order_run(self, spec: JobSpec, store: RunStore) -> bool:
        """Give the run to the agent that is here already; False if there is none."""
        link = self._links.get(HERE)
        return link is not None and link.serve(
            store.paths.run_id,
            spec.failure_grace_s,
            str(store.paths.agent_log),
            store.directory.identity,
            pack_environ(os.environ),
            spec.network,
        )

    def _start_here(self, spec: JobSpec, store: RunStore) -> None:
        run_id = store.paths.run_id
        words = AgentOptions(run_id, spec.failure_grace_s, spec.network).words()
        errors = store.open_log(store.paths.agent_log)
        try:
            self._add(HERE, self._engine.connect("", words, errors), run_id)
        finally:
            os.close(errors)

    def _add(self, host: str, connection: Connection, run_id: str) -> None:
        self._connections[host] = connection
        self._links[host] = AgentLink(LocalStream(connection.stream), run_id)

    def why_lost(self, host: str) -> str:
        """Why the agent of a host was lost, for people."""
        return self._engine.explain(host, None, "")

    def end(self) -> None:
        """Close all streams, on which each agent kills everything it started; wait for their exits, or kill them."""
        for host in self._connections:
            self._close(host)
        while self._connections:
            self._reap(self._connections.popitem()[1])

    def end_host(self, host: str) -> None:
        """The same for one host."""
        self._close(host)
        if host in self._connections:
            self._reap(self._connections.pop(host))

    def _close(self, host: str) -> None:
        if host in self._links:
            self._links.pop(host).close()

    def _reap(self, connection: Connection) -> None:
        connection.close()
        if not connection.wait(self._engine.leave_s):
            connection.kill()
