"""The rows of a run's history: when one is written, which stay when they are thinned, and their columns."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.progress import history_rows
from orchestrator.core.progress.history_rows import HistoryRow, HistoryRows, thinned, to_columns
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import BadLoss

TASKS = st.sampled_from(["worker:0", "worker:1", "ps:0"])
STEPS = st.lists(st.tuples(TASKS, st.floats(0.001, 1e4), st.booleans()), max_size=60)


def line(time_s: float, task: str, keep: bool = False) -> bytes:
    row = {"time": time_s, "task": task, **({"keep": True} if keep else {}), "attempt": 1}
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def lines_of(steps: list[tuple[str, float, bool]]) -> list[bytes]:
    """Lines in the order of time; each step is the task, the time since the line before, and whether it is kept."""
    now, made = 0.0, []
    for task, later_s, keep in steps:
        now = round(now + later_s, 3)
        made.append(line(now, task, keep))
    return made


def times(lines: list[bytes], task: str, kept_only: bool = False) -> list[float]:
    rows = [json.loads(each) for each in lines]
    return [row["time"] for row in rows if row["task"] == task and (not kept_only or row.get("keep"))]


@given(STEPS, st.floats(0.1, 1e6) | st.just(1e9))
def test_thinned_rows_are_apart_and_first_last_and_kept_ones_stay(
    steps: list[tuple[str, float, bool]], interval_s: float
) -> None:
    before = lines_of(steps)
    after = [row.text for row in thinned(before, interval_s)]
    assert set(after) <= set(before)
    for task in ("worker:0", "worker:1", "ps:0"):
        old, new, kept = times(before, task), times(after, task), times(before, task, kept_only=True)
        assert new == sorted(new) and new[:1] == old[:1] and new[-1:] == old[-1:]
        assert set(kept) <= set(new)
        # Only a kept row, or the last one, is nearer to the row before it.
        near = [later for earlier, later in pairwise(new) if later - earlier < interval_s - 0.003]
        assert set(near) <= {*kept, *new[-1:]}
        assert interval_s < 1e9 or len(new) <= len(kept) + 2


def rows_of(progress: list[Progress], usage: dict[str, float] | None = None) -> list[dict[str, object]]:
    """The rows of worker:0 that are written if it makes this progress, a second apart."""
    rows, written = HistoryRows(), []
    for second, each in enumerate(progress):
        written += rows.take(float(second), 1, {"worker:0": each}, {"worker:0": usage} if usage else {})
    return [json.loads(row.text) for row in written]


def test_row_is_written_for_news_and_the_first_value_of_a_column_is_kept() -> None:
    training = partial(Progress, phase="training")
    progress = [
        Progress(phase="waiting"),
        training(step=1),
        training(step=2, loss=0.5),
        training(step=3, loss=0.4),
        training(step=3, loss=0.4),
        training(step=3, loss=0.4, metrics={"val_loss": 0.6}),
    ]
    rows = [(row["time"], row.get("keep", False)) for row in rows_of(progress)]
    assert rows == [(0.0, True), (1.0, True), (2.0, True), (3.0, False), (5.0, True)]


def test_values_that_are_not_finite_are_left_out() -> None:
    metrics = {"a": math.nan, "b": 0.5}
    bad = Progress(step=7, bad_loss=BadLoss(value="nan"), metrics=metrics, steps_per_s=math.inf)
    (row,) = rows_of([bad], {"cpu_percent": math.inf, "memory_bytes": 5})
    place = {"time": 0.0, "task": "worker:0", "keep": True, "attempt": 1}
    assert row == place | {"step": 7, "bad_loss": "nan", "memory_bytes": 5, "metrics": {"a": None, "b": 0.5}}


def test_interval_grows_with_the_number_of_tasks() -> None:
    rows = HistoryRows()
    progress = {f"worker:{index}": Progress(step=1) for index in range(4000)}
    assert len(rows.take(0.0, 1, progress, {})) == 4000
    newer = {task: Progress(step=2) for task in progress}
    assert rows.take(15.0, 1, newer, {}) == []
    assert len(rows.take(16.0, 1, newer, {})) == 4000


def test_metrics_of_a_run_and_bytes_of_a_row_are_bounded() -> None:
    most = history_rows.MOST_METRICS
    many = [Progress(step=step, metrics={f"metric {step}": 1.0}) for step in range(3 * most)]
    found = rows_of(many)
    assert sum("metrics" in row for row in found) == most
    assert sum("keep" in row for row in found) <= 20
    wide = Progress(step=1, metrics={"\U0001f600" * 48 + str(index): 1.0 for index in range(32)})
    (row,) = HistoryRows().take(0.0, 1, {"worker:0": wide}, {})
    assert len(row.text) <= history_rows.LONGEST_ROW and json.loads(row.text)["step"] == 1


def test_invalid_row_is_ignored() -> None:
    valid = b'{"time":1.0,"task":"worker:0"'
    others = (b"", b"[]", b'{"time":1.0}', b'{"time":NaN,"task":"x"}', b'{"time":1.0,"task":"a b"}', b"\xff")
    ends = (b',"loss":1e999}', b',"step":' + b"9" * 400 + b"}", b',"metrics":' + b"[" * 7000, b',"st')
    for text in (*others, *(valid + end for end in ends)):
        assert HistoryRow.parse(text) is None, text[:99]
        assert not [*thinned([text], 2.0)]
    assert HistoryRow.parse(valid + b"}") is not None


def test_columns_have_one_length_and_the_order_of_time() -> None:
    rows = [
        HistoryRow(time=3.0, task="worker:0", step=2, metrics={"accuracy": 0.5, "step": 9.0}),
        HistoryRow(time=1.0, task="worker:1", loss=0.25),
    ]
    columns = to_columns(rows)
    assert columns["time"] == [1.0, 3.0] and columns["task"] == ["worker:1", "worker:0"]
    assert (columns["step"], columns["loss"]) == ([None, 2], [0.25, None])
    assert (columns["accuracy"], columns["metrics.step"]) == ([None, 0.5], [None, 9.0])
    assert {len(values) for values in columns.values()} == {2}
    assert to_columns([])["loss"] == []
