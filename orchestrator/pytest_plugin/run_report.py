"""A run as text for the report of a failed test: its last lines, its state or cause, and its directory."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.client.api import Run
from orchestrator.client.view.report import end_lines
from orchestrator.store.files import directory_if_used
from orchestrator.store.logs.query import LineFilter, LogQuery, query_lines

_LINES = 50
# In an assertion's message, where the last lines of a failed task are in the final report.
_FEW_LINES = 8
# Characters; a line may have megabytes.
_LINE_LENGTH = 400


def report_of(run: Run) -> str:
    """The last lines of all tasks, then the states of the tasks of a live run or the final report of an ended one."""
    return "\n".join([*_last_lines(run, _LINES), *_state(run), f"run directory: {run.dir}"])


def brief_report_of(run: Run) -> str:
    """The same for an assertion's message: of a failed run only the last lines of the failed task."""
    has_failed = not run.view.is_live and run.wait(check=False).first_failure is not None
    lines = [] if has_failed else _last_lines(run, _FEW_LINES)
    return "\n".join([*lines, *_state(run), f"run directory: {run.dir}"])


def _last_lines(run: Run, count: int) -> Iterator[str]:
    query = LogQuery(lines=LineFilter(), tail=count)
    logs = run.view.paths.logs
    if not logs.is_dir():
        yield "its logs have been removed"
        return
    lines = [line for some in query_lines(logs, query, lambda: not run.view.is_live) for line in some]
    yield f"last lines of all tasks ({len(lines)}):" if lines else "its tasks have written nothing"
    for line in lines:
        cut = " ..." if len(line.text) > _LINE_LENGTH else ""
        yield f"  {line.task} | {line.text[:_LINE_LENGTH]}{cut}"


def _state(run: Run) -> Iterator[str]:
    status = run.status()
    if run.view.is_live:
        yield f"{run.id} is {status.run.state}:"
        for task in status.tasks:
            pid = f", pid {task.pid}" if task.pid else ""
            yield f"  {task.task}: {task.state}{pid}{f', {task.doing}' if task.doing else ''}"
        return
    result = run.wait(check=False)
    checkpoints = directory_if_used(result.checkpoint_dir)
    yield from end_lines(result, None, colour=False, checkpoints=checkpoints)
