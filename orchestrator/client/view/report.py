"""The final report: how a run ended, as the last lines on the screen (pure)."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple, assert_never

from orchestrator.client.view.amounts import duration, number, short_duration
from orchestrator.client.view.layout import (
    BOLD,
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Cell,
    broken,
    fit,
    painted,
    task_colour,
    wrapped,
)
from orchestrator.client.view.messages import history_text, sizes_text
from orchestrator.client.view.stacks import stack_lines
from orchestrator.client.view.workflow import annotation
from orchestrator.core.diagnosis.same_failure import describe_exception
from orchestrator.core.diagnosis.shortages import storage_advice
from orchestrator.core.state.result import (
    AttemptEnd,
    Cause,
    CauseKind,
    FaultReport,
    FirstFailure,
    RunResult,
    TaskEnd,
    Training,
    exit_text,
    left_advice,
    left_text,
)
from orchestrator.core.text.clean import one_line, safe
from orchestrator.core.text.counted import counted
from orchestrator.core.text.startup_lines import startup_line, without_keras_faults

_OUTCOMES = {
    "succeeded": ("succeeded", (BOLD, GREEN)),
    "failed": ("failed", (BOLD, RED)),
    "stopped": ("stopped", (BOLD, YELLOW)),
    "timed_out": ("timed out", (BOLD, RED)),
    "lost": ("lost", (BOLD, RED)),
}
_LABEL_WIDTH = 15
_QUOTED = "  │ "
# A run may be restarted a hundred times: only the last attempts are listed.
_MAX_ATTEMPTS = 8
# A task that is killed has not printed why.
_MOST_LINES_OF_KILLED = 5
# Longer sequences of tasks are shown as the first and the last.
_MAX_SEQUENCE = 4


class _Wrapped(NamedTuple):
    """Text after a head, wrapped where the terminal is narrow. The last line of the report has no limit of lines."""

    head: Cell
    cells: tuple[Cell, ...]
    is_limited: bool = True


class _Quoted(NamedTuple):
    """A line of a task's log."""

    task: str
    text: str


def end_lines(
    result: RunResult,
    width: int | None,
    *,
    colour: bool,
    verbose: bool = False,
    checkpoints: str | None = None,
) -> list[str]:
    """Return the report for a terminal of `width` cells (None: nothing is wrapped). The cause comes last.

    `verbose` adds how long the detection and the teardown took. `checkpoints` is the directory in which the run has
    checkpoints, None if it has none.
    """
    lines = []
    if result.stacks:
        lines.append(fit([Cell("what the tasks were doing:", (DIM,))], width, colour=colour))
        lines += stack_lines(result.stacks, width, colour=colour)
    for item in _report(result, verbose=verbose, checkpoints=checkpoints):
        match item:
            case _Wrapped(head, cells, is_limited):
                lines += wrapped(head, cells, width, colour=colour, is_limited=is_limited)
            case _Quoted(task, text):
                text = safe(text)
                bar = painted(_QUOTED, task_colour(task), colour=colour)
                lines += [bar + text] if width is None else broken(bar, text, width, _QUOTED.lstrip())
            case _:
                assert_never(item)
    return lines


