"""Ends all tasks: SIGTERM to every group and orphan, SIGKILL at the deadline, until no process is left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable

from worker.agent.processes import Delivery, ProcessStat, all_processes, descendants, send_signal
from worker.agent.tasks import TaskProcess

# Interval of checks for remaining processes. Exits of leaders wake the agent; those of an orphan's children may not.
_CHECK_S = 0.02


class Teardown:
    """A teardown of all processes below `root`, except those that `spared` returns.

    `due` is the time of the next advance() (monotonic seconds). `swept` counts processes that outlived their task.
    `refused` holds processes of other users, which this one may not end; `refused_before` those of an earlier teardown,
    which are ignored."""

    def __init__(
        self,
        root: int,
        now: float,
        grace_s: float,
        orphan_grace_s: float,
        spared: Callable[[], Collection[int | None]],
        refused_before: Collection[ProcessStat] = (),
    ) -> None:
        self.due = now
        self.swept = 0
        self.is_killing = False
        self.refused: list[ProcessStat] = []
        self._refused_before = {(stat.pid, stat.start_ticks) for stat in refused_before}
        self._root = root
        self._spared = spared
        self._deadline = now + grace_s
        self._orphan_grace_s = orphan_grace_s
        self._leaders_gone = False

    def terminate(self, tasks: Iterable[TaskProcess]) -> None:
        """Send SIGTERM to each task's group and to processes outside the groups. Stopped processes are continued."""
        tasks = list(tasks)
        for task in tasks:
            task.signal_group(signal.SIGTERM)
            task.signal_group(signal.SIGCONT)
        leaders = {task.pid for task in tasks}
        for stat in self._left():
            if stat.pid not in leaders:
                send_signal(stat, signal.SIGTERM)

    def hasten(self, deadline: float) -> None:
        self._deadline = min(self._deadline, deadline)

    def advance(self, now: float, tasks: Collection[TaskProcess]) -> bool:
        """Do what is due. Return True when no process is left, or only those of other users."""
        if not tasks and not self._leaders_gone:
            # All tasks have exited. Orphans that ignore SIGTERM do not get the whole grace.
            self._leaders_gone = True
            self.hasten(now + self._orphan_grace_s)
        if now < self._deadline and tasks:
            self.due = self._deadline
            return False
        left = self._left()
        if not left and not tasks:
            return True
        if now >= self._deadline:
            self._kill(left, tasks)
            pids = {stat.pid for stat in self.refused}
            if pids.issuperset(stat.pid for stat in left) and pids.issuperset(task.pid for task in tasks):
                return True
        self.due = now + _CHECK_S
        return False

    def _left(self) -> list[ProcessStat]:
        spared = self._spared()
        return [
            stat
            for stat in descendants(self._root, all_processes())
            if stat.pid not in spared and (stat.pid, stat.start_ticks) not in self._refused_before
        ]

    def _kill(self, left: list[ProcessStat], tasks: Collection[TaskProcess]) -> None:
        first = not self.is_killing
        self.is_killing = True
        leaders = {task.pid for task in tasks}
        for task in tasks:
            task.signal_group(signal.SIGKILL)
        self.refused = []
        for stat in left:
            match send_signal(stat, signal.SIGKILL):
                case Delivery.SENT if first and stat.pid not in leaders:
                    self.swept += 1
                case Delivery.REFUSED:
                    self.refused.append(stat)
