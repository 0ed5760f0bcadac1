"""The tables of `orch status` and `orch ls` (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.result import exit_text
from orchestrator.status_document import Status, TaskStatus
from orchestrator.view.amounts import duration, number, rate, size
from orchestrator.view.columns import Cell, Column, fit, lay_out
from orchestrator.view.footer import PHASE_COLOURS
from orchestrator.view.palette import BOLD, DIM, task_colour

_STATUS_COLUMNS = (
    Column("TASK"),
    Column("STATE"),
    Column("PID", rank=5, right=True),
    Column("UP", rank=3, right=True),
    Column("PROGRESS", rank=1),
    Column("LOSS", rank=2, right=True),
    Column("STEPS/S", rank=7, right=True),
    Column("CPU", rank=4, right=True),
    Column("MEM", rank=6, right=True),
    Column("RESTARTS", rank=8, right=True),
    Column("ADDRESS", rank=9),
)
_LS_COLUMNS = (
    Column("RUN"),
    Column("NAME", rank=4),
    Column("STATE"),
    Column("TASKS", rank=3, right=True),
    Column("AGE", rank=1, right=True),
    Column("TOOK", rank=5, right=True),
    Column("SIZE", rank=2, right=True),
    Column("DIRECTORY", rank=6),
)


@dataclass(frozen=True)
class RunRow:
    """One run in `orch ls`. `age_s` is since its start, `took_s` to its end, or now; `size_bytes` on disk."""

    id: str
    name: str
    state: str
    tasks: int
    age_s: float
    took_s: float | None
    size_bytes: int
    directory: str


def status_lines(status: Status, width: int | None, *, colour: bool) -> list[str]:
    """A line for the run and a row a task, each at most `width` cells wide (None: as wide as need be)."""
    run = status.run
    head = [
        Cell(run.id, (BOLD,)),
        Cell("  "),
        Cell(run.state.replace("_", " "), PHASE_COLOURS.get(run.state, ())),
        Cell(f"  {duration(run.uptime_s)}"),
    ]
    if run.attempt > 1:
        head.append(Cell(f"  attempt {run.attempt}"))
    if run.exit_code is not None:
        head.append(Cell(f"  exit code {run.exit_code}"))
    lines = [fit(head, width, colour=colour), fit([Cell(run.dir, (DIM,))], width, colour=colour)]
    if status.tasks:
        rows = [_status_row(task) for task in status.tasks]
        lines += lay_out(_STATUS_COLUMNS, rows, width, colour=colour)
    return lines


def run_lines(runs: Sequence[RunRow], width: int | None, *, colour: bool) -> list[str]:
    """A row a run and, below, what they take on disk together; none without runs."""
    if not runs:
        return []
    rows = [
        [
            Cell(run.id),
            Cell(run.name),
            Cell(run.state.replace("_", " "), PHASE_COLOURS.get(run.state, ())),
            Cell(str(run.tasks)),
            Cell(duration(run.age_s)),
            Cell(duration(run.took_s)),
            Cell(size(run.size_bytes)),
            Cell(run.directory, (DIM,)),
        ]
        for run in runs
    ]
    many = f"{len(runs)} runs" if len(runs) != 1 else "1 run"
    oldest = max(run.age_s for run in runs)
    total = f"{many}, {size(sum(run.size_bytes for run in runs))}, the oldest from {duration(oldest)} ago"
    return [
        *lay_out(_LS_COLUMNS, rows, width, colour=colour),
        fit([Cell(total, (DIM,))], width, colour=colour),
    ]


def _status_row(task: TaskStatus) -> list[Cell]:
    progress = task.progress
    alive = task.state in ("starting", "running", "stopping")
    return [
        Cell(task.task, (task_colour(task.task),)),
        Cell(_state_text(task), PHASE_COLOURS.get(task.state, ())),
        Cell(str(task.pid) if task.pid is not None else ""),
        Cell(duration(task.uptime_s)),
        Cell(task.doing),
        Cell(number(progress.loss) if progress else ""),
        Cell(rate(progress.steps_per_s) if progress and alive else ""),
        Cell(f"{task.cpu_percent:.0f}%" if task.cpu_percent is not None and alive else ""),
        Cell(size(task.memory_bytes) if alive else ""),
        Cell(str(task.restarts) if task.restarts else ""),
        Cell(task.address or ""),
    ]


def _state_text(task: TaskStatus) -> str:
    if task.state == "failed":
        return f"failed ({exit_text(task.exit_code, task.signal)})"
    return task.state
