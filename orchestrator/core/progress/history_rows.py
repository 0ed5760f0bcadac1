"""The rows of a run's history: when one is due, which of them stay when their file is thinned, and their columns.

A row is the state of a task at a time: its latest progress and its latest measurement. Times are seconds since the
start of the run, by the monotonic clock. All of this is pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import TaskName

# Shortest time between two rows of a task, seconds. It doubles each time the file is thinned.
_FIRST_INTERVAL_S = 1.0
# Rows a second of all tasks together. Making and thinning one takes about 20 microseconds.
_ROWS_PER_S = 256
# Names of metrics in a run. The first ones that are reported have a column.
MOST_METRICS = 64
# Bytes of a row. A longer one is written without its metrics.
LONGEST_ROW = 8 << 10
# Rows of a task that are never thinned, because a value appears in them for the first time.
_MOST_KEPT = 16
_ROW = re.compile(rb'\{"time":(\d{1,12}\.\d{1,3}),"task":"([^"\\]{1,80})",("keep":true,)?.*\}\n', re.DOTALL)

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Usage = Mapping[str, float]
History = dict[str, list[Any]]


class HistoryRow(BaseModel):
    """A row as it is read. Others may have written it, so every value is checked."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    time: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e12)]
    task: TaskName
    attempt: _Count = 0
    phase: str | None = None
    epoch: _Count | None = None
    step: _Count | None = None
    loss: _Number | None = None
    bad_loss: Literal["nan", "inf", "-inf"] | None = None
    steps_per_s: _Number | None = None
    examples_per_s: _Number | None = None
    cpu_percent: _Number | None = None
    memory_bytes: _Count | None = None
    gpu_percent: _Number | None = None
    gpu_memory_bytes: _Count | None = None
    metrics: dict[str, _Number | None] = Field(default_factory=dict)

    @classmethod
    def parse(cls, line: bytes) -> HistoryRow | None:
        """None if the line is not a complete row."""
        try:
            return cls.model_validate_json(line)
        except ValidationError:
            return None

    @classmethod
    def of(
        cls, time_s: float, task: str, attempt: int, progress: Progress | None, usage: Usage
    ) -> HistoryRow | None:
        """None if a value is not valid."""
        try:
            return cls.model_validate(_values(time_s, task, attempt, progress, usage))
        except ValidationError:
            return None


_COLUMNS = tuple(name for name in HistoryRow.model_fields if name != "metrics")
_OF_PROGRESS = ("phase", "epoch", "step", "loss", "steps_per_s", "examples_per_s")
_OF_GPUS = ("gpu_percent", "gpu_memory_bytes")
_OF_USAGE = ("cpu_percent", "memory_bytes", *_OF_GPUS)


class Line(NamedTuple):
    """A row as it is written."""

    task: str
    text: bytes


@dataclass(slots=True)
class _Written:
    """The last row of a task, the columns that its rows have had, and how many of them are kept for that."""

    progress: Progress | None = None
    usage: Usage | None = None
    columns: set[str] = field(default_factory=set)
    kept: int = 0


