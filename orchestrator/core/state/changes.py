"""The tasks that an event has changed, and sets of tasks that follow the changes.

A run has thousands of tasks, and most events change one of them: the work at an event must not grow with all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from orchestrator.core.state.events import Event
from orchestrator.core.state.state import RunState, TaskState


def changed_tasks(before: Mapping[str, TaskState], after: RunState, event: Event) -> Collection[TaskState]:
    """Return the tasks that `event` has changed, or all of them if it is not about a single one."""
    if after.tasks is before:
        return ()
    name = getattr(event, "task", None)
    return after.tasks.values() if name is None else (after.tasks[name],)


class Matching:
    """The names of the tasks for which `test` holds. Call update() after each event.

    `test` may use the task, and what does not change in the state during an attempt, such as the roles.
    """

    def __init__(self, test: Callable[[TaskState, RunState], bool]) -> None:
        self.names: set[str] = set()
        self._test = test
        self._attempt = 0

    def update(self, state: RunState, changed: Collection[TaskState]) -> None:
        if state.attempt != self._attempt:
            self._attempt = state.attempt
            self.names.clear()
        for task in changed:
            if self._test(task, state):
                self.names.add(task.name)
            else:
                self.names.discard(task.name)

    def __bool__(self) -> bool:
        return bool(self.names)
