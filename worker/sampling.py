"""CPU and memory of each task with all its descendants, at a bounded cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from worker.processes import ProcessStat, all_processes, descendants, proportional_bytes
from worker.task_process import TaskProcess

_INTERVAL_S = 2.0
# Reading PSS walks every page table: the sampler never takes more than 1/200 of a core for it.
_COST_SHARE = 200
# Tasks in one message, so that a frame stays under 1,000 bytes.
_TASKS_PER_FRAME = 8

Sample = dict[str, dict[str, float]]


class Sampler:
    """`due` is when it next wants to look (monotonic seconds)."""

    def __init__(self, now: float) -> None:
        self.due = now + _INTERVAL_S / 2
        self._cpu_before: dict[str, tuple[float, float]] = {}

    def samples(self, now: float, tasks: Sequence[TaskProcess]) -> Iterator[Sample]:
        """{task: {cpu_percent (of one core), memory_bytes (PSS)}} in frames; nothing before `due`."""
        if now < self.due or not tasks:
            return
        began = time.thread_time()
        processes = all_processes()
        measured = {task.name: self._measure(now, task, processes) for task in tasks}
        self.due = now + max(_INTERVAL_S, (time.thread_time() - began) * _COST_SHARE)
        names = list(measured)
        for start in range(0, len(names), _TASKS_PER_FRAME):
            yield {name: measured[name] for name in names[start : start + _TASKS_PER_FRAME]}

    def _measure(self, now: float, task: TaskProcess, processes: dict[int, ProcessStat]) -> dict[str, float]:
        tree = descendants(task.pid, processes)
        if task.pid in processes:
            tree.append(processes[task.pid])
        cpu_s = sum(stat.cpu_s for stat in tree)
        before_s, before = self._cpu_before.get(task.name, (0.0, task.started_mono))
        self._cpu_before[task.name] = (cpu_s, now)
        # A child that ended took its time with it: never below zero.
        percent = 100 * max(0.0, cpu_s - before_s) / max(now - before, 1e-3)
        memory = sum(proportional_bytes(stat.pid) for stat in tree)
        return {"cpu_percent": round(percent, 1), "memory_bytes": memory}
