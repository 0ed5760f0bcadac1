"""CPU, memory and GPUs of each task with all its descendants, at a bounded cost."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from worker.agent.gpu_usage import GpuUsage
from worker.agent.processes import ProcessStat, all_processes, descendants, proportional_bytes
from worker.agent.tasks import TaskProcess
from worker.wire.facts import Usage

_INTERVAL_S = 2.0
# Reading PSS walks all page tables. The sampler may use 1/200 of a core.
_COST_SHARE = 200
# Interval of checks against a memory limit, which may use 1/100 of a core.
_LIMIT_INTERVAL_S = 0.25
_LIMIT_COST_SHARE = 100
# The kernel counts in ticks of 10 ms: over a shorter time, a task that has just started would use 1,000 % of a core.
_SHORTEST_S = 0.25
# PSS is read only if RSS, which costs nothing, is above this share of the limit. RSS is never less than PSS, except
# for pages that the kernel has not counted yet.
_NEAR = 15 / 16
# Tasks in one message, so that it stays under 1,000 bytes.
_TASKS_PER_MESSAGE = 6

Sample = dict[str, Usage]


class Sampler:
    """Measures all tasks at intervals. A measurement is done in steps, one process each: a process takes up to 25 ms a
    GB, and an exit must be reported in between.

    `due` is the time of the next take() (monotonic seconds)."""

    def __init__(self, now: float) -> None:
        self.due = now + _INTERVAL_S / 2
        self._all_due = self.due
        # By pid and start time: a restarted task is another process under the same name.
        self._cpu_before: dict[tuple[int, int], tuple[float, float]] = {}
        self._look: Generator[None, None, None] | None = None
        self._is_of_all = True
        self._cost_s = 0.0
        self._measured: list[tuple[TaskProcess, Usage]] = []
        self._gpus = GpuUsage()

    @property
    def child(self) -> int | None:
        """The pid of the process that asks for the use of GPUs. It ends with this process."""
        return self._gpus.pid

    def hasten(self, now: float) -> None:
        """Measure soon, since a task with a limit has started."""
        self.due = min(self.due, now + _LIMIT_INTERVAL_S)

    def take(self, now: float, tasks: Sequence[TaskProcess]) -> Sample:
        """Do the next step of measuring `tasks`, all that run now; nothing before `due`.

        Returns {task: usage} when a message is complete, else {}. All tasks are measured every 2 s or more; in between
        only those above their limit.
        """
        if now < self.due or not tasks:
            return {}
        began = time.thread_time()
        if self._look is None:
            self._cost_s = 0.0
            self._is_of_all = now >= self._all_due
            self._look = (
                self._look_at_all(now, tasks) if self._is_of_all else self._look_at_limits(now, tasks)
            )
        is_over = next(self._look, self) is self
        self._cost_s += time.thread_time() - began
        if is_over:
            self._look = None
            self._plan_next(now, tasks)
        return self._frame(tasks) if is_over or len(self._measured) == _TASKS_PER_MESSAGE else {}

    def _plan_next(self, now: float, tasks: Sequence[TaskProcess]) -> None:
        if self._is_of_all:
            living = {_identity(task) for task in tasks}
            self._cpu_before = {task: cpu for task, cpu in self._cpu_before.items() if task in living}
            self._all_due = now + max(_INTERVAL_S, self._cost_s * _COST_SHARE)
        self.due = self._all_due
        if any(task.order.memory_limit is not None for task in tasks):
            self.due = min(self.due, now + max(_LIMIT_INTERVAL_S, self._cost_s * _LIMIT_COST_SHARE))

    def _frame(self, tasks: Sequence[TaskProcess]) -> Sample:
        """Return the measurements since the last frame, without exited tasks."""
        living = {_identity(task) for task in tasks}
        measured, self._measured = self._measured, []
        return {task.name: usage for task, usage in measured if _identity(task) in living}

    def _look_at_all(self, now: float, tasks: Sequence[TaskProcess]) -> Generator[None, None, None]:
        processes = all_processes()
        self._gpus.refresh()
        for task in tasks:
            usage = yield from self._measure(now, task, processes)
            self._measured.append((task, usage))
            yield

    def _look_at_limits(self, now: float, tasks: Sequence[TaskProcess]) -> Generator[None, None, None]:
        processes = all_processes()
        for task in tasks:
            if task.order.memory_limit is None:
                continue
            if sum(stat.rss_bytes for stat in _tree(task, processes)) < task.order.memory_limit * _NEAR:
                continue
            usage = yield from self._measure(now, task, processes)
            if usage.memory_bytes > task.order.memory_limit:
                self._measured.append((task, usage))
                yield

    def _measure(
        self, now: float, task: TaskProcess, processes: dict[int, ProcessStat]
    ) -> Generator[None, None, Usage]:
        tree = _tree(task, processes)
        cpu_s = sum(stat.cpu_s for stat in tree)
        before_s, before = self._cpu_before.get(_identity(task), (0.0, task.started_mono))
        self._cpu_before[_identity(task)] = (cpu_s, now)
        # The time of an exited child is no longer counted: never below zero.
        percent = 100 * max(0.0, cpu_s - before_s) / max(now - before, _SHORTEST_S)
        memory = 0
        for stat in tree:
            yield
            memory += proportional_bytes(stat.pid)
        on_gpus = self._gpus.of(stat.pid for stat in tree)
        return Usage(round(percent, 1), memory, **on_gpus, stop_signal=task.stopped_by())


def _identity(task: TaskProcess) -> tuple[int, int]:
    return task.pid, task.start_ticks


def _tree(task: TaskProcess, processes: dict[int, ProcessStat]) -> list[ProcessStat]:
    """Return the task's leader and its descendants."""
    tree = descendants(task.pid, processes)
    if task.pid in processes:
        tree.append(processes[task.pid])
    return tree