def _report(result: RunResult, *, verbose: bool, checkpoints: str | None) -> Iterator[_Wrapped | _Quoted]:
    first = result.first_failure
    is_of_host = result.cause is not None and result.cause.kind is CauseKind.HOST
    if first is not None and first.lines and not is_of_host:
        yield _Wrapped(Cell(""), (Cell(f"last lines of {first.task}:", (DIM,)),))
        lines = first.lines[-_MOST_LINES_OF_KILLED:] if first.signal == signal.SIGKILL else first.lines
        for text in _without_startup_lines(lines):
            yield _Quoted(first.task, one_line(text))
    yield _headline(result, verbose=verbose)
    yield from _history(result.earlier_attempts)
    if sizes := sizes_text(result):
        yield _field("workers", sizes)
    for fault in result.faults:
        yield _field("chaos", one_line(fault_text(fault)))
    if first is not None or is_of_host:
        yield from _other_tasks(result.tasks, first, result.cause)
    if first is not None:
        if host := _host_of(first.task, result):
            yield _field("host", host)
        yield _field("log file", first.log)
        yield from _first_failure(first, result.cause)
    is_told = result.succeeded or (result.cause is not None and result.cause.kind is CauseKind.NAN)
    if result.bad_loss is not None and not is_told:
        yield _field("loss", f"{result.bad_loss.task}: {result.bad_loss}", RED)
    if result.not_restarted is not None:
        yield _field("not restarted", one_line(result.not_restarted))
    left = left_text(result.left) if result.left else None
    if left is not None and (result.cause is None or result.cause.text != left):
        yield _field("still running", one_line(left), BOLD)
    if result.succeeded and checkpoints is not None:
        yield _field("checkpoints", one_line(checkpoints))
    if result.not_distributed is not None:
        yield _field("warning", one_line(result.not_distributed), YELLOW)
    advice = advice_of(result)
    if advice:
        yield _field("to do", one_line(advice), CYAN)
    if result.cause is not None:
        yield _Wrapped(Cell("orch: "), tuple(_cause(result.cause, first)), is_limited=False)
    elif result.succeeded and result.bad_loss is not None:
        yield _Wrapped(
            Cell("orch: "), (Cell(f"the loss is {result.bad_loss} ({result.bad_loss.task})", (RED,)),)
        )


def _headline(result: RunResult, *, verbose: bool) -> _Wrapped:
    word, sgr = _OUTCOMES[result.outcome]
    return _Wrapped(
        Cell("orch: "), (Cell(f"{result.run_id} {word}", sgr), Cell(_after_outcome(result, verbose=verbose)))
    )


def headline(result: RunResult) -> str:
    """`digits-1 succeeded after 21s in 2 attempts: 10 epochs, loss 0.0525, accuracy 0.9819`"""
    return f"{result.run_id} {_OUTCOMES[result.outcome][0]}{_after_outcome(result)}"


def _after_outcome(result: RunResult, *, verbose: bool = False) -> str:
    after = "" if result.took_s is None else f" after {duration(result.took_s)}"
    attempts = f" in {result.attempts} attempts" if result.attempts > 1 else ""
    # Each restart of the run restarts each task.
    alone = sum(max(0, end.restarts - (result.attempts - 1)) for end in result.tasks)
    restarts = f", {counted(alone, 'task restart')}" if alone else ""
    trained = f": {_training_text(result.training)}" if result.succeeded and result.training else ""
    timing = _timing(result) if verbose else ""
    return one_line(f"{after}{attempts}{restarts}{timing}{trained}")


