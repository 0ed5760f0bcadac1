"""The agents of a run with hosts: one on each of them, over connections that may break."""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.gpus import Gpu, GpuInventory
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.plan.placement import place
from orchestrator.core.plan.places import HostFacts
from orchestrator.core.state.events import HostJoined
from orchestrator.engines import Engine, engine_of
from orchestrator.links.agent_link import AgentLink, AgentMessage
from orchestrator.links.client_link import pack_environ, travelling_environ
from orchestrator.links.opening import RemoteAgent, remote_command
from orchestrator.links.resumable_stream import ResumableStream
from orchestrator.links.start_queue import StartQueue
from orchestrator.links.stream import Stream
from orchestrator.store.directory import Directory
from orchestrator.store.logs.received import ReceivedLogs
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.writer import RunStore, new_run_id
from orchestrator.supervisor import now
from orchestrator.supervisor.agent_orders import HostUnusable, preload_order
from orchestrator.supervisor.hosts import LinkDues
from worker.wire import messages
from worker.wire.messages import AGENT_LOG, PRELOADER_LOG, Hello, Log, Run

_LOOPBACK = "127.0.0.1"


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


class HostLink(AgentLink):
    """A link that can be read before there is a run."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._ahead: list[AgentMessage] = []

    def read_ahead(self) -> tuple[list[AgentMessage], bool]:
        """Read, and keep the messages for the next read(), which must not wait until more arrives."""
        messages, is_open = super().read()
        self._ahead += messages
        return messages, is_open

    def read(self) -> tuple[list[AgentMessage], bool]:
        messages, is_open = super().read()
        ahead, self._ahead = self._ahead, []
        return [*ahead, *messages], is_open


class HostAgents:
    """The agents of one run, one on each host that has tasks, or may get some. A broken connection is replaced."""

    are_kept = False

    def __init__(self, spec: JobSpec, remote: Engine | None = None) -> None:
        """`remote`: the engine that reaches the hosts, in place of the one that the job names."""
        self.spec = spec
        # None until the agents are opened, or the run is there.
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
    def links(self) -> Mapping[str, AgentLink]:
        return self._links

    @property
    def facts(self) -> Mapping[str, HostFacts]:
        return self._facts

    def open_early(self, run_id: str | None = None) -> None:
        """Start the agents of a run that is not created yet, or of `run_id`. EngineError."""
        self.run_id = run_id or new_run_id(self.spec.name)
        self._open_missing()

    def serve_until_readable(self, fd: int) -> None:
        """Serve agents without a run until there is something to read from `fd`. Keeps what they send."""
        with select.epoll() as poller:
            poller.register(fd, select.EPOLLIN)
            hosts, dues = self._watch_links(poller)
            while True:
                due = dues.first()
                wait_s = None if due is None else max(0.0, due - time.monotonic())
                ready = {found for found, _ in poller.poll(wait_s)}
                if fd in ready:
                    return
                for host in {*(hosts[found] for found in ready), *dues.take(time.monotonic())}:
                    link = self._links[host]
                    messages, is_open = link.read_ahead()
                    for message in messages:
                        if isinstance(message, Hello):
                            self._preload(host, message)
                    dues.set(host, link.due if is_open else None)
                    if not is_open:
                        poller.unregister(link)  # the run reports it

    def _watch_links(self, poller: select.epoll) -> tuple[dict[int, str], LinkDues]:
        """Register all links; return their hosts by descriptor, and their dues: each is read once in any case."""
        hosts: dict[int, str] = {}
        dues = LinkDues()
        for host, link in self._links.items():
            hosts[link.fileno()] = host
            poller.register(link, select.EPOLLIN)
            dues.set(host, 0.0)
        return hosts, dues

    def serve(self, spec: JobSpec, store: RunStore) -> None:
        self._store = store
        self.run_id = store.paths.run_id
        self.reopen()

    def reopen(self) -> None:
        assert self._store is not None, "reopened before it served a run"
        run = self._store.directory
        if self._directory is None:
            self._directory = run.sub(self._store.paths.logs.name)
        self._open_missing()
        for host in self._links.keys() - self._logs.keys():
            self._logs[host] = _HostLogs(run, self._directory, host)

    def _open_missing(self) -> None:
        assert self.run_id is not None
        environ = pack_environ(travelling_environ(os.environ))
        for host in self._hosts:
            if host.name not in self._links:
                self._links[host.name] = self._open(host, self.run_id, environ)

    def _open(self, host: Host, run_id: str, environ: Mapping[str, str]) -> HostLink:
        python = self.spec.remote_python or sys.executable
        words = (remote_command(python),)
        engine, name, label = self._engine, host.name, f"{host.name}: "
        # The label is removed from reasons: events and messages name the host themselves.
        stream = ResumableStream(
            lambda errors: engine.connect(host.destination, words, errors),
            RemoteAgent.new(name, self.spec.link_timeout_s),
            lambda code, *said: engine.explain(name, code, *said).removeprefix(label),
            self._starts,
            lambda waited_s, errors: engine.explain_silence(name, waited_s, errors).removeprefix(label),
        )
        link = HostLink(stream)
        link.serve(Run(run_id, self.spec.failure_grace_s, "", None, environ, self.spec.network.value))
        return link

    def take_hello(self, host: str, hello: Hello) -> None:
        self._hellos[host] = hello
        self._preload(host, hello)

    def _preload(self, host: str, hello: Hello) -> None:
        """Order the preloading, which takes longest, as soon as the agent is there."""
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
            raise HostUnusable("it says nothing about itself")
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
        """Order the agents to leave, and wait until they have, or for the time that the engine allows."""
        deadline = time.monotonic() + self._engine.leave_s
        with select.epoll() as poller:
            hosts, dues = self._watch_links(poller)
            for link in self._links.values():
                link.leave()
            # Hosts that are away may not answer.
            while self._links.keys() - self.away and (mono := time.monotonic()) < deadline:
                due = dues.first()
                wake = deadline if due is None else min(deadline, due)
                ready = [hosts[fd] for fd, _ in poller.poll(max(0.0, wake - mono))]
                for host in {*ready, *dues.take(time.monotonic())} & self._links.keys():
                    if self._links[host].read()[1]:
                        dues.set(host, self._links[host].due)
                    else:
                        dues.set(host, None)
                        self.end_host(host)
        for host in list(self._links):
            self.end_host(host)
        if self._directory is not None:
            self._directory.close()
            self._directory = None


def _facts(cores: int, told: messages.HostFacts, interface: str | None) -> HostFacts:
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
