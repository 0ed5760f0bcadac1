"""The final report: how a run ended, as the last lines on the screen (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from orchestrator.client.view.amounts import duration, short_duration
from orchestrator.client.view.layout import (
    BOLD,
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Cell,
    fit,
    task_colour,
    wrapped,
)
from orchestrator.client.view.messages import history_text
from orchestrator.client.view.stacks import stack_lines
from orchestrator.core.diagnosis.shortages import storage_advice
from orchestrator.core.state.result import (
    DONE_WITHOUT,
    AttemptEnd,
    Cause,
    CauseKind,
    FaultReport,
    FirstFailure,
    RunResult,
    TaskEnd,
    exit_text,
    left_advice,
    left_text,
)
from orchestrator.core.text.clean import one_line, safe
from orchestrator.core.text.counted import counted
from orchestrator.core.text.startup_lines import startup_line

_OUTCOMES = {
    "succeeded": ("succeeded", (BOLD, GREEN)),
    "failed": ("failed", (BOLD, RED)),
    "stopped": ("stopped", (BOLD, YELLOW)),
    "timed_out": ("timed out", (BOLD, RED)),
    "lost": ("lost", (BOLD, RED)),
}
_LABEL_WIDTH = 15
# A run may be restarted a hundred times: only the last attempts are listed.
_MAX_ATTEMPTS = 8
# Longer sequences of tasks are shown as the first and the last.
_MAX_SEQUENCE = 4


class _Wrapped(NamedTuple):
    """A head and its text, which is wrapped where the terminal is narrow. Other lines of the report are cut."""

    head: Cell
    cells: tuple[Cell, ...]


def end_lines(result: RunResult, width: int | None, *, colour: bool) -> list[str]:
    """Return the report for a terminal of `width` cells (None: nothing is cut or wrapped). The cause comes last."""
    lines = []
    if result.stacks:
        lines.append(fit([Cell("what the tasks were doing:", (DIM,))], width, colour=colour))
        lines += stack_lines(result.stacks, width, colour=colour)
    for item in _report(result):
        if isinstance(item, _Wrapped):
            lines += wrapped(item.head, item.cells, width, colour=colour)
        else:
            lines.append(fit(item, width, colour=colour))
    return lines


def _report(result: RunResult) -> Iterator[list[Cell] | _Wrapped]:
    word, sgr = _OUTCOMES[result.outcome]
    first = result.first_failure
    if first is not None and first.lines:
        yield [Cell(f"last lines of {first.task}:", (DIM,))]
        for text in _without_startup_lines(first.lines):
            yield [Cell("  │ ", (task_colour(first.task),)), Cell(one_line(text))]
    after = "" if result.took_s is None else f" after {duration(result.took_s)}"
    attempts = f" in {result.attempts} attempts" if result.attempts > 1 else ""
    outcome = (Cell(f"{result.run_id} {word}", sgr), Cell(f"{after}{attempts}{_timing(result)}"))
    yield _Wrapped(Cell("orch: "), outcome)
    yield from _history(result.history)
    for fault in result.faults:
        yield _field("chaos", Cell(one_line(fault_text(fault))))
    if first is not None:
        yield from _other_tasks(result.tasks, first, result.cause)
        yield _field("log file", Cell(first.log))
        yield from _first_failure(first, result.cause)
    if result.bad_loss is not None and (result.cause is None or result.cause.kind is not CauseKind.NAN):
        yield _field("loss", Cell(f"{result.bad_loss.task}: {result.bad_loss}", (RED,)))
    if result.not_restarted is not None:
        yield _field("not restarted", Cell(one_line(result.not_restarted)))
    left = left_text(result.left) if result.left else None
    if left is not None and (result.cause is None or result.cause.text != left):
        yield _field("still running", Cell(one_line(left), (BOLD,)))
    if result.cause is not None:
        yield _field("cause", *_cause(result.cause, first, result.tasks))
    if result.not_distributed is not None:
        yield _field("warning", Cell(one_line(result.not_distributed), (YELLOW,)))
    advice = _advice(result)
    if advice:
        yield _field("to do", Cell(one_line(advice), (CYAN,)))


def fault_text(report: FaultReport) -> str:
    """`kill worker:1 at step 20: after 12s; detected in 3ms, all ended in 28ms, training again in 4.5s`"""
    # "any#7" does not say which task was chosen.
    is_named = report.task is None or report.task in report.fault
    planned = report.fault if is_named else f"{report.fault} ({report.task})"
    if report.at_s is None:
        return f"{planned}: not triggered"
    triggered = f"{planned}: after {short_duration(report.at_s)}"
    if report.detection_s is None:
        return f"{triggered}; no task ended because of it"
    parts = [f"detected in {short_duration(report.detection_s)}"]
    if report.teardown_s is not None:
        parts.append(f"all ended in {short_duration(report.teardown_s)}")
    if report.recovery_s is not None:
        parts.append(f"training again in {short_duration(report.recovery_s)}")
    return f"{triggered}; {', '.join(parts)}"


def _without_startup_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines, with `TensorFlow started (4 lines; the log file has them)` in place of each group of start-up lines,
    which do not help to find a failure."""
    for is_startup, some in groupby(lines, lambda line: startup_line(line.encode()) is not None):
        if is_startup:
            yield f"TensorFlow started ({counted(len(list(some)), 'line')}; the log file has them)"
        else:
            yield from some


