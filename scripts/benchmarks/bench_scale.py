"""Measures the cost of one more task: time to start 256 trivial tasks, the supervisor's CPU with 64 quiet ones.

    scripts/bench scale [--rounds 5] [--tasks 256] [--quiet-tasks 64] [--json FILE]

The price of a task is what many take more than one, by their number; a shell loop starts the same many.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from bench_cluster import ORCH
from bench_pairs import Compared, options, report

TASK_AIM_MS, CPU_AIM_PERCENT = 3.0, 1.0
WATCHED_S = 10.0


class Scale:
    def __init__(self, directory: Path, tasks: int, quiet_tasks: int) -> None:
        self._state = directory / "state"
        self._env = os.environ | {"XDG_STATE_HOME": str(self._state), "NO_COLOR": "1"}
        self._tasks = tasks
        self._quiet_tasks = quiet_tasks

    def a_task_more(self) -> float:
        """Milliseconds."""
        one, many = self._up(1), self._up(self._tasks)
        return (many - one) / (self._tasks - 1) * 1000

    def a_task_more_by_loop(self) -> float:
        loop = 'for i in $(seq "$1"); do /bin/true & done; wait'
        one, many = (self._timed(["bash", "-c", loop, "-", str(tasks)]) for tasks in (1, self._tasks))
        return (many - one) / (self._tasks - 1) * 1000

    def quiet_cpu(self) -> tuple[float, float]:
        """Percent of a core that the supervisor and the agent take while their tasks are quiet."""
        up = [
            str(ORCH),
            "up",
            "-d",
            "--wait",
            "ready",
            "--name",
            "quiet",
            "--workers",
            str(self._quiet_tasks),
        ]
        subprocess.run(
            [*up, "--", "sleep", "600"],
            env=self._env,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            supervisor = self._supervisor()
            (agent,) = supervisor.children()
            before = _cpu_s(supervisor), _cpu_s(agent)
            began = time.monotonic()
            time.sleep(WATCHED_S)
            watched = time.monotonic() - began
            return tuple(
                (_cpu_s(process) - was) / watched * 100
                for process, was in zip((supervisor, agent), before, strict=True)
            )  # type: ignore[return-value]
        finally:
            subprocess.run(
                [str(ORCH), "down", "quiet"],
                env=self._env,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            shutil.rmtree(self._state)

    def _supervisor(self) -> psutil.Process:
        (record,) = (self._state / "orch" / "runs").glob("quiet-*/run.json")
        return psutil.Process(json.loads(record.read_text())["supervisor_pid"])

    def _up(self, tasks: int) -> float:
        return self._timed([str(ORCH), "up", "--workers", str(tasks), "--", "/bin/true"])

    def _timed(self, argv: list[str]) -> float:
        began = time.perf_counter()
        subprocess.run(argv, env=self._env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = options("Measures what a task more costs.", rounds=5)
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--quiet-tasks", type=int, default=64)
    arguments = parser.parse_args()
    more = Compared(f"a task more, of {arguments.tasks}", "ms", "", TASK_AIM_MS)
    loop = Compared("the same in a shell loop", "ms", "")
    supervisor = Compared(f"supervisor's CPU, {arguments.quiet_tasks} quiet tasks", "%", "", CPU_AIM_PERCENT)
    agent = Compared("agent's CPU beside it", "%", "")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        scale = Scale(Path(directory), arguments.tasks, arguments.quiet_tasks)
        for _ in range(arguments.rounds):
            more.orch.append(scale.a_task_more())
            loop.orch.append(scale.a_task_more_by_loop())
            for line, percent in zip((supervisor, agent), scale.quiet_cpu(), strict=True):
                line.orch.append(percent)
    report("scale", [more, loop, supervisor, agent], arguments.json)


if __name__ == "__main__":
    main()
