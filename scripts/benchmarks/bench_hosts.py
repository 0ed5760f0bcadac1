"""Measures the supervisor of a run on many hosts: its CPU time, its memory, and what one more host costs.

    scripts/bench hosts [--rounds 3] [--hosts 10 100 1000] [--tasks 4] [--on-disk] [--json FILE]

The hosts are pretended: one process holds all their agents, which speak the real session with the real supervisor but
start no tasks: the figures are those of orch's own process. The run's files are in memory, unless --on-disk is
given: there, creating thousands of log files takes the kernel about as long as everything else.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench_pairs import Compared, options, report, say

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from simulated_hosts import SimulatedRun

START_AIM_S, MEMORY_AIM_MB = 10.0, 300.0
IDLE_AIM_PERCENT, STATUS_AIM_S, STOP_AIM_S = 10.0, 1.0, 5.0
GROWTH_AIM = 1.5
WATCHED_S = 10.0
# The first samples and the answers to the first pings have come.
SETTLED_S = 3.0
_MEMORY = Path("/dev/shm")


class Figures:
    """The lines of the table for one number of hosts. The largest number has aims."""

    def __init__(self, hosts: int, has_aims: bool) -> None:
        def line(name: str, unit: str, aim: float) -> Compared:
            return Compared(f"{name}, {hosts:,} hosts", unit, "", aim if has_aims else None)

        self.hosts = hosts
        self.start = line("CPU time until all tasks are ready", "s", START_AIM_S)
        self.memory = line("memory (PSS) then", "MB", MEMORY_AIM_MB)
        self.idle = line("CPU while the tasks are quiet", "%", IDLE_AIM_PERCENT)
        self.status = line("orch status", "s", STATUS_AIM_S)
        self.stop = line("stop until the supervisor has exited", "s", STOP_AIM_S)

    @property
    def lines(self) -> list[Compared]:
        return [self.start, self.memory, self.idle, self.status, self.stop]

    def measure(self, parent: Path | None, tasks: int) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="orch-bench-", dir=parent) as directory,
            SimulatedRun(Path(directory), self.hosts, tasks) as run,
        ):
            run.until_event("task_ready", run.tasks)
            self.start.orch.append(run.cpu_s)
            self.memory.orch.append(run.memory_bytes / 1e6)
            time.sleep(SETTLED_S)
            used, began = run.cpu_s, time.monotonic()
            time.sleep(WATCHED_S)
            self.idle.orch.append((run.cpu_s - used) / (time.monotonic() - began) * 100)
            began = time.monotonic()
            run.orch("status", run.name)
            self.status.orch.append(time.monotonic() - began)
            began = time.monotonic()
            run.stop()
            self.stop.orch.append(time.monotonic() - began)
        say(f"{self.hosts:,} hosts: " + ", ".join(f"{line.orch[-1]:.3g} {line.unit}" for line in self.lines))


def main() -> None:
    parser = options("Measures the supervisor of a run on many hosts.", rounds=3)
    parser.add_argument("--hosts", type=int, nargs=3, default=[10, 100, 1000], metavar="N")
    parser.add_argument("--tasks", type=int, default=4, help="on each host (default 4)")
    parser.add_argument("--on-disk", action="store_true", help="write the run's files to disk")
    arguments = parser.parse_args()
    counts = sorted(set(arguments.hosts))
    if len(counts) < 3:
        parser.error("--hosts needs three different numbers")
    parent = _MEMORY if _MEMORY.is_dir() and not arguments.on_disk else None
    figures = [Figures(hosts, hosts == counts[-1]) for hosts in counts]
    growth = Compared(
        "CPU time of a host: the last ones, the first ones", "ms", "the first hosts", GROWTH_AIM
    )
    for _ in range(arguments.rounds):
        for each in figures:
            each.measure(parent, arguments.tasks)
        few, more, many = (each.start.orch[-1] * 1000 for each in figures)
        growth.orch.append((many - more) / (counts[2] - counts[1]))
        growth.other.append((more - few) / (counts[1] - counts[0]))
    report("hosts", [*(line for each in figures for line in each.lines), growth], arguments.json)


if __name__ == "__main__":
    main()
