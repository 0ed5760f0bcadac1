"""Measures what the history of a run costs: its supervisor's CPU with and without it, and the disk in a long run.

    scripts/bench history [--rounds 5] [--tasks 8] [--hours 24] [--json FILE]

The run is simulated. Each task makes five steps a second, with eight metrics, and every step is written as the
supervisor does. CPU is that of the writing thread, in percent of the seconds of the run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from bench_pairs import bench, pair

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from run_records import make_run

from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import HistoryFile
from orchestrator.store.runs.writer import RunStore

CPU_AIM_PERCENT, DISK_AIM_MB = 1.0, 1.0
STEPS_PER_S, BEGINNING_S, MINUTE_S = 5, 300, 60
METRICS = {f"metric_{number}": 0.123456 + number for number in range(8)}


class Simulated:
    """Runs that are simulated, one after the other."""

    def __init__(self, tasks: int, hours: int) -> None:
        self._tasks = [f"worker:{index}" for index in range(tasks)]
        self._seconds = hours * 3600

    def beginning(self) -> float:
        """Percent of a core that writing takes in the first minutes, when most rows are written."""
        with _store() as store:
            used = sum(
                _cpu_s(store, step / STEPS_PER_S, self._progress(step), self._usage(step))
                for step in range(BEGINNING_S * STEPS_PER_S)
            )
        return 100 * used / BEGINNING_S

    def beginning_without(self) -> float:
        with patch.object(HistoryFile, "add"):
            return self.beginning()

    def long_run(self) -> tuple[float, float]:
        """Percent of a core in the busiest minute, and MB a task. While the file is thinned there are two of them."""
        minutes: list[float] = []
        largest = 0
        with _store() as store:
            history, file = HistoryFile(store.directory, "long.jsonl"), store.paths.root / "long.jsonl"
            for second in range(self._seconds):
                if second % MINUTE_S == 0:
                    minutes.append(0.0)
                progress, usage = self._progress(second * STEPS_PER_S), self._usage(second)
                began = time.thread_time()
                history.add(float(second), 1, progress, usage)
                minutes[-1] += time.thread_time() - began
                largest = max(largest, file.stat().st_size)
            history.close()
        return 100 * max(minutes) / MINUTE_S, 2 * largest / len(self._tasks) / 1e6

    def _progress(self, step: int) -> dict[str, Progress]:
        made = Progress(
            phase="training", epoch=1, step=step, loss=1 / (1 + step), steps_per_s=5.0, metrics=METRICS
        )
        return dict.fromkeys(self._tasks, made)

    def _usage(self, count: int) -> dict[str, dict[str, float]]:
        return {task: {"cpu_percent": count % 1000 / 10, "memory_bytes": count} for task in self._tasks}


@contextmanager
def _store() -> Iterator[RunStore]:
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        with patch.dict(os.environ, XDG_STATE_HOME=directory):
            store = make_run("history", started_at=0.0)
        try:
            yield store
        finally:
            store.close()


def _cpu_s(
    store: RunStore, time_s: float, progress: Mapping[str, Progress], usage: Mapping[str, Mapping[str, float]]
) -> float:
    began = time.thread_time()
    store.write_sample(at=time_s, mono=time_s, tasks=usage, progress=progress, attempt=1)
    return time.thread_time() - began


def main() -> None:
    with bench("history", __doc__, rounds=5, tasks=8, hours=24) as measured:
        simulated = Simulated(measured.given.tasks, measured.given.hours)
        against = "the same without the history"
        first = measured.line("writing samples, first 5 minutes", "%", against=against)
        more = measured.line("the history's part of it", "%", CPU_AIM_PERCENT)
        busiest = measured.line(f"history, busiest minute of {measured.given.hours} h", "%", CPU_AIM_PERCENT)
        disk = measured.line("its files, largest, a task", "MB", DISK_AIM_MB, of_worst=True)
        for round_ in measured.rounds:
            pair(first, simulated.beginning, simulated.beginning_without, round_)
            more.orch.append(first.orch[-1] - first.other[-1])
            percent, size = simulated.long_run()
            busiest.orch.append(percent)
            disk.orch.append(size)


if __name__ == "__main__":
    main()
