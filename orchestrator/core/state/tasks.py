"""The tasks of an attempt as an immutable table that is cheap to change, and sets of tasks that follow its changes.

A run has thousands of tasks, and each event changes one of them: what happens at an event must not look at them all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain, count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.core.state.state import RunState, TaskPhase, TaskState

_Blocks = tuple[tuple["TaskState", ...], ...]
# Tasks that are copied when one of them changes.
_BLOCK = 64
_VERSIONS = count()


class Tasks(Mapping[str, "TaskState"]):
    """The tasks by name, in plan order. Immutable; with_task() shares all but one block with the original.

    `counts` are the numbers of tasks by role and phase; a role without tasks in a phase has no entry."""

    __slots__ = ("_awaited", "_blocks", "_change", "_places", "_version", "counts")

    def __init__(self, tasks: Iterable[TaskState] = ()) -> None:
        self._awaited: tuple[str, ...] | None = None
        self._version = next(_VERSIONS)
        # The version that this one differs from by a single task, and that task.
        self._change: tuple[int, TaskState] | None = None
        # A damaged file may name a task twice.
        listed = tuple({task.name: task for task in tasks}.values())
        self._places = {task.name: place for place, task in enumerate(listed)}
        self._set_all(listed)

    def _set_all(self, listed: tuple[TaskState, ...]) -> None:
        self._blocks: _Blocks = tuple(listed[at : at + _BLOCK] for at in range(0, len(listed), _BLOCK))
        counts: dict[tuple[str, TaskPhase], int] = {}
        for task in listed:
            counts[task.plan.role, task.phase] = counts.get((task.plan.role, task.phase), 0) + 1
        self.counts: Mapping[tuple[str, TaskPhase], int] = counts

    def __getitem__(self, name: str) -> TaskState:
        place = self._places[name]
        return self._blocks[place // _BLOCK][place % _BLOCK]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"Tasks({list(self.values())!r})"

    def values(self) -> ValuesView[TaskState]:
        return _Values(self)

    def items(self) -> ItemsView[str, TaskState]:
        return _Items(self)

    def states(self) -> Iterator[TaskState]:
        return chain.from_iterable(self._blocks)

    def _unset(self) -> Tasks:
        """A table of the same names whose tasks are not set yet."""
        table = Tasks()
        table._places = self._places
        return table

    def with_task(self, task: TaskState) -> Tasks:
        """Return the table with this task instead of the one of its name, which must be there."""
        place = self._places[task.name]
        at, within = divmod(place, _BLOCK)
        block = self._blocks[at]
        old = block[within]
        changed = self._unset()
        changed._change = self._version, task
        changed._blocks = (
            *self._blocks[:at],
            (*block[:within], task, *block[within + 1 :]),
            *self._blocks[at + 1 :],
        )
        changed.counts = self.counts
        if old.phase is not task.phase:
            counts = dict(self.counts)
            role = task.plan.role
            counts[role, task.phase] = counts.get((role, task.phase), 0) + 1
            counts[role, old.phase] -= 1
            if not counts[role, old.phase]:
                del counts[role, old.phase]
            changed.counts = counts
        return changed

    def awaited(self, is_awaited: Callable[[TaskState], bool]) -> tuple[str, ...]:
        """The names of the tasks that others wait for, looked for once: each task that waits is shown with them."""
        if self._awaited is None:
            self._awaited = tuple(task.name for task in self.states() if is_awaited(task))
        return self._awaited

    def mapped(self, change: Callable[[TaskState], TaskState]) -> Tasks:
        """Return the table with every task changed."""
        changed = self._unset()
        changed._set_all(tuple(map(change, self.states())))
        return changed

    def count(self, phases: Collection[TaskPhase], without: str = "") -> int:
        """The number of tasks in one of these phases, without those of one role."""
        return sum(
            number for (role, phase), number in self.counts.items() if phase in phases and role != without
        )

    def changed_since(self, older: Tasks | None) -> Iterable[TaskState]:
        """The tasks that differ from those of an older table; all of them if that is of another attempt."""
        if older is self:
            return ()
        if older is None or older._places is not self._places:
            return self.states()
        if self._change is not None and self._change[0] == older._version:
            return (self._change[1],)
        return [
            task
            for block, before in zip(self._blocks, older._blocks, strict=True)
            if block is not before
            for task, was in zip(block, before, strict=True)
            if task is not was
        ]

    def is_of_same_attempt(self, older: Tasks | None) -> bool:
        """Whether an older table became this one by changes of its tasks."""
        return older is not None and older._places is self._places


class _Values(ValuesView["TaskState"]):
    def __init__(self, tasks: Tasks) -> None:
        super().__init__(tasks)
        self._tasks = tasks

    def __iter__(self) -> Iterator[TaskState]:
        return self._tasks.states()


class _Items(ItemsView[str, "TaskState"]):
    def __init__(self, tasks: Tasks) -> None:
        super().__init__(tasks)
        self._tasks = tasks

    def __iter__(self) -> Iterator[tuple[str, TaskState]]:
        return zip(self._tasks, self._tasks.states(), strict=True)


class Matching:
    """The names of the tasks for which `test` holds. `test` may use what the state has for a whole attempt, such as the
    roles, and else only the task. Call update() with each new state."""

    def __init__(self, test: Callable[[TaskState, RunState], bool]) -> None:
        self.names: set[str] = set()
        self._test = test
        self._seen: Tasks | None = None

    def update(self, state: RunState) -> None:
        changed = state.tasks.changed_since(self._seen)
        if not state.tasks.is_of_same_attempt(self._seen):
            self.names.clear()
        self._seen = state.tasks
        for task in changed:
            if self._test(task, state):
                self.names.add(task.name)
            else:
                self.names.discard(task.name)

    def __bool__(self) -> bool:
        return bool(self.names)
