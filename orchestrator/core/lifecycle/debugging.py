"""Suspends time limits while a task is debugged (pure)."""

from __future__ import annotations

import json
from collections.abc import Collection

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Action, Deadline, Happen
from orchestrator.core.state.changes import Matching
from orchestrator.core.state.events import Debugger, Noticed, TaskProgressed
from orchestrator.core.state.state import RunState, TaskState

# The deadlines that limit the time of tasks. The deadlines for orch's own work still count.
_SUSPENDED = frozenset(
    (
        *(Deadline.TIMEOUT, Deadline.START_LATE, Deadline.START_LIMIT, Deadline.STALL_LIMIT),
        *(Deadline.SILENCE, Deadline.EVALUATOR),
    )
)
_ADDRESS = "127.0.0.1"


class DebugWatch:
    """Watches which tasks are debugged. Call update() after each event."""

    def __init__(self, spec: JobSpec) -> None:
        waiting = () if spec.debug_no_wait else spec.debug
        self._waiting = frozenset(map(str, waiting))
        self._debugged = Matching(lambda task, state: task.is_debugged or self._starts_debugger(task))
        self._since: float | None = None

    def suspends(self, deadline: str) -> bool:
        """Whether this deadline does not apply now."""
        return self._since is not None and deadline in _SUSPENDED

    def update(self, state: RunState, changed: Collection[TaskState], now: float) -> float:
        """Return the seconds for which limits were suspended if they apply again, else 0."""
        self._debugged.update(state, changed)
        if self._debugged and self._since is None:
            self._since = now
        elif not self._debugged and self._since is not None:
            began, self._since = self._since, None
            return now - began
        return 0.0

    def _starts_debugger(self, task: TaskState) -> bool:
        """Whether the task will wait for a debugger that it has not reported yet."""
        return task.is_live and task.name in self._waiting and task.progress.debugger is None

    def report(self, before: RunState, event: TaskProgressed) -> list[Action]:
        """Report a debugger that has come or gone."""
        text = self._notice(before, event)
        return [] if text is None else [Happen(Noticed(at=event.at, mono=event.mono, text=text))]

    def _notice(self, before: RunState, event: TaskProgressed) -> str | None:
        was, now = before.tasks[event.task].progress.debugger, event.progress.debugger
        if now is None or now == was:
            return None
        match now.state:
            case "waiting":
                return (
                    f"{event.task} waits for a debugger; in VS Code: {attach_configuration(event.task, now)}"
                )
            case "attached":
                return f"a debugger is attached to {event.task}; time limits are suspended"
            case "post_mortem":
                return f"{event.task} has failed and is in pdb; time limits are suspended"
            case "listening" if was is None:
                return f"{event.task} listens for a debugger; in VS Code: {attach_configuration(event.task, now)}"
            case _:
                limits = "are still suspended" if self._since is not None else "apply again"
                return f"the debugger has left {event.task}; time limits {limits}"


def attach_configuration(task: str, debugger: Debugger) -> str:
    """The entry of VS Code's launch.json that attaches to the task."""
    return json.dumps(
        {
            "name": f"orch {task}",
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": _ADDRESS, "port": debugger.port},
            "justMyCode": True,
        }
    )