def _training_text(training: Training) -> str:
    parts = []
    if training.epoch is not None:
        is_done = training.epochs in (None, training.epoch)
        parts.append(
            counted(training.epoch, "epoch") if is_done else f"epoch {training.epoch}/{training.epochs}"
        )
    elif training.step is not None:
        parts.append(f"step {training.step:,}")
    values = {"loss": training.loss, **training.metrics}
    parts += [f"{name} {number(value)}" for name, value in values.items() if value is not None]
    return ", ".join(parts)


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
    """Yield the lines, with `TensorFlow started (4 lines; the log file has them)` in place of the start-up lines.

    The list of Keras's faults is left out.
    """
    kept = list(lines)
    startup = [line for line in kept if startup_line(line.encode("utf-8", "replace")) is not None]
    for line in kept:
        if line not in startup:
            yield without_keras_faults(line.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
        elif line is startup[0]:
            yield f"TensorFlow started ({counted(len(startup), 'line')}; the log file has them)"


def _timing(result: RunResult) -> str:
    parts = []
    if result.detection_s is not None:
        parts.append(f"detected in {short_duration(result.detection_s)}")
    if result.teardown_s is not None and not result.left:
        parts.append(f"all ended in {short_duration(result.teardown_s)}")
    return f" ({', '.join(parts)})" if parts else ""


def _history(history: tuple[AttemptEnd, ...]) -> Iterator[_Wrapped]:
    if len(history) > _MAX_ATTEMPTS:
        yield _field("attempts", f"{len(history) - _MAX_ATTEMPTS} before these", DIM)
    for end in history[-_MAX_ATTEMPTS:]:
        yield _field("attempt", history_text(end))


def _host_of(task: str, result: RunResult) -> str | None:
    """The host of a task, if the run had several."""
    return (
        next((end.host for end in result.tasks if end.task == task), None) if len(result.hosts) > 1 else None
    )


def _other_tasks(
    tasks: tuple[TaskEnd, ...], first: FirstFailure | None, cause: Cause | None
) -> Iterator[_Wrapped]:
    """The other tasks, grouped by how they ended: `worker:0, worker:2: stopped by orch`."""
    reported = {first and first.task, *((cause.task, *cause.tasks) if cause else ())}
    others = sorted((end for end in tasks if end.task not in reported), key=_end_text)
    for text, group in groupby(others, key=_end_text):
        yield _field("other tasks", f"{_names(end.task for end in group)}: {text}")


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
    """The first failure and its exception, unless the last line tells them."""
    if cause is None or cause.task != first.task:
        how = exit_text(first.exit_code, first.signal)
        yield _labelled("first failure", Cell(first.task, (task_colour(first.task),)), Cell(f": {how}"))
    if first.exception and not _is_exception(cause, first):
        yield _field("exception", safe(first.exception), RED)
    if first.exception_file:
        yield _field("full traceback", first.exception_file)


def _is_exception(cause: Cause | None, first: FirstFailure | None) -> bool:
    """Whether the cause is the exception of the task that failed first."""
    return (
        cause is not None
        and cause.kind is CauseKind.EXITED
        and first is not None
        and first.task == cause.task
        and first.exception is not None
    )


def _cause(cause: Cause, first: FirstFailure | None) -> Iterator[Cell]:
    """`worker:1 failed: ValueError: bad shape (train.py:41)`"""
    text = one_line(cause.text)
    if cause.task is None or cause.tasks:
        yield Cell(text, (BOLD,))
        return
    yield Cell(cause.task, (BOLD, task_colour(cause.task)))
    if cause.kind is not CauseKind.EXITED:
        yield Cell(f": {text}", (BOLD,))
        return
    yield Cell(" failed", (BOLD, RED))
    if first is not None and _is_exception(cause, first):
        text = safe(describe_exception(first.exception or "", first.place))
    yield Cell(f": {text}", (BOLD,))


def cause_text(result: RunResult) -> str:
    """Return the last line of the report: `worker:1 failed: ValueError: bad shape (train.py:41)`; empty without a
    cause."""
    cause = result.cause
    return "" if cause is None else "".join(cell.text for cell in _cause(cause, result.first_failure))


def error_annotation(result: RunResult, environ: Mapping[str, str]) -> bytes | None:
    """Return the line that shows the cause in GitHub Actions; None if the run succeeded or was stopped by the user."""
    if result.outcome in ("succeeded", "stopped"):
        return None
    cause, first = result.cause, result.first_failure
    word = _OUTCOMES[result.outcome][0]
    is_of_task = cause is not None and cause.task is not None and not cause.tasks
    title = f"{cause.task if cause is not None and is_of_task else result.run_id} {word}"
    text = cause_text(result) or title
    place = first.place if first is not None and _is_exception(cause, first) else None
    return annotation(title, "\n".join(filter(None, (text, advice_of(result)))), place, environ)


def advice_of(result: RunResult) -> str | None:
    """Return what the user can do about the end of the run, if it is known."""
    if result.first_failure is not None and result.first_failure.advice:
        return result.first_failure.advice
    if result.left:
        return left_advice(result.left)
    cause = result.cause
    is_storage = cause is not None and cause.task is None and cause.kind is CauseKind.LIMIT
    return storage_advice(cause.text) if cause is not None and is_storage else None


def _field(label: str, text: str, *sgr: str) -> _Wrapped:
    return _labelled(label, Cell(text, sgr))


def _labelled(label: str, *cells: Cell) -> _Wrapped:
    return _Wrapped(Cell(f"  {label:<{_LABEL_WIDTH}}", (DIM,)), cells)
