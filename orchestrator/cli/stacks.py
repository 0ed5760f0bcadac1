"""`orch stacks`: the stacks of a live run's tasks, or those recorded for an ended run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from orchestrator.cli.parameters import Screen, run_and_tasks_argument, takes_screen
from orchestrator.cli.selection import chosen_tasks, run_and_tasks, silent_host
from orchestrator.cli.words import colour_on, print_json, print_lines, say, width_of
from orchestrator.client import api
from orchestrator.client.view.stacks import stack_lines
from orchestrator.core.errors import ExitCode, NoSuchRun
from orchestrator.core.state.result import TaskStack
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.task_files import read_stacks

_STOPPED = "T"  # man 5 proc


@dataclass(frozen=True)
class _Found:
    """`is_now`: from a live run, not from its record. `silent`: tasks that did not answer. `message`: for the user."""

    stacks: dict[str, TaskStack]
    is_now: bool
    silent: tuple[str, ...] = ()
    message: str | None = None


@takes_screen
def stacks(
    screen: Screen,
    words: Annotated[list[str] | None, run_and_tasks_argument("stacks")] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Also C and C++ frames: by py-spy, which pauses the task.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="All threads with all frames, as recorded.")] = False,
) -> int:
    """Show what each task is doing now; for an ended run, what was recorded last."""
    named, task_words = run_and_tasks(words or ())
    run = named.view
    run.refresh()
    chosen = chosen_tasks(run, task_words, "TASK")
    can_answer = run.is_live and not run.state.phase.is_end
    found = (_asked(named, chosen, native) if can_answer else None) or _recorded(run, chosen)
    if screen.json:
        print_json(_document(run, found, full))
        return ExitCode.OK
    if found.message is not None:
        say(found.message)
    for task in found.silent:
        host = silent_host(run, task)
        say(f"{task} did not answer in time" + ("" if host is None else f": {host} is silent"))
    if full:
        print_lines(_full_lines(run, found.stacks))
    else:
        print_lines(stack_lines(found.stacks, width_of(), colour=colour_on(screen)))
    for task, stack in found.stacks.items():
        if found.is_now and stack.state == _STOPPED:
            say(f"{task} is stopped: `orch kill {run.record.name} {task} -s CONT` resumes it")
    return ExitCode.OK


def _asked(found: api.Run, chosen: frozenset[str] | None, native: bool) -> _Found | None:
    """Return the answers of the run's tasks, or None if the run has ended meanwhile."""
    run = found.view
    wanted = _named(run, chosen)
    # If the events do not hold an attempt (they may be lost), the supervisor knows what runs.
    asks = bool(wanted) or not run.state.attempt
    try:
        stacks = found.stacks(*wanted, native=native) if asks else {}
    except NoSuchRun:
        return None
    if not wanted and not stacks:
        return _Found({}, is_now=True, message=f"{run.record.id}: no task runs at the moment")
    run.refresh()
    ordered = {task: stacks[task] for task in wanted or stacks if task in stacks}
    return _Found(ordered, is_now=True, silent=tuple(task for task in wanted if task not in stacks))


def _named(run: RunView, chosen: frozenset[str] | None) -> tuple[str, ...]:
    """The tasks that the user named, else all that are known to be live; in plan order."""
    if chosen is not None:
        known = list(run.state.tasks) or sorted(chosen)
        return tuple(task for task in known if task in chosen)
    return tuple(
        task.name for task in run.state.tasks.values() if task.pid is not None and not task.phase.is_end
    )


def _recorded(run: RunView, chosen: frozenset[str] | None) -> _Found:
    """The stacks of an ended run, which are recorded when a time limit ends it."""
    run.refresh()
    result = run.result()
    stacks = dict(result.stacks) if result is not None and result.stacks else {}
    if not stacks and run.state.stacks is not None:
        stacks = run.state.stacks.stacks
    kept = {task: stack for task, stack in stacks.items() if chosen is None or task in chosen}
    message = f"{run.record.id} has ended, and no stacks of it were recorded"
    if kept:
        message = f"{run.record.id} has ended; these are its tasks when its time limit was reached"
    return _Found(kept, is_now=False, message=message)


def _document(run: RunView, found: _Found, full: bool) -> dict[str, object]:
    stacks = {}
    for task, stack in found.stacks.items():
        stacks[task] = stack.model_dump(mode="json") | ({"text": _text(run, task, stack)} if full else {})
    return {
        "schema_version": 1,
        "run": run.record.id,
        "live": found.is_now,
        "stacks": stacks,
        "silent": list(found.silent),
    }


def _text(run: RunView, task: str, stack: TaskStack) -> str | None:
    """Read the file of the run itself: the recorded path may lead anywhere by now."""
    return read_stacks(stack, run.paths.task_stacks(task))


def _full_lines(run: RunView, stacks: dict[str, TaskStack]) -> Iterator[str]:
    for task, stack in stacks.items():
        yield safe(f"=== {task}, by {stack.how}, state {stack.state or 'unknown'}")
        if stack.note:
            yield safe_lines(f"({stack.note})")
        text = _text(run, task, stack)
        if text is not None:
            yield safe_lines(text.strip("\n"))
        elif stack.file is not None:
            yield safe_lines(f"({stack.file} no longer exists)")
        yield ""
