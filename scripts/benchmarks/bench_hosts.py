"""Measures the supervisor of a run on many hosts: its CPU time, its memory, and what one more host costs.

    scripts/bench hosts [--rounds 3] [--hosts 10,100,1000] [--tasks 4] [--directory /tmp] [--json FILE]

The hosts are pretended: one process holds all their agents, which speak the real session with the real supervisor but
start no tasks: the figures are those of orch's own process. The run's files are in memory, unless --directory is
given: on a disk, creating thousands of log files takes the kernel about as long as everything else.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench_pairs import Bench, bench, say
from simulated_hosts import SimulatedRun

# Names, units and aims of the figures. The aims are those of the largest number of hosts.
FIGURES = (
    ("CPU time until all tasks are ready", "s", 10.0),
    ("memory (PSS) then", "MB", 300.0),
    ("CPU while the tasks are quiet", "%", 10.0),
    ("orch status", "s", 1.0),
    ("stop until the supervisor has exited", "s", 5.0),
)
GROWTH_AIM = 1.5
WATCHED_S = 10.0
# The first samples and the answers to the first pings have come.
SETTLED_S = 3.0


def measure(measured: Bench, hosts: int) -> list[float]:
    """Return the FIGURES of a run."""
    with SimulatedRun(measured.folder(), hosts, measured.given.tasks) as run:
        run.until_event("task_ready", run.tasks)
        started_s, memory = run.cpu_s, run.memory_bytes
        time.sleep(SETTLED_S)
        idle = run.supervisor.cpu_percent(WATCHED_S)
        times = [time.monotonic()]
        run.orch("status", run.name)
        times.append(time.monotonic())
        run.stop()
        times.append(time.monotonic())
    return [started_s, memory / 1e6, idle, times[1] - times[0], times[2] - times[1]]


def main() -> None:
    memory = Path("/dev/shm")
    with bench("hosts", __doc__, rounds=3, directory=memory, hosts="10,100,1000", tasks=4) as measured:
        counts = sorted({int(hosts) for hosts in measured.given.hosts.split(",")})
        if len(counts) != 3:
            raise SystemExit("--hosts needs three different numbers")
        lines = {
            hosts: [
                measured.line(f"{name}, {hosts:,} hosts", unit, aim if hosts == counts[-1] else None)
                for name, unit, aim in FIGURES
            ]
            for hosts in counts
        }
        name = "CPU time of a host: the last ones, the first ones"
        growth = measured.line(name, "ms", GROWTH_AIM, "the first hosts")
        for _ in measured.rounds:
            for hosts in counts:
                for line, figure in zip(lines[hosts], measure(measured, hosts), strict=True):
                    line.orch.append(figure)
                    say(f"{line.name}: {figure:.3g} {line.unit}")
            few, more, many = (lines[hosts][0].orch[-1] * 1000 for hosts in counts)
            growth.orch.append((many - more) / (counts[2] - counts[1]))
            growth.other.append((more - few) / (counts[1] - counts[0]))


if __name__ == "__main__":
    main()
