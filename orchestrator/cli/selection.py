"""Finds the run and the tasks that the user's words name. Like every verb, it first ends what lost runs left behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.words import say
from orchestrator.client import api
from orchestrator.core.errors import NoSuchRun, UsageError
from orchestrator.core.job.tf_config import ROLES, TaskRef, nearest_task
from orchestrator.core.state.result import left_advice, left_text
from orchestrator.core.text.counted import counted
from orchestrator.core.text.nearest import nearest
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.reader import RunView

# `orch status` must start quickly: it stops nothing.
if TYPE_CHECKING:
    from orchestrator.client.stop import Ended

# Longest list of stopped tasks.
_MOST_NAMED = 16


def find_run(wanted: str | None) -> api.Run:
    """Return the run with this id, beginning of an id, or name; by default the newest of this directory, live first."""
    return api.find(wanted, there=sweep())


def run_and_tasks(words: Sequence[str]) -> tuple[api.Run, Sequence[str]]:
    """Return the run that the first word names, and the other words. Without such a run, all words name tasks."""
    runs = sweep()
    if not words:
        return api.find(there=runs), ()
    try:
        return api.find(words[0], there=runs), words[1:]
    except NoSuchRun:
        if not _is_task(words[0]):
            _refuse_misspelt_task(words[0], runs)
            raise
    return api.find(there=runs), words


def chosen_tasks(
    run: RunView, words: Sequence[str], source: str, *, of_all_attempts: bool = False
) -> frozenset[str] | None:
    """Return the names of the tasks that the words (worker:1, chief, 0) mean, or None, all tasks, without words.

    `of_all_attempts`: a task may also be one that only earlier attempts had. `run` must be refreshed. Raises
    UsageError, which begins with `source`, for a word that names no task of the run.
    """
    roles = {task.plan.role for task in run.state.tasks.values()}
    chosen = set()
    for word in words:
        try:
            name = str(TaskRef.parse(word.strip()).among(roles))
        except ValueError as error:
            raise UsageError(f"{source}: {error}") from error
        # Before a run has planned its tasks, any task may still be among them.
        is_known = name in run.state.tasks or (of_all_attempts and run.paths.task_log(name).exists())
        if run.state.tasks and not is_known:
            known = list(run.state.tasks)
            listed = ", ".join(known) if len(known) <= 8 else f"{known[0]} to {known[-1]}"
            raise UsageError(f"{source}: {run.record.id} has no task {name}; it has {listed}")
        chosen.add(name)
    return frozenset(chosen) or None


def sweep(runs: catalog.Survey | None = None) -> catalog.Survey:
    """End the processes that lost runs left behind and say so. Return the runs after that; `runs` are those before."""
    runs = runs or catalog.survey()
    swept = lost_runs.sweep_lost_runs(runs)
    say_skipped(runs.skipped)
    say_swept(swept)
    # Ending processes takes time in which other runs may have changed.
    return catalog.survey() if swept else runs


def say_skipped(skipped: Iterable[str]) -> None:
    """`skipped`: for each entry of the state directory that cannot be used, its name and the reason."""
    for text in skipped:
        say(text)


def say_swept(swept: Iterable[tuple[str, int]]) -> None:
    """`swept`: (run id, number of ended processes)."""
    for run_id, count in swept:
        say(f"ended {counted(count, 'process', 'processes')} that the lost run {run_id} left behind")


def ended_text(ended: Ended) -> str:
    """`digits-1: stopped worker:0, worker:1; no process is left`"""
    if ended.left:
        return f"{ended.run_id}: {left_text(ended.left)}. {left_advice(ended.left)}"
    if ended.tasks:
        return f"{ended.run_id}: stopped {_tasks_text(ended.tasks)}; {ended.rest}"
    if ended.swept:
        count = counted(ended.swept, "process", "processes")
        return f"{ended.run_id}: the run was lost; ended {count} that it had left; {ended.rest}"
    if ended.was_queued:
        return f"{ended.run_id}: stopped while it was queued"
    if ended.was_live:
        return f"{ended.run_id}: stopped; its tasks are not known; {ended.rest}"
    return f"{ended.run_id}: was not running; {ended.rest}"


def _tasks_text(tasks: Sequence[str]) -> str:
    """The names of the tasks, or how many there are."""
    return ", ".join(tasks) if len(tasks) <= _MOST_NAMED else f"{len(tasks):,} tasks"


def silent_host(run: RunView, task: str) -> str | None:
    """The host of a task, if it is silent."""
    state = run.state.tasks.get(task)
    return state.plan.host if state is not None and state.plan.host in run.state.silent_hosts else None


def _refuse_misspelt_task(word: str, runs: catalog.Survey) -> None:
    """Raise NoSuchRun with the nearest task if the word is more like a task than like the name of a run."""
    near = nearest_task(word)
    names = [run.record.name for run in runs.runs]
    if near is not None and nearest(word.partition(":")[0], [*names, *ROLES]) in ROLES:
        raise NoSuchRun(f'no run and no task {word!r}; did you mean "{near}"?')


def _is_task(word: str) -> bool:
    try:
        TaskRef.parse(word)
    except ValueError:
        return False
    return True
