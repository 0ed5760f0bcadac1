"""The series of curves: thinned, with steps over all epochs, and read while their file is replaced."""

from __future__ import annotations

from pages import WrittenRun

from orchestrator.client.page.series import SeriesTail, task_series
from orchestrator.core.progress.history_rows import HistoryRow
from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import HistoryFile


def rows(count: int, **values: object) -> list[HistoryRow]:
    return [
        HistoryRow.model_validate({"time": float(n), "task": "worker:0", "step": n, "attempt": 1, **values})
        for n in range(count)
    ]


def test_first_and_last_points_are_exact() -> None:
    series = task_series(rows(1001), {}, most_points=11)["tasks"]["worker:0"]
    assert series["time"] == [float(n) for n in range(0, 1001, 100)]


def test_points_are_shared_by_the_tasks() -> None:
    made = [row.model_copy(update={"task": f"worker:{n}"}) for n in range(10) for row in rows(50)]
    series = task_series(made, {}, most_points=100)["tasks"]
    assert [len(columns["time"]) for columns in series.values()] == [10] * 10


def test_columns_without_a_value_are_left_out_and_metrics_are_apart() -> None:
    series = task_series(rows(2, metrics={"accuracy": 0.123456789}), {})
    assert series["metrics"] == ["accuracy"]
    assert series["tasks"]["worker:0"] == {
        "time": [0.0, 1.0],
        "step": [0, 1],
        "attempt": [1, 1],
        "metrics": {"accuracy": [0.123457, 0.123457]},
    }


def test_steps_are_counted_over_all_epochs() -> None:
    made = rows(1, epoch=1, step=7) + rows(1, epoch=3, step=7) + rows(1, epoch=3, step=2, phase="evaluating")
    assert task_series(made, {"worker:0": 10})["tasks"]["worker:0"]["step"] == [7, 27, None]
    assert task_series(made, {})["tasks"]["worker:0"]["step"] == [7, None, None]


def test_tail_returns_each_row_once_also_when_the_file_is_thinned() -> None:
    with WrittenRun(1) as run:
        file = HistoryFile(run.store.directory, run.store.paths.samples.name)
        tail = SeriesTail(run.store.paths)
        assert tail.new_rows() == {"metrics": [], "tasks": {}}
        inodes, times = set(), []
        for second in range(9000):
            file.add(float(second), 1, {"worker:0": Progress(step=second)}, {})
            if second % 250 == 0:
                times += tail.new_rows()["tasks"].get("worker:0", {"time": []})["time"]
                inodes.add(run.store.paths.samples.stat().st_ino)
        file.close()
        times += tail.new_rows()["tasks"].get("worker:0", {"time": []})["time"]
    assert len(inodes) > 1
    assert times == sorted(set(times)) and times[0] == 0.0 and times[-1] >= 8990
    assert len(times) > 5000


def test_tail_notices_a_replaced_file_that_is_as_long_as_the_one_before() -> None:
    with WrittenRun(1) as run:
        file = HistoryFile(run.store.directory, run.store.paths.samples.name)
        tail = SeriesTail(run.store.paths)
        sizes = []
        for until in (3500, 7500):
            for second in range(max(0, until - 4000), until):
                file.add(float(second), 1, {"worker:0": Progress(step=second)}, {})
            sizes.append(run.store.paths.samples.stat().st_size)
            last = tail.new_rows()["tasks"]["worker:0"]["time"]
        file.close()
    assert sizes[0] < sizes[1]
    assert 3500 <= last[0] <= 3502 and last[-1] >= 7498 and len(last) >= 1900
