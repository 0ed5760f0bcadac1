"""The agents of a run: one on each of its hosts, or that of this machine (`HERE`) for a run without hosts."""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.gpus import Gpu, GpuInventory
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.plan.placement import place
from orchestrator.core.plan.places import HostFacts
from orchestrator.core.plan.plan import preload_order
from orchestrator.core.state.events import HostJoined
from orchestrator.engines import Engine, engine_of
from orchestrator.engines.local import LocalEngine
from orchestrator.links.agent_link import TICK_S, AgentLink
from orchestrator.links.client_link import pack_environ, travelling_environ
from orchestrator.store.directory import Directory
from orchestrator.store.logs.received import ForgedLog, ReceivedLogs
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.writer import RunStore, new_run_id
from orchestrator.supervisor import now
from orchestrator.supervisor.here import LocalAgent
from worker.wire import facts
from worker.wire.messages import AGENT_LOG, PRELOADER_LOG, Hello, Log, Run

if TYPE_CHECKING:
    from orchestrator.links.host_link import HostLink
    from orchestrator.links.start_queue import StartQueue

# The name of the host of a run without hosts.
HERE = ""
_LOOPBACK = "127.0.0.1"


class HostUnusable(Exception):
    """A host reports that it cannot run its tasks, or sends an impossible report."""


class _HostLogs:
    """Writes the logs of one host: those of its tasks into the directory of logs, its own into that of the run."""

    def __init__(self, run: Directory, logs: Directory, host: str) -> None:
        self._host = host
        self.of_tasks = ReceivedLogs(logs)
        self._of_host = ReceivedLogs(run)

    def write(self, log: Log) -> None:
        its = self.of_tasks
        if log.task in (AGENT_LOG, PRELOADER_LOG):
            its = self._of_host
            its.add(log.task, f"{log.task[1:]}-{self._host}.log")
        its.write(log.task, log.offset, log.data, log.is_cut)

    def close(self) -> None:
        self.of_tasks.close()
        self._of_host.close()


@dataclass
class _HostAgent:
    """`hello`: until the host has joined."""

    link: AgentLink
    hello: Hello | None = None
    logs: _HostLogs | None = None
    is_preloading: bool = False


