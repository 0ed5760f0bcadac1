"""The tables: the tasks of a run in the live footer and in `orch status`, the runs in `orch ls` (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.client.view.amounts import duration, number, size
from orchestrator.client.view.layout import (
    BOLD,
    DIM,
    RED,
    YELLOW,
    Cell,
    Column,
    fit,
    lay_out,
)
from orchestrator.client.view.messages import attempt_text, due_text, queued_text, resumed_text
from orchestrator.client.view.status_document import Status, queued_status, seconds_until, task_status
from orchestrator.client.view.task_columns import PHASE_COLOURS, Row, TaskColumn, task_columns
from orchestrator.core.progress.activity import behind_tasks, join_names, late_tasks
from orchestrator.core.state.result import AttemptEnd
from orchestrator.core.state.state import RunPhase, RunState, TaskPhase, TaskState
from orchestrator.core.text.counted import counted

# Lines of the screen that the footer leaves to the logs, at least.
_LOG_LINES = 3
# On a terminal with fewer lines the footer is the run's line alone.
_MIN_HEIGHT_FOR_ROWS = 6
_SHOWN_FIRST = (TaskPhase.FAILED, TaskPhase.LOST)
_RUN_COLUMNS = (
    Column("RUN"),
    Column("STATE"),
    Column("EXIT", rank=1, right=True),
    Column("TOOK", rank=2, right=True),
    Column("LOSS", rank=3, right=True),
    Column("AGE", rank=5, right=True),
    Column("TASKS", rank=7, right=True),
    Column("ATTEMPTS", rank=8, right=True),
    Column("SIZE", rank=6, right=True),
    Column("NAME", rank=10),
    Column("DIRECTORY", rank=9),
    Column("COMMAND", rank=4, may_be_cut=True),
)
# A long command leaves three quarters of the line to the other columns.
_COMMAND_PART = 4


@dataclass(frozen=True)
class Moment:
    """A run at one moment. `now`, `started` and `last_lines` are monotonic seconds; `trends` are the tasks' losses as
    sparklines; `sample` is RunView.sample(); `most_attempts` is how many it may have, None if failures are not
    restarted."""

    name: str
    state: RunState
    now: float
    started: float
    sample: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    last_lines: Mapping[str, float] = field(default_factory=dict)
    trends: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""
    most_attempts: int | None = None


@dataclass(frozen=True)
class RunRow:
    """A row of `orch ls`. `age_s` counts from its start, `took_s` to its end or now; `size_bytes` is on disk. `loss` is
    the last one; `bad_loss` replaces it if that was not finite: nan, inf."""

    id: str
    name: str
    state: str
    tasks: int
    age_s: float
    took_s: float | None
    size_bytes: int
    directory: str
    attempts: int = 1
    command: str = ""
    exit_code: int | None = None
    loss: float | None = None
    bad_loss: str | None = None


def footer_lines(moment: Moment, width: int, height: int, *, colour: bool) -> list[str]:
    """A line for the run and a row a task: at most `height` - 3 lines (at least one), each narrower than `width`, so
    that none wraps."""
    width = max(1, width - 1)
    lines = [fit(_footer_head(moment), width, colour=colour)]
    tasks = list(moment.state.tasks.values())
    room = height - _LOG_LINES - 2  # the run's line and the titles
    if not tasks or height < _MIN_HEIGHT_FOR_ROWS or room < 1:
        return lines
    shown = tasks if len(tasks) <= room else _most_important(moment.state, room - 1)
    behind = behind_tasks(moment.state)
    rows = [_footer_row(task, moment, is_behind=task.name in behind) for task in shown]
    lines += _task_table(rows, lambda column: column.footer, width, colour=colour)
    if len(shown) < len(tasks):
        lines.append(fit([Cell(_hidden_text(tasks, shown), (DIM,))], width, colour=colour))
    return lines


def status_lines(status: Status, width: int | None, *, colour: bool) -> list[str]:
    """A line for the run and a row a task, each at most `width` cells wide (None: unlimited)."""
    run = status.run
    head = _head(run.id, run.state, "", run.uptime_s, run.attempt, run.most_attempts, run.restart_in_s)
    head += _resumed(run.attempt, run.history)
    if run.exit_code is not None:
        head.append(Cell(f"  exit code {run.exit_code}"))
    lines = [fit(head, width, colour=colour), fit([Cell(run.dir, (DIM,))], width, colour=colour)]
    if run.queued is not None:
        lines.append(fit([Cell(queued_text(run.queued), (YELLOW,))], width, colour=colour))
    if run.tensorboard is not None:
        lines.append(fit([Cell(f"TensorBoard: {run.tensorboard}")], width, colour=colour))
    if run.debugged:
        text = f"{join_names(run.debugged)}: in a debugger, so time limits are suspended"
        lines.append(fit([Cell(text, (YELLOW,))], width, colour=colour))
    if status.tasks:
        rows = [Row(task) for task in status.tasks]
        lines += _task_table(rows, lambda column: column.status, width, colour=colour)
    return lines


def run_lines(runs: Sequence[RunRow], width: int | None, *, colour: bool) -> list[str]:
    """A row a run, then their number, their size on disk and the age of the oldest; nothing without runs."""
    if not runs:
        return []
    rows = [_run_row(run, None if width is None else width // _COMMAND_PART) for run in runs]
    oldest = duration(max(run.age_s for run in runs))
    used = size(sum(run.size_bytes for run in runs))
    total = f"{counted(len(runs), 'run')}, {used}, the oldest from {oldest} ago"
    return [
        *lay_out(_RUN_COLUMNS, rows, width, colour=colour),
        fit([Cell(total, (DIM,))], width, colour=colour),
    ]


def _run_row(run: RunRow, command_width: int | None) -> list[Cell]:
    loss = Cell(number(run.loss)) if run.bad_loss is None else Cell(run.bad_loss, (BOLD, RED))
    return [
        Cell(run.id),
        Cell(run.state.replace("_", " "), PHASE_COLOURS.get(run.state, ())),
        Cell("" if run.exit_code is None else str(run.exit_code)),
        Cell(duration(run.took_s)),
        loss,
        Cell(duration(run.age_s)),
        Cell(str(run.tasks)),
        Cell(str(run.attempts) if run.attempts > 1 else ""),
        Cell(size(run.size_bytes)),
        Cell(run.name),
        Cell(run.directory, (DIM,)),
        Cell(fit([Cell(run.command)], command_width, colour=False)),
    ]


def _task_table(
    rows: Sequence[Row], rank: Callable[[TaskColumn], int | None], width: int | None, *, colour: bool
) -> list[str]:
    shown = [(column, found) for column in task_columns(rows) if (found := rank(column)) is not None]
    columns = [Column(column.title, found, column.right, column.may_be_cut) for column, found in shown]
    cells = [[column.cell(row) for column, _ in shown] for row in rows]
    return lay_out(columns, cells, width, colour=colour)


def _footer_row(task: TaskState, moment: Moment, *, is_behind: bool) -> Row:
    last_line = moment.last_lines.get(task.name)
    quiet_s = None if last_line is None else moment.now - last_line
    status = task_status(task, moment.state, moment.sample, moment.now)
    return Row(status, quiet_s, moment.trends.get(task.name, ""), is_behind)


def _footer_head(moment: Moment) -> list[Cell]:
    state = moment.state
    uptime_s = (moment.now if state.ended_mono is None else state.ended_mono) - moment.started
    restart_in_s = seconds_until(state.restart_due_mono, moment.now)
    detail = ""
    if state.phase is RunPhase.STARTING and state.tasks:
        ready = sum(1 for task in state.tasks.values() if task.phase is TaskPhase.RUNNING)
        detail = f" ({ready} of {len(state.tasks)} ready)"
    if (queued := queued_status(state)) is not None:
        detail = f" ({queued_text(queued)})"
    most = moment.most_attempts
    head = _head(moment.name, state.phase, detail, uptime_s, state.attempt, most, restart_in_s)
    if any(task.is_debugged for task in state.tasks.values()):
        head.append(Cell("  time limits suspended", (YELLOW,)))
    if moment.hint:
        head.append(Cell(f"  {moment.hint}", (DIM,)))
    return head + _resumed(state.attempt, state.history)


def _head(
    name: str,
    phase: str,
    detail: str,
    uptime_s: float,
    attempt: int,
    most: int | None,
    restart_in_s: float | None,
) -> list[Cell]:
    """Name, state, uptime and attempt of a run; between two attempts the countdown to the next one."""
    is_between = phase == RunPhase.STARTING and restart_in_s is not None
    text = phase.replace("_", " ") + detail
    if is_between:
        text = f"{attempt_text(attempt + 1, most)} {due_text(restart_in_s or 0.0)}"
    state = Cell(text, PHASE_COLOURS.get(phase, ()))
    head = [Cell(name, (BOLD,)), Cell("  "), state, Cell(f"  {duration(uptime_s)}")]
    if attempt > 1 and not is_between:
        head.append(Cell(f"  {attempt_text(attempt, most)}"))
    return head


def _resumed(attempt: int, history: Sequence[AttemptEnd]) -> list[Cell]:
    """Where this attempt resumed, if that is known."""
    if not history or history[-1].attempt != attempt - 1:
        return []
    text = resumed_text(history[-1].resumed_at, history[-1].steps_lost, history[-1].exact)
    return [Cell(f"  {text}", (DIM,))] if text else []


def _most_important(state: RunState, room: int) -> list[TaskState]:
    """`room` tasks in plan order: failed ones, then those that others wait for, then the rest."""
    late = {task.name for task in late_tasks(state)}

    def rank(task: TaskState) -> int:
        return 0 if task.phase in _SHOWN_FIRST else 1 if task.name in late else 2

    names = {task.name for task in sorted(state.tasks.values(), key=rank)[: max(0, room)]}
    return [task for task in state.tasks.values() if task.name in names]


def _hidden_text(tasks: Sequence[TaskState], shown: Sequence[TaskState]) -> str:
    names = {task.name for task in shown}
    hidden = [task for task in tasks if task.name not in names]
    phases = sorted({task.phase for task in hidden}, key=list(TaskPhase).index)
    counts = ", ".join(f"{sum(t.phase is phase for t in hidden)} {phase}" for phase in phases)
    return f"... {len(hidden)} more ({counts})"
