"""The agents of a run with hosts: one on each of them."""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.gpus import Gpu, GpuInventory
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.plan.placement import place
from orchestrator.core.plan.places import HostFacts
from orchestrator.core.state.events import HostJoined
from orchestrator.engines import Engine, engine_of
from orchestrator.links.agent_link import TICK_S
from orchestrator.links.client_link import pack_environ, travelling_environ
from orchestrator.links.host_link import HostLink
from orchestrator.links.opening import Opening, remote_command
from orchestrator.links.start_queue import StartQueue
from orchestrator.store.directory import Directory
from orchestrator.store.logs.received import ReceivedLogs
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.writer import RunStore, new_run_id
from orchestrator.supervisor import now
from orchestrator.supervisor.agent_orders import HostUnusable, preload_order
from worker.wire import facts
from worker.wire.messages import AGENT_LOG, PRELOADER_LOG, Hello, Log, Run

_LOOPBACK = "127.0.0.1"
# Seconds at the end for a host that has not answered yet, whose agent may be starting.
_UNANSWERED_S = 1.0


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


class HostAgents:
    """The agents of one run, one on each host that has tasks, or may get some. A lost link is a lost host."""

    are_kept = False

    def __init__(self, spec: JobSpec, remote: Engine | None = None) -> None:
        """`remote`: the engine that reaches the hosts, in place of the one that the job names."""
        self.spec = spec
        # None until the agents are opened, or the run exists.
        self.run_id: str | None = None
        self._engine = remote or engine_of(spec)
        used = set(place(spec))
        self._hosts = [host for host in spec.hosts if host.name in used or spec.is_elastic]
        # Hosts of an elastic run that were lost and are not back.
        self.away: set[str] = set()
        self._starts = StartQueue()
        self._links: dict[str, HostLink] = {}
        self._hellos: dict[str, Hello] = {}
        self._facts: dict[str, HostFacts] = {}
        self._logs: dict[str, _HostLogs] = {}
        # The directory of the logs of all tasks.
        self._directory: Directory | None = None
        self._store: RunStore | None = None
        # Hosts whose agents were ordered to preload.
        self._preloading: set[str] = set()

    @property
    def links(self) -> Mapping[str, HostLink]:
        return self._links

    @property
    def facts(self) -> Mapping[str, HostFacts]:
        return self._facts

    def open_early(self, run_id: str | None) -> None:
        """Start agents for `run_id`, or for a run that is not created yet, on all hosts of the job. EngineError."""
        self.run_id = run_id or new_run_id(self.spec.name)
        self._open_missing(self.spec.hosts)

    def turns(self, until: float, fd: int = -1) -> Iterator[set[str | None]]:
        """Yield again and again the hosts whose links are to be read, and None when `fd` is readable."""
        hosts: dict[int, str | None] = {link.fileno(): host for host, link in self._links.items()}
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
                    ready |= {host for host, link in self._links.items() if link.tick(mono)}
                yield ready

    def serve(self, spec: JobSpec, store: RunStore) -> None:
        self._store = store
        self.run_id = store.paths.run_id
        for host in self._links.keys() - {host.name for host in self._hosts}:
            self.end_host(host)  # it gets no task
        self.reopen()

    def reopen(self) -> None:
        assert self._store is not None, "reopened before it served a run"
        run = self._store.directory
        if self._directory is None:
            self._directory = run.sub(self._store.paths.logs.name)
        self._open_missing(self._hosts)
        for host in self._links.keys() - self._logs.keys():
            self._logs[host] = _HostLogs(run, self._directory, host)

    def _open_missing(self, hosts: Iterable[Host]) -> None:
        assert self.run_id is not None
        environ = pack_environ(travelling_environ(os.environ))
        for host in hosts:
            if host.name not in self._links:
                self._links[host.name] = self._open(host, self.run_id, environ)

    def _open(self, host: Host, run_id: str, environ: Mapping[str, str]) -> HostLink:
        python = self.spec.remote_python or sys.executable
        words = (remote_command(python),)
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

    def take_hello(self, host: str, hello: Hello) -> None:
        self._hellos[host] = hello
        self.preload(host, hello)

    def preload(self, host: str, hello: Hello) -> None:
        """Order the preloading, which takes longest, as soon as the agent has answered."""
        if host in self._preloading or hello.facts is None or self.run_id is None:
            return
        self._preloading.add(host)
        order = preload_order(self.spec, RunPaths(Path(hello.facts.directory) / self.run_id))
        if order is not None:
            self._links[host].send(order)

    def take_joined(self, host: str) -> HostJoined | None:
        """The event that a host has joined, once: its facts are known, and its clock was compared with ours."""
        if host not in self._hellos:
            return None
        offset, error = self._links[host].clock
        if not math.isfinite(error):
            return None
        hello = self._hellos.pop(host)
        if hello.facts is None:
            raise HostUnusable("it sent no facts about itself")
        facts = _facts(hello.cores, hello.facts, self.spec.interface)
        self._facts[host] = facts
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

    @property
    def are_complete(self) -> bool:
        return len(self._facts) == len(self._hosts)

    def layout(self, host: str, paths: RunPaths) -> RunPaths:
        return RunPaths(Path(self._facts[host].directory) / paths.run_id)

    def why_lost(self, host: str) -> str:
        return "its agent has ended"

    def expect_log(self, host: str, task: str, path: Path) -> None:
        self._logs[host].of_tasks.add(task, path.name)

    def write_log(self, host: str, log: Log) -> None:
        self._logs[host].write(log)

    def drop_gone_host(self, host: str) -> str | None:
        why = self._engine.why_gone(host)
        if why is not None:
            self._hosts = [each for each in self._hosts if each.name != host]
        return why

    def end_host(self, host: str) -> None:
        self._links.pop(host).close()
        if host in self._logs:
            self._logs.pop(host).close()
        if self.spec.is_elastic:
            self.away.add(host)
        self._preloading.discard(host)
        self._facts.pop(host, None)
        self._hellos.pop(host, None)

    def end(self) -> None:
        """Order the agents to leave, and wait until they have, or for the time that the engine allows.

        A host that has not answered once may never do so, and gets less time."""
        for link in self._links.values():
            link.leave()
        give_up_at = time.monotonic() + min(_UNANSWERED_S, self._engine.leave_s)
        for hosts in self.turns(time.monotonic() + self._engine.leave_s):
            is_late = time.monotonic() >= give_up_at
            for host, link in [*self._links.items()]:
                if (host in hosts and not link.read()[1]) or (is_late and not link.is_ready):
                    self.end_host(host)
            if not self._links.keys() - self.away:
                break  # hosts that are away may not answer
        for host in list(self._links):
            self.end_host(host)
        if self._directory is not None:
            self._directory.close()
            self._directory = None


def _facts(cores: int, told: facts.HostFacts, interface: str | None) -> HostFacts:
    """The facts of a host. Its address is that of `interface`; without one, the address that ssh has reached."""
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
