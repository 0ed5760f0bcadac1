"""Measures what the history of a run costs: its supervisor's CPU with and without it, and the disk in a long run.

    scripts/bench history [--rounds 5] [--tasks 8] [--hours 24] [--json FILE]

The run is simulated. Each task makes five steps a second, with eight metrics, and every step is written as the
supervisor does. CPU is that of the writing thread, in percent of the seconds of the run.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing
from unittest.mock import patch

from bench_pairs import Bench, bench
from run_records import make_run

from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import HistoryFile

CPU_AIM_PERCENT, DISK_AIM_MB = 1.0, 1.0
STEPS_PER_S, BEGINNING_S, MINUTE_S = 5, 300, 60
METRICS = {f"metric_{number}": 0.123456 + number for number in range(8)}


class Simulated:
    """Runs that are simulated, one after the other."""

    def __init__(self, measured: Bench) -> None:
        self._tasks = [f"worker:{index}" for index in range(measured.given.tasks)]
        self._seconds = measured.given.hours * 3600

    def beginning(self) -> float:
        """Percent of a core that writing takes in the first minutes, when most rows are written."""
        used = 0.0
        with closing(make_run("history", started_at=0.0)) as store:
            for step in range(BEGINNING_S * STEPS_PER_S):
                at, progress, usage = step / STEPS_PER_S, self._progress(step), self._usage(step)
                began = time.thread_time()
                store.write_sample(at=at, mono=at, tasks=usage, progress=progress, attempt=1)
                used += time.thread_time() - began
        return 100 * used / BEGINNING_S

    def beginning_without(self) -> float:
        with patch.object(HistoryFile, "add"):
            return self.beginning()

    def long_run(self) -> tuple[float, float]:
        """Percent of a core in the busiest minute, and MB a task. While the file is thinned there are two of them."""
        used: Counter[int] = Counter()
        largest = 0
        with closing(make_run("history", started_at=0.0)) as store:
            file = store.paths.root / "long.jsonl"
            with closing(HistoryFile(store.directory, file.name)) as history:
                for second in range(self._seconds):
                    progress, usage = self._progress(second * STEPS_PER_S), self._usage(second)
                    began = time.thread_time_ns()
                    history.add(float(second), 1, progress, usage)
                    used[second // MINUTE_S] += time.thread_time_ns() - began
                    largest = max(largest, file.stat().st_size)
        return max(used.values()) / 1e7 / MINUTE_S, 2 * largest / len(self._tasks) / 1e6

    def _progress(self, step: int) -> dict[str, Progress]:
        rest = {"steps_per_s": 5.0, "metrics": METRICS}
        made = Progress(phase="training", epoch=1, step=step, loss=1 / (1 + step), **rest)
        return dict.fromkeys(self._tasks, made)

    def _usage(self, count: int) -> dict[str, dict[str, float]]:
        return {task: {"cpu_percent": count % 1000 / 10, "memory_bytes": count} for task in self._tasks}


def main() -> None:
    with bench("history", __doc__, rounds=5, tasks=8, hours=24) as measured:
        os.environ["XDG_STATE_HOME"] = str(measured.state)
        simulated = Simulated(measured)
        first = measured.line("writing samples, first 5 minutes", "%", None, "the same without the history")
        measured.compare(first, simulated.beginning, simulated.beginning_without)
        more = measured.line("the history's part of it", "%", CPU_AIM_PERCENT)
        more.orch += [ours - theirs for ours, theirs in zip(first.orch, first.other, strict=True)]
        busiest = measured.line(f"history, busiest minute of {measured.given.hours} h", "%", CPU_AIM_PERCENT)
        disk = measured.line("its files, largest, a task", "MB", DISK_AIM_MB, of_worst=True)
        for _ in measured.rounds:
            percent, size = simulated.long_run()
            busiest.orch.append(percent)
            disk.orch.append(size)


if __name__ == "__main__":
    main()
