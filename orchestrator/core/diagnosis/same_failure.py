"""Finds the tasks that failed with the same exception, which is one cause (pure)."""

from __future__ import annotations

import re

from orchestrator.core.diagnosis.stack_text import short_file
from orchestrator.core.state.events import Symptom, SymptomKind
from orchestrator.core.state.state import RunState, TaskPhase, TaskState
from orchestrator.core.text.counted import counted

# Exceptions that Python raises for a signal to end.
_SIGNAL_EXCEPTIONS = ("KeyboardInterrupt", "SystemExit")
# Words that differ between processes: `at 0x7f3a12>`, `shard 3`, `filepath=out/worker_1`.
_OWN_WORD = re.compile(r"(?<!\S)\S*[0-9/\\=]\S*")
# Python adds the place to the message of a SyntaxError itself.
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


def own_exception(symptom: Symptom | None) -> str | None:
    """Return the exception of a task that failed by itself, without those of a Ctrl-C or sys.exit()."""
    if symptom is None or symptom.kind is not SymptomKind.OWN or symptom.exception is None:
        return None
    return None if symptom.exception.startswith(_SIGNAL_EXCEPTIONS) else symptom.exception


def alike(state: RunState, task: TaskState) -> list[TaskState]:
    """Return the tasks that raised the same exception at the same place, `task` among them, in plan order.

    Numbers and paths in the message may differ.

    A task that orch stopped meanwhile counts, too: a stop does not raise the exception of another task.
    """
    key = _key(task.symptom)
    ended = (TaskPhase.FAILED, TaskPhase.STOPPED)
    if key is None:
        return [task]
    return [other for other in state.tasks.values() if other.phase in ended and _key(other.symptom) == key]


def describe_alike(state: RunState, tasks: list[TaskState]) -> str:
    """Return `both workers failed: ModuleNotFoundError: No module named 'sklearnx' (train.py:2)`."""
    symptom = tasks[0].symptom
    exception = describe_exception(symptom.exception or "", symptom.place) if symptom else ""
    return f"{_count(state, tasks)} failed: {exception}"


def describe_exception(exception: str, place: str | None) -> str:
    """Return `ValueError: boom (train.py:41)`; `place` is `FILE:LINE`."""
    if place is None or exception.startswith(_SYNTAX_ERRORS):
        return exception
    file, _, line = place.rpartition(":")
    return f"{exception} ({short_file(file)}:{line})"


def _key(symptom: Symptom | None) -> tuple[str, str | None] | None:
    exception = own_exception(symptom)
    if symptom is None or exception is None:
        return None
    return _OWN_WORD.sub("0", exception), symptom.place


def _count(state: RunState, tasks: list[TaskState]) -> str:
    """Return `both workers`, `all 4 workers` or `3 of 4 tasks`."""
    roles = {task.plan.role for task in tasks}
    noun = "worker" if roles == {"worker"} else "task"
    among = [task for task in state.tasks.values() if noun == "task" or task.plan.role in roles]
    if len(tasks) < len(among):
        return f"{len(tasks)} of {counted(len(among), noun)}"
    return f"both {noun}s" if len(tasks) == 2 else f"all {counted(len(tasks), noun)}"
