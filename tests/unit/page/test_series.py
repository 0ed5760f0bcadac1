"""The series of curves: thinned, with steps over all epochs, and read while their file is replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from pages import STARTED_AT, WrittenRun

from orchestrator.client.page.pieces import whole
from orchestrator.client.page.series import SeriesTail, task_series
from orchestrator.core.progress.history_rows import HistoryRow
from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import HistoryFile


def rows(count: int, **values: object) -> list[HistoryRow]:
    return [
        HistoryRow.model_validate({"time": float(n), "task": "worker:0", "step": n, "attempt": 1, **values})
        for n in range(count)
    ]


def series_of(*rows: HistoryRow, steps: Mapping[int, int] = MappingProxyType({})) -> dict[str, Any]:
    """The series of worker:0. `steps`: the steps of an epoch, by attempt."""
    return dict(whole(task_series([("worker:0", rows)], {"worker:0": steps})))


def test_points_of_a_document_are_thinned_and_the_first_and_last_are_exact() -> None:
    """The rows of one task after the other are read: all those of a long run of many tasks need hundreds of MB."""
    with WrittenRun(10) as run:
        usage = {"worker:9": {"cpu_percent": 2.0}}
        run.store.write_sample(at=0, mono=STARTED_AT + 150, tasks=usage, attempt=1)
        file = HistoryFile(run.store.directory, run.store.paths.samples.name)
        for second in range(101):
            file.add(float(second), 1, {task: Progress(step=second) for task in reversed(run.tasks)}, {})
        file.end_task(101.5, 1, "worker:3", Progress(step=107), {})
        file.close()
        run.start()
        tasks = dict(run.page().view.history_of_tasks(110))
    assert list(tasks) == run.tasks
    assert [row.time for row in tasks["worker:0"]] == [float(second) for second in range(0, 101, 10)]
    assert (len(tasks["worker:3"]), tasks["worker:3"][-1].step) == (11, 107)
    assert (tasks["worker:9"][-1].time, tasks["worker:9"][-1].cpu_percent) == (150.0, 2.0)


def test_columns_without_a_value_are_left_out_and_metrics_are_apart() -> None:
    series = series_of(*rows(2, metrics={"accuracy": 0.123456789}))
    assert series["metrics"] == ["accuracy"]
    assert series["tasks"]["worker:0"] == {
        "time": [0.0, 1.0],
        "step": [0, 1],
        "attempt": [1, 1],
        "metrics": {"accuracy": [0.123457, 0.123457]},
    }


def test_steps_are_counted_over_all_epochs() -> None:
    made = rows(1, epoch=1, step=7) + rows(1, epoch=3, step=7) + rows(1, epoch=3, step=2, phase="evaluating")
    assert series_of(*made, steps={1: 10})["tasks"]["worker:0"]["step"] == [7, 27, None]
    assert series_of(*made)["tasks"]["worker:0"]["step"] == [7, None, None]


def test_curve_continues_in_an_attempt_with_other_steps() -> None:
    """Without --global-batch, three workers have fewer steps in an epoch than two."""
    places = [(1, 1, 20), (1, 2, 20), (2, 3, 15), (2, 4, 30), (3, 5, 10), (4, 6, 20)]
    made = [
        row.model_copy(update={"time": float(n)})
        for n, (attempt, epoch, step) in enumerate(places)
        for row in rows(1, attempt=attempt, epoch=epoch, step=step)
    ]
    steps = series_of(*made, steps={1: 20, 2: 30, 3: 20})["tasks"]["worker:0"]["step"]
    assert steps == [20, 40, 50, 80, 90, 120]


class Written:
    """A live run of one task whose steps are written, and the tail that reads them."""

    def __init__(self, run: WrittenRun) -> None:
        self.path = run.store.paths.samples
        self.file = HistoryFile(run.store.directory, self.path.name)
        self.tail = SeriesTail(run.store.paths)

    def step(self, *seconds: int) -> None:
        for second in range(*seconds):
            self.file.add(float(second), 1, {"worker:0": Progress(step=second)}, {})

    def new_times(self) -> list[float]:
        times: list[float] = self.tail.new_rows()["tasks"].get("worker:0", {"time": []})["time"]
        return times


@pytest.fixture
def written() -> Iterator[Written]:
    with WrittenRun(1) as run:
        made = Written(run)
        yield made
        made.file.close()


def test_tail_returns_each_row_once_also_when_the_file_is_thinned(written: Written) -> None:
    assert written.tail.new_rows() == {"metrics": [], "tasks": {}}
    inodes, times = set(), []
    for second in range(0, 9000, 250):
        written.step(second, second + 250)
        times += written.new_times()
        inodes.add(written.path.stat().st_ino)
    assert len(inodes) > 1
    assert times == sorted(set(times)) and times[0] == 0.0 and times[-1] >= 8990
    assert len(times) > 5000


def test_tail_skips_the_past_and_notices_a_replaced_file_that_is_as_long_as_before(written: Written) -> None:
    written.step(3500)
    size = written.path.stat().st_size
    written.tail.skip()
    assert written.new_times() == []
    written.step(3500, 7500)
    last = written.new_times()
    assert size < written.path.stat().st_size
    assert 3500 <= last[0] <= 3502 and last[-1] >= 7498 and len(last) >= 1900
