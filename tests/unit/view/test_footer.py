"""The footer and the tables: their cells, and which are dropped first on a narrow or low terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from making import attempt_planned, event, exited, joined, planned_task, started, state_of
from moments import footer, moment, progressed, running, status
from rich.cells import cell_len

from orchestrator.client.view.amounts import duration, number, rate, short_duration, size
from orchestrator.client.view.layout import Cell, Column, fit, lay_out, without_colour
from orchestrator.client.view.progress_cells import LossTrend, done_text, sparkline
from orchestrator.client.view.status_document import host_statuses, task_statuses
from orchestrator.client.view.tables import Moment, RunRow, run_lines
from orchestrator.core.progress.activity import behind_tasks
from orchestrator.core.state.events import Event, HostLost, HostSilent, Progress
from orchestrator.core.state.result import BadLoss
from orchestrator.core.state.state import RunState

TRAINING = Progress(phase="train", epoch=2, epochs=5, step=1234, steps=4000, loss=0.123456, steps_per_s=12.34,
                    metrics={"accuracy": 0.75, "val_loss": 0.2})  # fmt: skip
TRAINS = progressed(0, TRAINING)


def full_moment() -> Moment:
    sample = {"worker:0": {"cpu_percent": 98.7, "memory_bytes": 512_000_000.0}, "worker:1": {}}
    last, trends = {"worker:0": 72.0}, {"worker:0": "█▄▁"}
    return moment(running(2, TRAINS), hint="^C stops", sample=sample, last_lines=last, trends=trends)


def test_row_shows_all_known_values() -> None:
    shown = [" ".join(line.split()) for line in footer(full_moment(), 180)]
    assert shown == [
        "digits running 1m05s ^C stops",
        "TASK STATE PID UP PROGRESS DONE LOSS ACCURACY VAL_LOSS TREND STEPS/S CPU MEM QUIET FOR",
        "worker:0 running 1000 1m05s epoch 2/5 step 1,234/4,000 ━━────── 26% 19m57s left 0.1235 0.75 0.2 █▄▁ 12.3 99%"
        " 512 MB 3s",
        "worker:1 running 1001 1m05s port open",
    ]


def test_bad_loss_and_long_silence_are_marked() -> None:
    """A silence is one from a minute on."""
    nan = progressed(0, Progress(phase="training", bad_loss=BadLoss(value="nan")))
    state, last_lines = running(2, nan), {"worker:0": 30.0, "worker:1": 41.0}
    first, second = footer(moment(state, now=100.0, last_lines=last_lines), colour=True)[2:]
    assert "\x1b[1;31mnan" in first and "\x1b[1;31m1m10s" in first and second.endswith(" 59s")
    assert footer(moment(state, now=100.0, last_lines=last_lines))[2].endswith("1m10s !")
    # The column is one of the last to go, also before that.
    for lines in (last_lines, {"worker:0": 90.0}):
        assert "QUIET" in footer(moment(state, now=100.0, last_lines=lines), 60)[1]


def test_part_that_is_done_and_time_left() -> None:
    at_5_of_10 = {"step": 5, "steps": 10}
    rows = [
        (Progress(epoch=2, epochs=4, steps_per_s=1.0, **at_5_of_10), "━━━───── 37% 25s left"),
        (Progress(**at_5_of_10), "━━━━──── 50%"),
        (Progress(epoch=4, epochs=4, step=10, steps=10, steps_per_s=1.0), "━━━━━━━━ 100%"),
        (Progress(phase="done"), "━━━━━━━━ 100%"),
        (Progress(phase="evaluating", epochs=4, step=1, steps=4, steps_per_s=1.0), "━━────── 25% 3s left"),
        (Progress(epoch=3, step=7), ""),
        (Progress(step=7, steps=0, steps_per_s=math.inf), ""),
    ]
    assert [done_text(progress, is_alive=True) for progress, _ in rows] == [text for _, text in rows]


def test_trend_covers_the_whole_run_in_a_few_characters() -> None:
    trend = LossTrend()
    for step in range(1000):
        for loss in (1000.0 - step, 1000.0 - step, math.nan):
            trend.add(loss)
    assert (trend.text(), sparkline([1.0]), sparkline([2.0, 2.0])) == ("█▇▆▆▅▄▃▃▂▁", "", "▁▁")


def test_task_shows_how_it_was_stopped_or_ended() -> None:
    """A stopped one is running in the document."""
    sample = {"worker:1": {"cpu_percent": 0.0, "memory_bytes": 1.0, "stop_signal": 19.0}}
    state = running(2)
    rows = footer(moment(state, sample=sample))
    assert "running" in rows[2] and "stopped (SIGSTOP)" in rows[3]
    first, second = task_statuses(state, sample, 75.0)
    assert (first.state, first.paused) == ("running", False)
    assert (second.state, second.paused, second.stop_signal) == ("running", True, "SIGSTOP")
    ended = running(2, exited(0, 3), exited(1, signal=9))
    assert not task_statuses(ended, sample, 75.0)[1].paused
    first_row, second_row = footer(ended)[2:]
    assert first_row.startswith("worker:0  failed (exit 3)")
    assert second_row.startswith("worker:1  failed (SIGKILL)")


def test_least_important_columns_are_dropped_first() -> None:
    titles = {width: footer(full_moment(), width)[1].split() for width in (180, 140, 80, 47, 40, 25, 24)}
    assert {"PID", "CPU", "QUIET"} <= set(titles[180])
    assert "PID" not in titles[140] and "QUIET" in titles[140]
    assert titles[80] == ["TASK", "STATE", "PROGRESS", "DONE", "LOSS"]
    assert titles[47] == titles[40] == ["TASK", "STATE", "PROGRESS"]
    assert titles[25] == titles[24] == ["TASK", "STATE"]
    cut = footer(full_moment(), 40)[2]
    assert "epoch 2/5" in cut and cut.endswith("…")


def test_failed_and_awaited_tasks_are_shown_first_and_hidden_ones_counted() -> None:
    lines = footer(running(20, exited(15, 1)), 100, 12)
    assert len(lines) == 9
    assert [line.split()[0] for line in lines[2:-1]] == [*(f"worker:{n}" for n in range(5)), "worker:15"]
    assert lines[-1] == "... 14 more (14 running)"
    history: list[Event] = [attempt_planned(20, mono=10)]
    for index in range(20):
        phase = "importing" if index in (11, 17) else "waiting"
        history += started(index, 10), progressed(index, Progress(phase=phase))
    lines = footer(state_of(*history), height=12)[2:-1]
    assert [line.split()[0] for line in lines][-2:] == ["worker:11", "worker:17"]
    assert "waiting for worker:11 and worker:17" in lines[0] and "importing tensorflow" in lines[-1]
    assert [len(footer(full_moment(), 80, height)) for height in (5, 1)] == [1, 1]


@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 40), st.booleans())
def test_lines_never_wrap_and_leave_room_for_logs(width: int, height: int, tasks: int, colour: bool) -> None:
    lines = footer(moment(running(tasks, TRAINS), hint="h" * 50), width, height, colour=colour)
    assert all(cell_len(without_colour(line)) < max(2, width) for line in lines)
    assert len(lines) <= max(1, height - 3)


def test_task_that_is_far_behind_is_marked() -> None:
    """By red and by a word."""
    for step, is_marked in ((590, True), (620, False), (800, False)):
        places = [Progress(epoch=1, step=at, steps=1000, steps_per_s=10.0) for at in (810, step)]
        state = running(2, *(progressed(index, place) for index, place in enumerate(places)))
        assert behind_tasks(state) == ({"worker:1"} if is_marked else set())
        first, second = footer(state, colour=True)[-2:]
        assert "(behind)" not in first
        assert (f"\x1b[1;31mepoch 1 step {step}/1,000 (behind)" in second) is is_marked
    alone = running(2, progressed(0, Progress(step=5000, steps_per_s=10.0)))
    assert behind_tasks(alone) == frozenset()


def test_columns_and_cells_fit_the_width() -> None:
    columns = Column("A"), Column("B", rank=1)
    assert lay_out(columns, [(Cell("x"), Cell(""))], None, colour=False) == ["A", "x"]
    assert fit([Cell("hello "), Cell("world")], 8, colour=False) == "hello w…"
    assert fit([Cell("漢字漢字")], 5, colour=False) == "漢字…"
    assert fit([Cell("hello")], 5, colour=False) == "hello"
    assert fit([Cell("red", ("31",))], None, colour=True) == "\x1b[31mred\x1b[0m"


def test_amounts_are_short_and_have_units() -> None:
    rows: dict[Callable[[Any], str], dict[float | None, str]] = {
        duration: {None: "", -1: "0s", 59.9: "59s", 60: "1m00s", 3599: "59m59s", 3661: "1h01m", 90000: "1d01h"},
        short_duration: {0.0041: "4ms", 0.62: "620ms", 0.9999: "1.0s", 1.25: "1.2s", 61.0: "1m01s"},
        size: {None: "", 0: "0 B", 999: "999 B", 1000: "1 KB", 14_300: "14 KB", 1_400_000: "1.4 MB",
               999_999_999: "1.0 GB", 5 * 10**15: "5000 TB"},
        number: {None: "", 0.123456: "0.1235", 12345.6: "1.235e+04", math.nan: "nan", math.inf: "inf"},
        rate: {None: "", 0.532: "0.53", 12.43: "12.4", 1234.5: "1,234", math.inf: "inf"},
    }  # fmt: skip
    assert {text: {value: text(value) for value in values} for text, values in rows.items()} == rows


def test_status_lines() -> None:
    state = running(2, TRAINS, exited(1, 2))
    sample = {"worker:0": {"cpu_percent": 50.0, "memory_bytes": 2e8}}
    head, where, titles, first, second = status(state, sample=sample)
    assert (head, where) == ("digits-1  running  1m05s", "/runs/digits-1")
    assert titles.split()[:3] == ["TASK", "STATE", "PID"]
    assert first.split()[:4] == ["worker:0", "running", "1000", "1m05s"] and "200 MB" in first
    assert second.split()[:4] == ["worker:1", "failed", "(exit", "2)"]
    assert all(len(line) <= 40 for line in status(state, width=40))


def test_run_table_shows_size_age_and_attempts_if_more_than_one() -> None:
    assert run_lines([], None, colour=False) == []
    first = RunRow("a-1", "a", "running", 4, 100.0, 100.0, 1_000_000, "/home/a")
    second = RunRow("b-2", "b", "timed_out", 2, 90_000.0, 60.0, 3_000_000, "/home/b")
    titles, row, other, total = run_lines([first, second], None, colour=False)
    assert titles.split() == ["RUN", "STATE", "TOOK", "AGE", "TASKS", "SIZE", "NAME", "DIRECTORY"]
    assert row.split() == ["a-1", "running", "1m40s", "1m40s", "4", "1.0", "MB", "a", "/home/a"]
    assert "timed out" in other
    assert total == "2 runs, 4.0 MB, the oldest from 1d01h ago"
    titles, _, again, _ = run_lines([first, replace(second, attempts=3)], None, colour=False)
    assert again.split()[titles.split().index("ATTEMPTS") + 1] == "3"


def test_runs_in_80_columns_have_exit_code_duration_loss_and_command() -> None:
    command = "train.py --data /data/digits --epochs 30 --learning-rate 0.01"
    row = RunRow("proj-20261123T032932Z-3fd3", "proj", "failed", 2, 100.0, 754.0, 10**6, "/home/a/proj")
    runs = [replace(row, exit_code=1, loss=0.0525, command=command), replace(row, bad_loss="nan")]
    titles, first, second, _ = run_lines(runs, 80, colour=False)
    assert titles.split() == ["RUN", "STATE", "EXIT", "TOOK", "LOSS", "COMMAND"]
    assert all(cell_len(line) <= 80 for line in (titles, first, second))
    assert first.split()[1:6] == ["failed", "1", "12m34s", "0.0525", "train.py"] and first.endswith("…")
    assert second.split()[1:4] == ["failed", "12m34s", "nan"]
    assert command in run_lines(runs, None, colour=False)[1]


SILENT = event(HostSilent, 20, host="b", seconds=3)
LOST = event(HostLost, 30, host="b", reason="it has not answered for 10s")


def on_hosts(*hosts: str | None, more: tuple[Event, ...] = ()) -> RunState:
    """A run with a worker on each of these hosts."""
    tasks = [planned_task(index, host=host) for index, host in enumerate(hosts)]
    here = [joined(host, 5) for host in dict.fromkeys(filter(None, hosts))]
    return state_of(*here, attempt_planned(tasks, mono=10), *more)


def test_hosts_are_in_the_table_if_there_are_several_and_in_the_document() -> None:
    columns = {("a", "b"): True, ("a", "a"): False, (None, None): False}
    assert {hosts: "HOST" in footer(on_hosts(*hosts), 200)[1] for hosts in columns} == columns
    state = on_hosts("a", "b", more=(SILENT,))
    rows = footer(state, 200)
    assert "b (silent)" in rows[3] and "silent" not in rows[2]
    assert "b (lost)" in footer(on_hosts("a", "b", more=(SILENT, LOST)), 200)[3]
    tasks = [(task.host, task.host_state) for task in task_statuses(state, {}, 21.0)]
    assert tasks == [("a", "joined"), ("b", "silent")]
    first, second = host_statuses(state, 21.0)
    assert (first.state, first.silent_s, first.cores, first.gpus) == ("joined", None, 8, ("A100",))
    assert (second.state, second.silent_s) == ("silent", 4.0)
    assert host_statuses(on_hosts("b", more=(LOST,)), 31.0)[0].reason == "it has not answered for 10s"
    assert not host_statuses(on_hosts(None), 0)
