"""Runs on many pretended hosts: the real supervisor with another engine, and the agents of fake_hosts.py."""

from __future__ import annotations

import cProfile
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from host_driving import NoProcess, Shell
from making import JOB, changed, script
from waiting import until

from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.engines.local import LocalEngine
from orchestrator.links.client_link import Request, pack_environ
from orchestrator.links.orders import StopOrder
from orchestrator.links.supervisor_link import SupervisorLink, SupervisorProcess
from orchestrator.supervisor.here import LocalAgent
from orchestrator.supervisor.kept import OwnerDoor
from orchestrator.supervisor.serve import serve

_BUFFER_BYTES = 1 << 20
_PATIENCE_S = 120.0
_NAME = "simulated"
_SCRIPT = script(python=sys.executable)


class FakeEngine(Shell):
    """An engine that reaches the hosts of another process, to which it sends the other end of each connection."""

    def __init__(self, hub: socket.socket) -> None:
        self._hub = hub

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Any:
        ours, its = socket.socketpair()
        for end in (ours, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        with its:
            socket.send_fds(self._hub, [destination.encode()], [its.fileno()])
        return NoProcess(ours)


class SimulatedRun:
    """A run with `tasks` tasks on each of `hosts` hosts. Leaving the `with` ends its processes."""

    def __init__(
        self,
        state: Path,
        hosts: int,
        tasks: int = 4,
        profile: Path | None = None,
        forged: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    ) -> None:
        """`state` becomes XDG_STATE_HOME. `profile`: write a profile of the supervisor there (cProfile).

        `forged`: {host: a type of report, and what it changes in them}."""
        self.name = _NAME
        self.tasks = hosts * tasks
        self._spec = _spec(state, hosts, tasks)
        self._env = os.environ | {"XDG_STATE_HOME": str(state), "NO_COLOR": "1"}
        self._profile = profile
        self._forged = json.dumps(dict(forged))

    def __enter__(self) -> SimulatedRun:
        hub, its_hub = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with hub, its_hub:
            self._hosts = self._python("fake_hosts.py", [its_hub], self._forged)
            profile = [] if self._profile is None else [str(self._profile)]
            process = SupervisorProcess(
                lambda door: self._python("simulated_hosts.py", [door, hub], *profile)
            )
        self.link = SupervisorLink(process.connect(), process)
        self.root = self.link.create(Request(spec=self._spec, environ=pack_environ(self._env)))
        self.supervisor = psutil.Process(json.loads((self.root / "run.json").read_text())["supervisor_pid"])
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self.link.wait(_PATIENCE_S)
        self._hosts.wait(_PATIENCE_S)

    def _python(self, file: str, passed: list[socket.socket | int], *words: str) -> subprocess.Popen[bytes]:
        support = Path(__file__).parent
        fds = [each if isinstance(each, int) else each.fileno() for each in passed]
        path = os.pathsep.join((str(support), str(support.parent.parent)))
        return subprocess.Popen(
            [sys.executable, str(support / file), *map(str, fds), *words],
            env=self._env | {"PYTHONPATH": path},
            pass_fds=fds,
            start_new_session=True,
        )

    @property
    def cpu_s(self) -> float:
        times = self.supervisor.cpu_times()
        return float(times.user + times.system)

    @property
    def memory_bytes(self) -> int:
        """PSS."""
        return int(self.supervisor.memory_full_info().pss)

    @property
    def written_bytes(self) -> int:
        """Written by the supervisor into files and sockets."""
        return int(self.supervisor.io_counters().write_chars)

    def count_events(self) -> Counter[str]:
        """The events of the run so far, by type."""
        complete, _, _ = (self.root / "events.jsonl").read_text().rpartition("\n")
        return Counter(json.loads(line).get("type", "") for line in complete.splitlines())

    def until_event(self, kind: str, count: int = 1) -> None:
        def is_there() -> bool:
            assert self._hosts.poll() is None and self.link.wait(0) is False, (
                self.root / "supervisor.log"
            ).read_text()
            time.sleep(0.1)
            return self.count_events()[kind] >= count

        until(is_there, _PATIENCE_S)

    def stop(self) -> None:
        """Stop the run and wait until its supervisor has exited."""
        self.link.send(StopOrder())
        assert self.link.wait(_PATIENCE_S)

    def orch(self, *words: str) -> bytes:
        """The output of an `orch` command about this run."""
        orch = Path(sys.executable).with_name("orch")
        return subprocess.run([orch, *words], env=self._env, check=True, capture_output=True).stdout


def _spec(state: Path, hosts: int, tasks: int) -> JobSpec:
    names = [f"node{number:04}" for number in range(hosts)]
    return changed(
        JOB,
        name=_NAME,
        roles={"worker": hosts * tasks},
        command=_SCRIPT,
        engine=EngineName.SSH,
        hosts=tuple(Host(name=name, destination=name, slots=tasks) for name in names),
        checkpoint_dir=state / "checkpoints",
        start_timeout_s=_PATIENCE_S,
        # A busy machine loses no host.
        link_timeout_s=600.0,
    )


def _supervise(door: socket.socket, hub: socket.socket) -> int:
    return serve(OwnerDoor(door), LocalAgent(LocalEngine()), FakeEngine(hub))


if __name__ == "__main__":
    ours, to_hosts = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    for each in (ours, to_hosts):
        each.set_inheritable(False)
    if len(sys.argv) > 3:
        profiler = cProfile.Profile()
        code = profiler.runcall(_supervise, ours, to_hosts)
        profiler.dump_stats(sys.argv[3])
    else:
        code = _supervise(ours, to_hosts)
    os._exit(code)