class HistoryRows:
    """Makes the rows of a live run. `time_s` is the time of the last one."""

    def __init__(self) -> None:
        self.interval_s = _FIRST_INTERVAL_S
        self.time_s = 0.0
        self._due_s = 0.0
        self._written: dict[str, _Written] = {}
        self._metrics: set[str] = set()

    def take(
        self, time_s: float, attempt: int, progress: Mapping[str, Progress], usage: Mapping[str, Usage]
    ) -> list[Line]:
        """Return a row for each task with news since its last one, if rows are due."""
        if max(0.0, time_s) < self._due_s:
            return []
        tasks = {**progress, **usage}
        self.interval_s = max(self.interval_s, len(tasks) / _ROWS_PER_S)
        self._due_s = time_s + self.interval_s
        return [
            self.take_last(time_s, attempt, task, progress.get(task), usage.get(task))
            for task in tasks
            if self._has_news(task, progress.get(task), usage.get(task))
        ]

    def take_last(
        self, time_s: float, attempt: int, task: str, progress: Progress | None, usage: Usage | None
    ) -> Line:
        """Return a row of this task, due or not."""
        self.time_s = max(0.0, time_s)
        written = self._written.setdefault(task, _Written())
        written.progress, written.usage = progress, usage
        values = _values(self.time_s, task, attempt, progress, usage or {})
        values["metrics"] = {
            name: value for name, value in values.get("metrics", {}).items() if self._has_column(name)
        }
        columns = {*values, *values["metrics"]} - written.columns
        if columns and written.kept < _MOST_KEPT:
            written.kept += 1
            # Before the other values, where thinned() finds it.
            values = {"time": values.pop("time"), "task": values.pop("task"), "keep": True, **values}
        written.columns |= columns
        text = _text(values)
        return Line(task, text if len(text) <= LONGEST_ROW else _text({**values, "metrics": {}}))

    def _has_news(self, task: str, progress: Progress | None, usage: Usage | None) -> bool:
        written = self._written.get(task)
        if written is None:
            return True
        has_progressed = progress is not None and progress != written.progress
        return has_progressed or (usage is not None and usage != written.usage)

    def _has_column(self, metric: str) -> bool:
        if len(self._metrics) < MOST_METRICS:
            self._metrics.add(metric)
        return metric in self._metrics


def task_and_time(line: bytes) -> tuple[bytes, float] | None:
    """Return the task and the time of a row that orch has written, without reading its other values."""
    row = _ROW.fullmatch(line)
    return None if row is None else (row[2], float(row[1]))


def thinned(lines: Iterable[bytes], interval_s: float) -> Iterator[Line]:
    """Return the rows of each task that are at least so far apart, and its first, last and kept ones.

    The order within a task stays. Other lines are left out."""
    # The rounded time of a row may be a millisecond early.
    interval_s -= 0.002
    before: dict[bytes, float] = {}
    skipped: dict[bytes, bytes] = {}
    for line in lines:
        row = _ROW.fullmatch(line)
        if row is None:
            continue
        time_s, task = float(row[1]), row[2]
        if row[3] is None and time_s - before.get(task, -math.inf) < interval_s:
            skipped[task] = line
            continue
        before[task] = time_s
        skipped.pop(task, None)
        yield Line(task.decode(errors="replace"), line)
    for task, line in skipped.items():
        yield Line(task.decode(errors="replace"), line)


def to_columns(rows: Iterable[HistoryRow]) -> History:
    """Return {column: values}, all of one length and in the order of time; a value that is not known is None.
    Columns of GPUs are left out where no task is known to use one.

    Each metric has a column of its name, or `metrics.NAME` if another column has that name."""
    ordered = sorted(rows, key=lambda row: row.time)
    columns: History = {name: [getattr(row, name) for row in ordered] for name in _COLUMNS}
    for name in _OF_GPUS:
        if all(value is None for value in columns[name]):
            del columns[name]
    metrics = list(dict.fromkeys(name for row in ordered for name in row.metrics))[:MOST_METRICS]
    for name in metrics:
        column = f"metrics.{name}" if name in columns else name
        columns[column] = [row.metrics.get(name) for row in ordered]
    return columns


def _values(
    time_s: float, task: str, attempt: int, progress: Progress | None, usage: Usage
) -> dict[str, Any]:
    """Return the known values of a row; NaN and infinity are not known."""
    values: dict[str, Any] = {"time": round(time_s, 3), "task": task, "attempt": attempt}
    if progress is not None:
        values |= {name: getattr(progress, name) for name in _OF_PROGRESS}
        values["bad_loss"] = None if progress.bad_loss is None else progress.bad_loss.value
        values["metrics"] = {name: _finite(value) for name, value in progress.metrics.items()}
    values |= {name: usage.get(name) for name in _OF_USAGE}
    return {name: value for name, value in values.items() if _finite(value) is not None}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(values: Mapping[str, Any]) -> bytes:
    said = {name: value for name, value in values.items() if value != {}}
    return json.dumps(said, separators=(",", ":"), allow_nan=False).encode() + b"\n"
