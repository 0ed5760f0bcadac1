"""The columns of the task table: how each cell is made, and which columns are dropped first (pure).

A column is one entry of TASK_COLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from orchestrator.client.view.amounts import duration, number, rate, size
from orchestrator.client.view.layout import BOLD, CYAN, DIM, GREEN, RED, YELLOW, Cell, task_colour
from orchestrator.client.view.messages import due_text
from orchestrator.client.view.progress_cells import done_text
from orchestrator.client.view.status_document import TaskStatus
from orchestrator.core.state.result import exit_text

# Seconds without a line after which the time is red.
_LONG_QUIET_S = 60.0
# Seconds without a line after which the time is also shown on a narrow terminal.
_QUIET_S = 10.0
_MAX_METRICS = 4
# Rank of the column from then on.
_RANK_OF_QUIET = 2
PHASE_COLOURS = {
    "queued": (YELLOW,),
    "pending": (DIM,),
    "starting": (CYAN,),
    "running": (GREEN,),
    "stopping": (YELLOW,),
    "succeeded": (GREEN,),
    "failed": (BOLD, RED),
    "stopped": (YELLOW,),
    "timed_out": (BOLD, RED),
    "lost": (BOLD, RED),
}


class Row(NamedTuple):
    """`quiet_s`: seconds since the task's last line, `trend`: of its loss, `is_behind`: other tasks are far ahead.
    They are known in the footer only."""

    task: TaskStatus
    quiet_s: float | None = None
    trend: str = ""
    is_behind: bool = False

    @property
    def is_alive(self) -> bool:
        return self.task.state in ("starting", "running", "stopping")


class TaskColumn(NamedTuple):
    """`footer` and `status` are the column's ranks in the two tables (see Column); None: not in it."""

    title: str
    cell: Callable[[Row], Cell]
    footer: int | None
    status: int | None
    right: bool = True
    may_be_cut: bool = False


def _task(row: Row) -> Cell:
    return Cell(row.task.task, (task_colour(row.task.task),))


def _state(row: Row) -> Cell:
    task = row.task
    if task.paused:
        return Cell(f"stopped ({task.stop_signal})", (BOLD, YELLOW))
    text = f"failed ({exit_text(task.exit_code, task.signal)})" if task.state == "failed" else task.state
    return Cell(text, PHASE_COLOURS.get(task.state, ()))


def _host(row: Row) -> Cell:
    task = row.task
    if task.host is None or task.host_state in (None, "joined"):
        return Cell(task.host or "")
    return Cell(f"{task.host} ({task.host_state})", (BOLD, RED if task.host_state == "lost" else YELLOW))


def _pid(row: Row) -> Cell:
    return Cell("" if row.task.pid is None else str(row.task.pid))


def _progress(row: Row) -> Cell:
    due = row.task.restart_in_s
    if row.is_behind and due is None:
        return Cell(f"{row.task.doing} (behind)", (BOLD, RED))
    return Cell(row.task.doing if due is None else f"restarts {due_text(due)}")


def _loss(row: Row) -> Cell:
    progress = row.task.progress
    if progress is not None and progress.bad_loss is not None:
        return Cell(progress.bad_loss.value, (BOLD, RED))
    return Cell(number(progress.loss) if progress else "")


def _steps_per_s(row: Row) -> Cell:
    return Cell(rate(row.task.progress.steps_per_s) if row.task.progress and row.is_alive else "")


def _cpu(row: Row) -> Cell:
    percent = row.task.cpu_percent
    return Cell(f"{percent:.0f}%" if percent is not None and row.is_alive else "")


def _gpu(row: Row) -> Cell:
    percent = row.task.gpu_percent
    return Cell(f"{percent:.0f}%" if percent is not None and row.is_alive else "")


def _gpu_memory(row: Row) -> Cell:
    return Cell(size(row.task.gpu_memory_bytes) if row.is_alive else "")


def _done(row: Row) -> Cell:
    progress = row.task.progress
    return Cell("" if progress is None else done_text(progress, is_alive=row.is_alive))


def _quiet(row: Row) -> Cell:
    if row.quiet_s is None or not row.is_alive:
        return Cell("")
    text = duration(row.quiet_s)
    return Cell(f"{text} !", (BOLD, RED)) if row.quiet_s >= _LONG_QUIET_S else Cell(text)


def _metric_column(name: str) -> TaskColumn:
    def cell(row: Row) -> Cell:
        return Cell(number(row.task.progress.metrics.get(name)) if row.task.progress else "")

    return TaskColumn(name.upper(), cell, footer=4, status=6)


def task_columns(rows: Sequence[Row]) -> list[TaskColumn]:
    """TASK_COLUMNS, with a column for each metric after the loss. Hosts are a column if there are several, and GPUs if
    their use is known."""
    reports = [row.task.progress for row in rows if row.task.progress is not None]
    names = list(dict.fromkeys(name for report in reports for name in report.metrics))[:_MAX_METRICS]
    after = 1 + next(at for at, column in enumerate(TASK_COLUMNS) if column.cell is _loss)
    columns = [*TASK_COLUMNS[:after], *map(_metric_column, names), *TASK_COLUMNS[after:]]
    if any(row.is_alive and row.quiet_s is not None and row.quiet_s >= _QUIET_S for row in rows):
        columns[-1] = columns[-1]._replace(footer=_RANK_OF_QUIET)
    if len({row.task.host for row in rows}) < 2:
        columns = [column for column in columns if column.cell is not _host]
    unused = {cell for cell in (_gpu, _gpu_memory) if not any(cell(row).text for row in rows)}
    return [column for column in columns if column.cell not in unused]


TASK_COLUMNS = (
    TaskColumn("TASK", _task, footer=0, status=0, right=False),
    TaskColumn("STATE", _state, footer=0, status=0, right=False),
    TaskColumn("HOST", _host, footer=3, status=2, right=False),
    TaskColumn("PID", lambda row: _pid(row) if row.is_alive else Cell(""), footer=11, status=None),
    TaskColumn("PID", _pid, footer=None, status=5),
    TaskColumn("UP", lambda row: Cell(duration(row.task.uptime_s)), footer=7, status=3),
    TaskColumn("PROGRESS", _progress, footer=1, status=1, right=False, may_be_cut=True),
    TaskColumn("DONE", _done, footer=3, status=8, right=False),
    TaskColumn("LOSS", _loss, footer=2, status=2),
    TaskColumn("TREND", lambda row: Cell(row.trend), footer=6, status=None, right=False),
    TaskColumn("STEPS/S", _steps_per_s, footer=8, status=7),
    TaskColumn("CPU", _cpu, footer=9, status=4),
    TaskColumn(
        "MEM", lambda row: Cell(size(row.task.memory_bytes) if row.is_alive else ""), footer=10, status=6
    ),
    TaskColumn("GPU", _gpu, footer=9, status=4),
    TaskColumn("GPU MEM", _gpu_memory, footer=10, status=6),
    TaskColumn("RESTARTS", lambda row: Cell(str(row.task.restarts or "")), footer=None, status=8),
    TaskColumn("ADDRESS", lambda row: Cell(row.task.address or ""), footer=None, status=9, right=False),
    TaskColumn("QUIET FOR", _quiet, footer=5, status=None),
)
