"""Fold the lines that the other tasks print after the first failure, so that its own lines stay readable (pure).

Tasks that lose a peer report it at length. When a limit ends the run, all tasks do. The logs stay complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from orchestrator.client.view.folding import group_label
from orchestrator.core.state.events import TeardownReason
from orchestrator.core.state.state import RunState, TaskPhase
from orchestrator.core.text.counted import counted
from orchestrator.store.logs.lines import Block

# This many lines are shown as they are.
_MOST_SHOWN = 3
# The teardown begins at most this long after the exit that caused it.
_REACTION_S = 1.0
# A process loses its connections, and its peers report it, this long before its exit is noticed.
_NOTICED_AFTER_S = 0.1
_INDICES = re.compile(r"(?<![^\s:])([^\s:]+):([\d,-]+)")


class Failure(NamedTuple):
    """The task whose exit caused the teardown of an attempt (empty: a limit did), and the time (Unix seconds)."""

    task: str
    attempt: int
    at: float


def first_failure(state: RunState, to_unix: float) -> Failure | None:
    """The failure for which the current attempt is torn down. `to_unix` plus monotonic seconds are Unix seconds."""
    began = state.teardown_mono
    if state.teardown is TeardownReason.LIMIT and began is not None:
        return Failure("", state.attempt, began + to_unix)
    if state.teardown is not TeardownReason.FAILURE or began is None:
        return None
    ended = [
        (task.phase is not TaskPhase.FAILED, task.exit_order, task.name, task.ended_mono)
        for task in state.tasks.values()
        if task.phase in (TaskPhase.FAILED, TaskPhase.SUCCEEDED)
        and task.ended_mono is not None
        and began - _REACTION_S <= task.ended_mono <= began
    ]
    if not ended:
        return None
    _, _, name, ended_mono = min(ended)
    return Failure(name, state.attempt, ended_mono + to_unix)


class Aftermath:
    """Turns blocks into fewer blocks. Runs after a Folder, whose delay gives the failure time to be known."""

    def __init__(self) -> None:
        self._failure: Failure | None = None
        self._last_of_culprit = 0.0
        self._times: dict[str, float] = {}
        self._kept: list[Block] = []
        self._lines = 0
        self._tasks: set[str] = set()

    def begin(self, failure: Failure | None) -> list[Block]:
        """Set the failure; None: no attempt is failing. Return what belongs to an earlier one."""
        # The same failure has a time that differs by microseconds from state to state.
        if (failure and failure[:2]) == (self._failure and self._failure[:2]):
            return []
        before, self._failure = self.flush(), failure
        if failure is not None:
            self._last_of_culprit = self._times.get(failure.task, 0.0)
        return before

    def feed(self, blocks: Iterable[Block]) -> list[Block]:
        """Add blocks; return those that do not follow the failure."""
        return [block for block in blocks if not self._take(block)]

    def flush(self) -> list[Block]:
        """Return the lines that followed the failure: a few unchanged, more of them as one line."""
        kept, lines, tasks = self._kept, self._lines, sorted(self._tasks)
        self._kept, self._lines, self._tasks = [], 0, set()
        if lines <= _MOST_SHOWN or self._failure is None:
            return kept
        hint = "orch logs" + (f" {tasks[0]}" if len(tasks) == 1 else "")
        when = f"after {self._failure.task} failed" if self._failure.task else "while the run was stopped"
        text = f"{counted(lines, 'line')} {when} ({hint} shows them)\n"
        return [kept[0]._replace(task=group_label(tasks), data=text.encode(), partial=False, omitted=0)]

    def _take(self, block: Block) -> bool:
        """Keep or count the block if it follows the failure."""
        tasks = grouped_tasks(block.task)
        failure = self._failure
        if failure is None or failure.task in tasks:
            for task in tasks:
                self._times[task] = block.time or 0.0
            return False
        if block.attempt != failure.attempt or block.time is None or block.lost:
            return False
        if block.time < max(failure.at - _NOTICED_AFTER_S, min(failure.at, self._last_of_culprit)):
            return False
        if self._lines <= _MOST_SHOWN:
            self._kept.append(block)
        self._lines += block.lines * len(tasks)
        self._tasks |= tasks
        return True


def grouped_tasks(label: str) -> set[str]:
    """Return the tasks of a label that `group_label` made."""
    tasks: set[str] = set()
    for role, ranges in _INDICES.findall(label):
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            tasks |= {f"{role}:{index}" for index in range(int(first), int(last or first) + 1)}
    return tasks or {label}