def _timing(result: RunResult) -> str:
    parts = []
    if result.detection_s is not None:
        parts.append(f"detected in {short_duration(result.detection_s)}")
    if result.teardown_s is not None and not result.left:
        parts.append(f"all ended in {short_duration(result.teardown_s)}")
    return f" ({', '.join(parts)})" if parts else ""


def _history(history: tuple[AttemptEnd, ...]) -> Iterator[_Wrapped]:
    if len(history) > _MAX_ATTEMPTS:
        yield _field("attempts", Cell(f"{len(history) - _MAX_ATTEMPTS} before these", (DIM,)))
    for end in history[-_MAX_ATTEMPTS:]:
        yield _field("attempt", Cell(history_text(end)))


def _other_tasks(tasks: tuple[TaskEnd, ...], first: FirstFailure, cause: Cause | None) -> Iterator[_Wrapped]:
    """The other tasks, grouped by how they ended: `worker:0, worker:2: stopped by orch`."""
    reported = {first.task, *((cause.task, *cause.tasks) if cause else ())}
    others = sorted((end for end in tasks if end.task not in reported), key=_end_text)
    for text, group in groupby(others, key=_end_text):
        yield _field("other tasks", Cell(f"{_names(end.task for end in group)}: {text}"))


def _names(names: Iterable[str]) -> str:
    """`worker:0, worker:2`; for hundreds `worker:0 to worker:298`."""
    sequences: list[list[str]] = []
    for name in names:
        if sequences and _is_next(name, sequences[-1][-1]):
            sequences[-1].append(name)
        else:
            sequences.append([name])
    return ", ".join(
        f"{names[0]} to {names[-1]}" if len(names) > _MAX_SEQUENCE else ", ".join(names)
        for names in sequences
    )


def _is_next(name: str, before: str) -> bool:
    role, _, index = before.partition(":")
    return index.isdecimal() and name == f"{role}:{int(index) + 1}"


def _end_text(end: TaskEnd) -> str:
    return one_line(end.end) or f"{end.state}, {exit_text(end.exit_code, end.signal)}"


def _first_failure(first: FirstFailure, cause: Cause | None) -> Iterator[_Wrapped]:
    """The first failure, unless it is the cause, and its exception in any case."""
    if cause is None or cause.task != first.task:
        how = exit_text(first.exit_code, first.signal)
        yield _field("first failure", Cell(first.task, (task_colour(first.task),)), Cell(f": {how}"))
    if first.exception:
        yield _field("exception", Cell(safe(first.exception), (RED,)))
    if first.exception_file:
        yield _field("full traceback", Cell(first.exception_file))


def _cause(cause: Cause, first: FirstFailure | None, tasks: tuple[TaskEnd, ...]) -> Iterator[Cell]:
    text = one_line(cause.text)
    if cause.task is None or cause.tasks:
        yield Cell(text, (BOLD,))
        return
    yield Cell(cause.task, (BOLD, task_colour(cause.task)))
    yield Cell(f": {text}", (BOLD,))
    is_first = first is not None and first.task == cause.task
    if is_first and all(end.end != DONE_WITHOUT for end in tasks):
        yield Cell(" (the first to fail)")


def _advice(result: RunResult) -> str | None:
    if result.first_failure is not None and result.first_failure.advice:
        return result.first_failure.advice
    if result.left:
        return left_advice(result.left)
    cause = result.cause
    is_storage = cause is not None and cause.task is None and cause.kind is CauseKind.LIMIT
    return storage_advice(cause.text) if cause is not None and is_storage else None


def _field(label: str, *cells: Cell) -> _Wrapped:
    return _Wrapped(Cell(f"  {label:<{_LABEL_WIDTH}}", (DIM,)), cells)
