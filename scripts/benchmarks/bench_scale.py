"""Measures the cost of one more task: time to start 256 trivial tasks, the supervisor's CPU with 64 quiet ones.

    scripts/bench scale [--rounds 5] [--tasks 256] [--quiet-tasks 64] [--json FILE]

The price of a task is what many take more than one, by their number; a shell loop starts the same many.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import psutil
from bench_pairs import ORCH, bench

TASK_AIM_MS, CPU_AIM_PERCENT = 3.0, 1.0
WATCHED_S = 10.0
LOOP = 'for i in $(seq "$1"); do /bin/true & done; wait'


def up(tasks: int) -> list[str]:
    return [str(ORCH), "up", "--workers", str(tasks), "--", "/bin/true"]


def shell_loop(tasks: int) -> list[str]:
    return ["bash", "-c", LOOP, "-", str(tasks)]


def main() -> None:
    with bench("scale", __doc__, rounds=5, tasks=256, quiet_tasks=64) as measured:
        tasks, quiet = measured.given.tasks, measured.given.quiet_tasks

        def a_task_more(argv: Callable[[int], list[str]]) -> float:
            """Milliseconds, from the command lines for one task and for many."""
            one_s, many_s = (measured.timed(argv(count)) for count in (1, tasks))
            return (many_s - one_s) / (tasks - 1) * 1000

        more = measured.line(f"a task more, of {tasks}", "ms", TASK_AIM_MS)
        measured.take(more, partial(a_task_more, up))
        measured.take(measured.line("the same in a shell loop", "ms"), partial(a_task_more, shell_loop))
        lines = (
            measured.line(f"supervisor's CPU, {quiet} quiet tasks", "%", CPU_AIM_PERCENT),
            measured.line("agent's CPU beside it", "%"),
        )
        for _ in measured.rounds:
            with measured.running(quiet, "sleep", "600") as run:
                record = json.loads((measured.state / "orch/runs" / run / "run.json").read_text())
                supervisor = psutil.Process(record["supervisor_pid"])
                processes = [supervisor, *supervisor.children()]
                for process in processes:
                    process.cpu_percent()
                time.sleep(WATCHED_S)
                for line, process in zip(lines, processes, strict=True):
                    line.orch.append(process.cpu_percent())


if __name__ == "__main__":
    main()
