"""How a run ended, for people: the last thing on the screen (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from orchestrator.result import Cause, FirstFailure, RunResult, TaskEnd, exit_text
from orchestrator.runs.log_text import one_line
from orchestrator.view.amounts import duration, short_duration
from orchestrator.view.columns import Cell, fit
from orchestrator.view.palette import BOLD, CYAN, DIM, GREEN, RED, YELLOW, task_colour
from orchestrator.view.safe_text import safe

Line = list[Cell]
_OUTCOMES = {
    "succeeded": ("succeeded", (BOLD, GREEN)),
    "failed": ("failed", (BOLD, RED)),
    "stopped": ("stopped", (BOLD, YELLOW)),
    "timed_out": ("timed out", (BOLD, RED)),
    "lost": ("lost", (BOLD, RED)),
}
_LABEL_WIDTH = 10


def end_lines(result: RunResult, width: int | None, *, colour: bool) -> list[str]:
    """The report on a run's end, each line at most `width` cells wide (None: uncut); the cause comes last."""
    lines = list(_report(result))
    return [fit(line, width, colour=colour) for line in lines]


def _report(result: RunResult) -> Iterator[Line]:
    word, sgr = _OUTCOMES[result.outcome]
    first = result.first_failure
    if first is not None and first.lines:
        yield [Cell(f"last lines of {first.task}:", (DIM,))]
        for text in first.lines:
            yield [Cell("  │ ", (task_colour(first.task),)), Cell(one_line(text))]
    after = "" if result.took_s is None else f" after {duration(result.took_s)}"
    yield [Cell("orch: "), Cell(f"{result.run_id} {word}", sgr), Cell(f"{after}{_timing(result)}")]
    if first is not None:
        yield from _peers(result.tasks, first, result.cause)
        yield _labelled("log", Cell(first.log))
        yield from _first(first, result.cause)
    if result.cause is not None:
        yield _labelled("cause", *_blame(result.cause, first))
    if first is not None and first.advice:
        yield _labelled("to do", Cell(one_line(first.advice), (CYAN,)))


def _timing(result: RunResult) -> str:
    parts = []
    if result.detection_s is not None:
        parts.append(f"noticed in {short_duration(result.detection_s)}")
    if result.teardown_s is not None:
        parts.append(f"all gone in {short_duration(result.teardown_s)}")
    return f" ({', '.join(parts)})" if parts else ""


def _peers(tasks: tuple[TaskEnd, ...], first: FirstFailure, cause: Cause | None) -> Iterator[Line]:
    """The other tasks by the way they ended: `worker:0, worker:2: stopped by orch`."""
    told = {first.task, cause.task if cause else None}
    others = sorted((end for end in tasks if end.task not in told), key=_end_text)
    for text, group in groupby(others, key=_end_text):
        yield _labelled("peers", Cell(f"{', '.join(end.task for end in group)}: {text}"))


def _end_text(end: TaskEnd) -> str:
    return one_line(end.end) or f"{end.state}, {exit_text(end.exit_code, end.signal)}"


def _first(first: FirstFailure, cause: Cause | None) -> Iterator[Line]:
    """The first bad exit, unless the cause says just that; its exception in any case."""
    if cause is None or cause.task != first.task:
        how = exit_text(first.exit_code, first.signal)
        yield _labelled(
            "first", Cell(first.task, (task_colour(first.task),)), Cell(f" was the first to end badly: {how}")
        )
    if first.exception:
        yield _labelled("exception", Cell(safe(first.exception), (RED,)))
    if first.exception_file:
        yield _labelled("in full", Cell(first.exception_file))


def _blame(cause: Cause, first: FirstFailure | None) -> Line:
    if cause.task is None:
        return [Cell(one_line(cause.text), (BOLD,))]
    line = [Cell(cause.task, (BOLD, task_colour(cause.task))), Cell(f": {one_line(cause.text)}", (BOLD,))]
    if first is not None and first.task == cause.task:
        line.append(Cell(" (the first to fail)"))
    return line


def _labelled(label: str, *cells: Cell) -> Line:
    return [Cell(f"  {label:<{_LABEL_WIDTH}}", (DIM,)), *cells]
