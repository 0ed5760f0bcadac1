"""The series that curves are drawn from: the columns of each task, thinned to a number of points, or as they grow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.client.page.pieces import Members, whole
from orchestrator.core.progress.history_rows import MOST_METRICS, HistoryRow
from orchestrator.core.state.position import BESIDE_TRAINING
from orchestrator.core.text.clean import safe
from orchestrator.store.runs.history_file import HistoryTail
from orchestrator.store.runs.paths import RunPaths

_WHOLE = ("attempt", "epoch", "memory_bytes", "gpu_memory_bytes")
_REAL = ("loss", "steps_per_s", "examples_per_s", "cpu_percent", "gpu_percent")
# Digits of a number that is drawn.
_DIGITS = ".6g"
Series = dict[str, Any]
# The steps of an epoch, by task and attempt.
Steps = Mapping[str, Mapping[int, int]]


def task_series(tasks: Iterable[tuple[str, Sequence[HistoryRow]]], steps: Steps) -> Members:
    """Return {tasks: {task: columns}, metrics: [name]} in pieces. With `steps`, steps are counted over all epochs. A
    column without a value is left out."""
    metrics: dict[str, None] = {}

    def columns() -> Iterator[tuple[str, dict[str, Any]]]:
        for task, rows in tasks:
            for name in dict.fromkeys(name for row in rows for name in row.metrics):
                if len(metrics) < MOST_METRICS:
                    metrics[name] = None
            yield task, _columns(sorted(rows, key=lambda row: row.time), steps.get(task, {}), metrics)

    def members() -> Iterator[tuple[str, Any]]:
        yield "tasks", Members(columns())
        yield "metrics", [safe(name) for name in metrics]

    return Members(members())


class SeriesTail:
    """The rows that a live run appends, as series. `steps` are as in task_series()."""

    def __init__(self, paths: RunPaths, steps: Steps | None = None) -> None:
        self._rows = HistoryTail(paths)
        self._steps = {} if steps is None else steps

    def skip(self) -> None:
        """Leave out the rows up to now."""
        self._rows.skip()

    def new_rows(self) -> Series:
        """Return the rows since the last call."""
        of_task: dict[str, list[HistoryRow]] = {}
        for row in self._rows.read():
            of_task.setdefault(row.task, []).append(row)
        return dict(whole(task_series(of_task.items(), self._steps)))


def _columns(rows: Sequence[HistoryRow], steps: Mapping[int, int], metrics: Iterable[str]) -> dict[str, Any]:
    columns: dict[str, Any] = {"time": [round(row.time, 3) for row in rows]}
    columns["step"] = [_step(row, steps) for row in rows]
    columns |= {name: [getattr(row, name) for row in rows] for name in _WHOLE}
    columns |= {name: [_short(getattr(row, name)) for row in rows] for name in _REAL}
    of_metrics = {safe(name): [_short(row.metrics.get(name)) for row in rows] for name in metrics}
    columns["metrics"] = {name: values for name, values in of_metrics.items() if _has_value(values)}
    return {
        name: values
        for name, values in columns.items()
        if (values if isinstance(values, dict) else _has_value(values))
    }


def _step(row: HistoryRow, steps: Mapping[int, int]) -> int | None:
    """The training step over all epochs; None if it is not known.

    Attempts with fewer workers may have more and smaller steps. All steps are converted to steps of the first attempt,
    so that the curve continues where the earlier attempt has ended.
    """
    if row.step is None or row.phase in BESIDE_TRAINING:
        return None
    first = steps[min(steps)] if steps else 0
    its_step = round(row.step * first / steps.get(row.attempt, first)) if first else row.step
    if row.epoch is None or row.epoch <= 1:
        return its_step
    return (row.epoch - 1) * first + its_step if first else None


def _short(value: float | None) -> float | None:
    return None if value is None else float(format(value, _DIGITS))


def _has_value(values: Sequence[object]) -> bool:
    return any(value is not None for value in values)
