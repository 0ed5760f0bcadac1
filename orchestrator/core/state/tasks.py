"""The tasks of an attempt as an immutable table that is cheap to change: a run has thousands of them, and most events
change one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.core.state.state import TaskPhase, TaskState

# Number of tasks that are copied when one of them changes. Copying all 4,000 takes three times as long.
_BLOCK = 64


class Tasks(Mapping[str, "TaskState"]):
    """The tasks by name, in plan order. with_task() shares all but one block with the original.

    `counts` are the numbers of tasks by role and phase."""

    __slots__ = ("_blocks", "_places", "counts")

    def __init__(self, tasks: Iterable[TaskState] = ()) -> None:
        # A damaged file may name a task twice.
        listed = tuple({task.name: task for task in tasks}.values())
        self._places = {task.name: place for place, task in enumerate(listed)}
        self._blocks = tuple(listed[at : at + _BLOCK] for at in range(0, len(listed), _BLOCK))
        self.counts: Mapping[tuple[str, TaskPhase], int] = Counter(
            (task.plan.role, task.phase) for task in listed
        )

    def __getitem__(self, name: str) -> TaskState:
        place = self._places[name]
        return self._blocks[place // _BLOCK][place % _BLOCK]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def with_task(self, task: TaskState) -> Tasks:
        """Return the table with this task instead of the one of its name, which must be there."""
        at, within = divmod(self._places[task.name], _BLOCK)
        block, role, before = self._blocks[at], task.plan.role, self[task.name].phase
        changed = object.__new__(Tasks)
        changed._places = self._places
        block = (*block[:within], task, *block[within + 1 :])
        changed._blocks = (*self._blocks[:at], block, *self._blocks[at + 1 :])
        changed.counts = self.counts
        if before is not task.phase:
            changed.counts = counts = Counter(self.counts)
            counts[role, before] -= 1
            counts[role, task.phase] += 1
        return changed

    def count(self, phases: Collection[TaskPhase], without: str = "") -> int:
        """The number of tasks in one of these phases, without those of one role."""
        return sum(
            number for (role, phase), number in self.counts.items() if phase in phases and role != without
        )