class Hosts:
    """The agents that are there, and those of other hosts that are being opened. A lost link is a lost host.

    `facts`: of the hosts that have joined; those of this machine are in the job.
    `away`: hosts of an elastic run that were lost and are not back."""

    def __init__(self, spec: JobSpec, here: LocalAgent | None = None, remote: Engine | None = None) -> None:
        """`here`: the agent of this machine, for a job without hosts. `remote`: the engine that reaches hosts, in place
        of the one that the job names. EngineError."""
        self.spec = spec
        # The id of the run if it has one before it is created.
        self.run_id: str | None = None
        self.facts: dict[str, HostFacts] = {}
        self.away: set[str] = set()
        self._here = here
        self._engine: Engine = (remote or engine_of(spec)) if spec.hosts else LocalEngine()
        used = set(place(spec)) if spec.hosts else ()
        self._hosts = [host for host in spec.hosts if host.name in used or spec.is_elastic]
        self._agents: dict[str, _HostAgent] = {}
        # The links of these agents: each of many thousand reports looks up one.
        self.links: dict[str, AgentLink] = {}
        self._starts: StartQueue | None = None
        self._store: RunStore | None = None
        # The directory of the logs of all tasks.
        self._directory: Directory | None = None

    @property
    def are_kept(self) -> bool:
        """Whether the agents stay for another run."""
        return self._here is not None and self._here.are_kept

    @property
    def are_complete(self) -> bool:
        """Whether all agents are there, and the facts of their hosts are known."""
        if self._here is not None:
            return HERE in self._agents
        return len(self.facts) == len(self._agents) == len(self._hosts)

    # -- opening

    def open_early(self, run_id: str | None) -> None:
        """Start agents for `run_id`, or for a run that is not created yet, on all hosts of the job. EngineError."""
        self.run_id = run_id or new_run_id(self.spec.name)
        self._open_missing(self.spec.hosts)

    def serve(self, spec: JobSpec, store: RunStore) -> None:
        """Have all agents serve this run from now on. EngineError if that of this machine cannot be started."""
        self._store = store
        if self._here is not None:
            self._add(HERE, self._here.serve(spec, store))
            return
        self.run_id = store.paths.run_id
        for host in self._agents.keys() - {host.name for host in self._hosts}:
            self.end_host(host)  # it gets no task
        self.reopen()

    def reopen(self) -> None:
        """Open the hosts that are not there: all at first, later those that were lost."""
        if self._here is not None:
            return  # a run whose agent is lost has no other attempt
        assert self._store is not None, "reopened before it served a run"
        run = self._store.directory
        if self._directory is None:
            self._directory = run.sub(self._store.paths.logs.name)
        self._open_missing(self._hosts)
        for host, agent in self._agents.items():
            agent.logs = agent.logs or _HostLogs(run, self._directory, host)

    def _open_missing(self, hosts: Iterable[Host]) -> None:
        assert self.run_id is not None
        environ = pack_environ(travelling_environ(os.environ))
        for host in hosts:
            if host.name not in self._agents:
                self._add(host.name, self._open(host, self.run_id, environ))

    def _add(self, host: str, link: AgentLink) -> None:
        self._agents[host] = _HostAgent(link)
        self.links[host] = link

    def _open(self, host: Host, run_id: str, environ: Mapping[str, str]) -> AgentLink:
        # These take long to import, and most runs need none of them.
        from orchestrator.links.host_link import HostLink
        from orchestrator.links.opening import Opening, remote_command
        from orchestrator.links.start_queue import StartQueue

        self._starts = self._starts or StartQueue()
        words = (remote_command(self.spec.remote_python or sys.executable),)
        link = HostLink(
            self._engine,
            host.destination,
            lambda errors: self._engine.connect(host.destination, words, errors),
            Opening(run_id, host.name, self.spec.link_timeout_s),
            self.spec.link_timeout_s,
            self._starts,
        )
        link.serve(Run(run_id, self.spec.failure_grace_s, "", None, environ, self.spec.network.value))
        return link

    def opened(self, host: str) -> HostLink:
        """The link to another host."""
        link: HostLink = self._agents[host].link  # type: ignore[assignment]
        return link

    def turns(self, until: float, fd: int = -1) -> Iterator[set[str | None]]:
        """Yield the hosts whose links are to be read, in each turn; None in them says that `fd` is readable."""
        hosts: dict[int, str | None] = {link.fileno(): host for host, link in self.links.items()}
        if fd >= 0:
            hosts[fd] = None
        tick_at = 0.0
        with select.epoll() as poller:
            for each in hosts:
                poller.register(each, select.EPOLLIN)
            while (mono := time.monotonic()) < until:
                ready = {hosts[each] for each, _ in poller.poll(max(0.0, min(tick_at, until) - mono))}
                if (mono := time.monotonic()) >= tick_at:
                    tick_at = mono + TICK_S
                    ready |= {host for host, link in self.links.items() if link.tick(mono)}
                yield ready

    # -- what they send

    def take_hello(self, host: str, hello: Hello) -> None:
        """Take the facts of a host; those of this machine are in the job."""
        if host != HERE:
            self._agents[host].hello = hello
            self.preload(host, hello)

    def preload(self, host: str, hello: Hello) -> None:
        """Order the preloading, which takes longest, as soon as the agent of another host has answered."""
        agent = self._agents[host]
        if not agent.is_preloading and hello.facts is not None and self.run_id is not None:
            agent.is_preloading = True
            paths = RunPaths(Path(hello.facts.directory) / self.run_id)
            order = preload_order(self.spec, paths, os.environ)
            if order is not None:
                agent.link.send(order)

    def take_joined(self, host: str) -> HostJoined | None:
        """The event that a host has joined, once: its facts are known, and its clock was compared with ours.

        None for this machine. HostUnusable."""
        agent = self._agents[host]
        offset, error = agent.link.clock
        if agent.hello is None or not math.isfinite(error):
            return None
        hello, agent.hello = agent.hello, None
        if hello.facts is None:
            raise HostUnusable("it sent no facts about itself")
        facts = self.facts[host] = _facts(hello.cores, hello.facts, self.spec.interface)
        self.away.discard(host)
        return HostJoined(
            **now(),
            host=host,
            address=facts.address,
            cores=hello.cores,
            memory_bytes=facts.memory_bytes,
            gpus=tuple(gpu.model or gpu.name for gpu in facts.gpus.gpus),
            python=facts.python,
            clock_offset_s=-offset,
            clock_error_s=error,
        )

    def layout(self, host: str, paths: RunPaths) -> RunPaths:
        """The files of the run on a host that has joined. `paths` are those of this machine."""
        facts = self.facts.get(host)
        return paths if facts is None else RunPaths(Path(facts.directory) / paths.run_id)

    def expect_log(self, host: str, task: str, path: Path) -> None:
        """Prepare the log of a task before its start: the task itself or write_log() writes to `path`. OSError."""
        if (logs := self._agents[host].logs) is not None:
            logs.of_tasks.add(task, path.name)

    def write_log(self, host: str, log: Log) -> None:
        """Write a part of a log that a host has sent. ForgedLog, OSError."""
        if (logs := self._agents[host].logs) is None:
            raise ForgedLog("an agent on this machine sends no logs")
        logs.write(log)

    # -- the end

    def why_lost(self, host: str) -> str:
        """Why the agent of a host was lost, in words for the user."""
        return self._engine.explain(HERE, None, "") if host == HERE else "its agent has ended"

    def drop_gone_host(self, host: str) -> str | None:
        """Return why a lost host cannot come back, and stop trying to reach it; None if it may come back."""
        why = self._engine.why_gone(host)
        if why is not None:
            self._hosts = [each for each in self._hosts if each.name != host]
        return why

    def end_host(self, host: str) -> None:
        """Close the stream to an agent, which then kills everything it started."""
        agent = self._agents.pop(host)
        del self.links[host]
        self.facts.pop(host, None)
        if self._here is not None:
            self._here.end()
            return
        agent.link.close()
        if agent.logs is not None:
            agent.logs.close()
        if self.spec.is_elastic:
            self.away.add(host)

    def end(self) -> None:
        """End all agents and what they started. Agents on other hosts are ordered to leave, and awaited for as long as
        the engine allows; a host that has never answered gets less time."""
        if self._here is None:
            for link in self.links.values():
                link.leave()
            self._await_left()
        for host in list(self._agents):
            self.end_host(host)
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _await_left(self) -> None:
        began = time.monotonic()
        give_up_at = began + self._engine.unanswered_s
        for hosts in self.turns(began + self._engine.leave_s):
            is_late = time.monotonic() >= give_up_at
            for host in list(self._agents):
                link = self.opened(host)
                if (host in hosts and not link.read()[1]) or (is_late and not link.is_ready):
                    self.end_host(host)
            if not self._agents.keys() - self.away:
                return  # hosts that are away may not answer


def _facts(cores: int, told: facts.HostFacts, interface: str | None) -> HostFacts:
    """The facts of a host. Its address is that of `interface`, or else the one that ssh has reached."""
    address = told.addresses.get(interface) if interface is not None else told.reached
    gpus = (Gpu(str(index), gpu.uuid, gpu.model, gpu.memory_bytes) for index, gpu in enumerate(told.gpus))
    return HostFacts(
        address=address or next(iter(told.addresses.values()), _LOOPBACK),
        cores=Cores(machine=cores, allowed=len(told.allowed_cores) or cores),
        memory_bytes=told.memory_bytes,
        gpus=GpuInventory(tuple(gpus)),
        python=told.python,
        directory=told.directory,
    )
