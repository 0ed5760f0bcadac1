"""Which tasks of a run the user's words mean."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import UsageError
from orchestrator.runs.reader import RunView
from orchestrator.tf_config import TaskRef


def chosen_tasks(run: RunView, words: Sequence[str], source: str) -> frozenset[str] | None:
    """The names of the tasks that the words (worker:1, chief, 0) mean; None, all of them, without words.

    `run` must be refreshed. UsageError, beginning with `source`, for a word that is no task or none of this run's.
    """
    roles = {task.plan.role for task in run.state.tasks.values()}
    chosen = set()
    for word in words:
        try:
            name = str(TaskRef.parse(word.strip()).among(roles))
        except ValueError as error:
            raise UsageError(f"{source}: {error}") from error
        # A run that has not planned its tasks yet cannot say that one is not there.
        if run.state.tasks and name not in run.state.tasks:
            known = list(run.state.tasks)
            listed = ", ".join(known) if len(known) <= 8 else f"{known[0]} to {known[-1]}"
            raise UsageError(f"{source}: {run.record.id} has no task {name}; it has {listed}")
        chosen.add(name)
    return frozenset(chosen) or None
