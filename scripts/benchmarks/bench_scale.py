"""Measures the cost of one more task: time to start 256 trivial tasks, the supervisor's CPU with 64 quiet ones.

    scripts/bench scale [--rounds 5] [--tasks 256] [--quiet-tasks 64] [--json FILE]

The price of a task is what many take more than one, by their number; a shell loop starts the same many.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import psutil
from bench_pairs import ORCH, Bench, bench

TASK_AIM_MS, CPU_AIM_PERCENT = 3.0, 1.0
WATCHED_S = 10.0
LOOP = 'for i in $(seq "$1"); do /bin/true & done; wait'


def a_task_more(measured: Bench, argv: Callable[[str], list[str]]) -> float:
    """Milliseconds, from the command lines for one task and for many."""
    many = measured.given.tasks
    one_s, many_s = (measured.timed(argv(str(tasks))) for tasks in (1, many))
    return (many_s - one_s) / (many - 1) * 1000


def quiet_cpu(measured: Bench) -> list[float]:
    """Percent of a core that the supervisor and the agent take while their tasks are quiet."""
    tasks = str(measured.given.quiet_tasks)
    measured.orch(
        *("up", "-d", "--wait", "ready", "--name", "quiet", "--workers", tasks, "--", "sleep", "600")
    )
    try:
        (record,) = (measured.state / "orch" / "runs").glob("quiet-*/run.json")
        supervisor = psutil.Process(json.loads(record.read_text())["supervisor_pid"])
        processes = [supervisor, *supervisor.children()]
        began, before = time.monotonic(), [cpu_s(process) for process in processes]
        time.sleep(WATCHED_S)
        watched = time.monotonic() - began
        return [
            (cpu_s(process) - used) / watched * 100 for process, used in zip(processes, before, strict=True)
        ]
    finally:
        measured.orch("down", "quiet")
        measured.clear()


def cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def main() -> None:
    with bench("scale", __doc__, rounds=5, tasks=256, quiet_tasks=64) as measured:
        given = measured.given
        more = measured.line(f"a task more, of {given.tasks}", "ms", TASK_AIM_MS)
        loop = measured.line("the same in a shell loop", "ms")
        processes = (
            measured.line(f"supervisor's CPU, {given.quiet_tasks} quiet tasks", "%", CPU_AIM_PERCENT),
            measured.line("agent's CPU beside it", "%"),
        )
        for _ in measured.rounds:
            up = lambda tasks: [str(ORCH), "up", "--workers", tasks, "--", "/bin/true"]  # noqa: E731
            more.orch.append(a_task_more(measured, up))
            loop.orch.append(a_task_more(measured, lambda tasks: ["bash", "-c", LOOP, "-", tasks]))
            for line, percent in zip(processes, quiet_cpu(measured), strict=True):
                line.orch.append(percent)


if __name__ == "__main__":
    main()
