"""Draws of a first failure on the pretend machines: one task raises, and its peers fail when they lose it.

Each machine has another clock and another latency.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

from hosts_run import HOSTS, HostsRun
from testbed import Testbed

# The largest latency of a host in one direction. A way from n0 and back takes up to 200 ms.
MOST_LATENCY_S = 0.1
# How a peer ends when it has lost the first one.
_ENDS = ("own", "lost", "exit")
# The first one listens, waits until all others are connected, and raises; its streams end, and then it may take long to
# exit. A peer reads until the end of the stream.
_FAIL = """
import atexit, json, os, pathlib, socket, sys, time
here, victim, exit_s, *ends = sys.argv[1:]
here, index = pathlib.Path(here), json.loads(os.environ["TF_CONFIG"])["task"]["index"]
addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
place = here / "place"
if index == int(victim):
    server = socket.create_server((addresses[index].rpartition(":")[0], 0))
    (here / "new").write_text("{} {}".format(*server.getsockname()))
    (here / "new").rename(place)
    peers = [server.accept()[0] for _ in addresses[1:]]
    if float(exit_s):
        atexit.register(time.sleep, float(exit_s))
        atexit.register(lambda: [peer.close() for peer in peers])
    raise ValueError("the first failure")
while not place.exists():
    time.sleep(0.01)
host, port = place.read_text().split()
stream = socket.create_connection((host, int(port)))
try:
    stream.recv(1)
except ConnectionError:
    pass
match ends[index]:
    case "own":
        raise RuntimeError("no step without a peer")
    case "lost":
        raise ConnectionResetError(104, "Connection reset by peer")
sys.exit(1)
"""


@dataclass(frozen=True)
class Draw:
    """`victim`: the worker that fails first. `ends`: how the others do. `latencies`: of the machines, in seconds.
    `exit_s`: how much longer the victim runs after its peers have lost it."""

    victim: int
    ends: tuple[str, ...]
    latencies: tuple[float, ...]
    exit_s: float = 0.0

    @classmethod
    def at_random(cls, chance: random.Random) -> Draw:
        ends = tuple(chance.choice(_ENDS) for _ in HOSTS)
        return cls(
            chance.randrange(len(HOSTS)), ends, tuple(chance.uniform(0, MOST_LATENCY_S) for _ in HOSTS)
        )

    def start(self, machines: Testbed, project: Path) -> HostsRun:
        (project / "fail.py").write_text(_FAIL)
        (project / "place").unlink(missing_ok=True)
        for name, latency_s in zip(HOSTS, self.latencies, strict=True):
            machines.delay(name, latency_s)
        words = (sys.executable, "fail.py", str(project), str(self.victim), str(self.exit_s), *self.ends)
        return HostsRun.start(machines, project, "--workers", "3", "--link-timeout", "60s", "--", *words)

    def named_wrongly(self, run: HostsRun) -> str | None:
        """Wait for the end of the run; return what it names, unless that is the first failure."""
        cause = run.finish()["cause"]
        is_right = cause["task"] == f"worker:{self.victim}" and "the first failure" in run.message_text
        return None if is_right else f"{self}: {cause}"
