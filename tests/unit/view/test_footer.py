"""The footer and the tables: their cells, and which are dropped first on a narrow or low terminal."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moments import exited, moment, planned, progressed, running
from rich.cells import cell_len

from orchestrator.client.view.amounts import duration, number, rate, short_duration, size
from orchestrator.client.view.layout import Cell, Column, fit, lay_out, without_colour
from orchestrator.client.view.progress_cells import LossTrend, done_text, sparkline
from orchestrator.client.view.status_document import RunStatus, Status, task_statuses
from orchestrator.client.view.tables import Moment, RunRow, footer_lines, run_lines, status_lines
from orchestrator.core.progress.activity import behind_tasks
from orchestrator.core.state.events import AttemptPlanned, Progress, TaskStarted
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import BadLoss
from orchestrator.core.state.state import RunState

TRAINING = Progress(phase="train", epoch=2, epochs=5, step=1234, steps=4000, loss=0.123456, steps_per_s=12.34,
                    metrics={"accuracy": 0.75, "val_loss": 0.2})  # fmt: skip


def full_moment() -> Moment:
    state = running(2, progressed("worker:0", TRAINING))
    sample: dict[str, dict[str, float]] = {
        "worker:0": {"cpu_percent": 98.7, "memory_bytes": 512_000_000.0},
        "worker:1": {},
    }
    return Moment(
        "digits",
        state,
        now=75.0,
        started=10.0,
        sample=sample,
        last_lines={"worker:0": 72.0},
        trends={"worker:0": "█▄▁"},
        hint="^C stops",
    )


def test_row_shows_all_known_values() -> None:
    head, titles, first, second = footer_lines(full_moment(), 180, 24, colour=False)
    assert head == "digits  running  1m05s  ^C stops"
    assert titles.split() == [
        "TASK",
        "STATE",
        "PID",
        "UP",
        "PROGRESS",
        "DONE",
        "LOSS",
        "ACCURACY",
        "VAL_LOSS",
        "TREND",
        "STEPS/S",
        "CPU",
        "MEM",
        "QUIET",
        "FOR",
    ]
    assert first.split() == [
        "worker:0", "running", "1000", "1m05s", "epoch", "2/5", "step", "1,234/4,000",
        "━━──────", "26%", "19m57s", "left", "0.1235", "0.75", "0.2", "█▄▁", "12.3", "99%", "512", "MB", "3s",
    ]  # fmt: skip
    assert second.split() == ["worker:1", "running", "1001", "1m05s", "port", "open"]


def test_long_silence_and_loss_that_is_not_a_number_are_red() -> None:
    bad = Progress(phase="training", bad_loss=BadLoss(value="nan"))
    state = running(2, progressed("worker:0", bad))
    moment = Moment("run", state, now=75.0, started=10.0, last_lines={"worker:0": 74.0, "worker:1": 10.0})
    first, second = footer_lines(moment, 120, 24, colour=True)[2:]
    assert re.search("\x1b\\[1;31mnan", first) and first.endswith("1s")
    assert "\x1b[1;31m1m05s" in second


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(epoch=2, epochs=4, step=5, steps=10, steps_per_s=1.0), "━━━───── 37% 25s left"),
        (Progress(step=5, steps=10), "━━━━──── 50%"),
        (Progress(epoch=4, epochs=4, step=10, steps=10, steps_per_s=1.0), "━━━━━━━━ 100%"),
        (Progress(phase="done"), "━━━━━━━━ 100%"),
        (
            Progress(phase="evaluating", epoch=4, epochs=4, step=1, steps=4, steps_per_s=1.0),
            "━━────── 25% 3s left",
        ),
        (Progress(epoch=3, step=7), ""),
        (Progress(step=7, steps=0, steps_per_s=math.inf), ""),
    ],
)
def test_part_that_is_done_and_time_left(progress: Progress, text: str) -> None:
    assert done_text(progress, is_alive=True) == text


def test_trend_covers_the_whole_run_in_a_few_characters() -> None:
    trend = LossTrend()
    for step in range(1000):
        trend.add(1000.0 - step)
        trend.add(1000.0 - step)
        trend.add(math.nan)
    assert trend.text() == "█▇▆▆▅▄▃▃▂▁"
    assert sparkline([1.0]) == "" and sparkline([2.0, 2.0]) == "▁▁"


def test_stopped_task_shows_its_signal_and_is_running_in_the_document() -> None:
    state = running(2)
    sample = {"worker:1": {"cpu_percent": 0.0, "memory_bytes": 1.0, "stop_signal": 19.0}}
    rows = footer_lines(Moment("run", state, now=75.0, started=10.0, sample=sample), 120, 24, colour=False)
    assert "running" in rows[2] and "stopped (SIGSTOP)" in rows[3]
    first, second = task_statuses(state, sample, 75.0)
    assert (first.state, first.paused) == ("running", False)
    assert (second.state, second.paused, second.stop_signal) == ("running", True, "SIGSTOP")
    ended = running(2, exited("worker:1", None, 9))
    assert not task_statuses(ended, sample, 75.0)[1].paused


def test_failed_task_shows_how_it_ended() -> None:
    lines = footer_lines(
        moment(running(2, exited("worker:0", 3), exited("worker:1", None, 9))), 120, 24, colour=False
    )
    assert lines[2].startswith("worker:0  failed (exit 3)")
    assert lines[3].startswith("worker:1  failed (SIGKILL)")


def test_least_important_columns_are_dropped_first() -> None:
    titles = {w: footer_lines(full_moment(), w, 24, colour=False)[1].split() for w in (180, 140, 80, 47, 25)}
    assert {"PID", "CPU", "QUIET"} <= set(titles[180])
    assert "PID" not in titles[140] and "QUIET" in titles[140]
    assert titles[80] == ["TASK", "STATE", "PROGRESS", "DONE", "LOSS"]
    assert titles[47] == ["TASK", "STATE", "PROGRESS"]
    assert titles[25] == ["TASK", "STATE"]


def test_progress_is_cut_on_narrow_terminal() -> None:
    lines = footer_lines(full_moment(), 40, 24, colour=False)
    assert lines[1].split() == ["TASK", "STATE", "PROGRESS"]
    assert "epoch 2/5" in lines[2] and lines[2].endswith("…")
    assert footer_lines(full_moment(), 24, 24, colour=False)[1].split() == ["TASK", "STATE"]


def test_hidden_tasks_are_counted_and_failed_tasks_shown() -> None:
    state = running(20, exited("worker:15", 1))
    lines = footer_lines(moment(state), 100, 12, colour=False)
    assert len(lines) == 9
    assert [line.split()[0] for line in lines[2:-1]] == [*(f"worker:{n}" for n in range(5)), "worker:15"]
    assert lines[-1] == "... 14 more (14 running)"


def test_tasks_that_others_wait_for_are_shown_first() -> None:
    names = [f"worker:{n}" for n in range(20)]
    state = apply(RunState(), AttemptPlanned(at=0, mono=10, attempt=1, tasks=tuple(map(planned, names))))
    for name in names:
        state = apply(state, TaskStarted(at=0, mono=10, task=name, pid=1, start_ticks=1))
        phase = "importing" if name in ("worker:11", "worker:17") else "waiting"
        state = apply(state, progressed(name, Progress(phase=phase)))
    lines = footer_lines(moment(state), 120, 12, colour=False)[2:-1]
    assert [line.split()[0] for line in lines][-2:] == ["worker:11", "worker:17"]
    assert "waiting for worker:11 and worker:17" in lines[0]
    assert "importing tensorflow" in lines[-1]


def test_low_terminal_shows_run_line_only() -> None:
    assert len(footer_lines(full_moment(), 80, 5, colour=False)) == 1
    assert len(footer_lines(full_moment(), 80, 1, colour=False)) == 1


@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 40), st.booleans())
def test_lines_never_wrap_and_leave_room_for_logs(width: int, height: int, tasks: int, colour: bool) -> None:
    lines = footer_lines(
        moment(running(tasks, progressed("worker:0", TRAINING)), hint="h" * 50), width, height, colour=colour
    )
    assert all(cell_len(without_colour(line)) < max(2, width) for line in lines)
    assert len(lines) <= max(1, height - 3)


def test_phase_cannot_move_cursor() -> None:
    state = running(1, progressed("worker:0", Progress(phase="\x1b[2Jevil\n")))
    assert all(
        "\x1b" not in line and "\n" not in line for line in footer_lines(moment(state), 80, 24, colour=False)
    )


cells = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Mn", "Me", "Cf")), max_size=12).map(Cell)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=4), st.integers(1, 60))
def test_columns_fit_width(rows: list[tuple[Cell, Cell, Cell]], width: int) -> None:
    columns = (
        Column("FIRST"),
        Column("SECOND", rank=2, right=True),
        Column("THIRD", rank=1, may_be_cut=True),
    )
    for line in lay_out(columns, rows, width, colour=False):
        assert cell_len(line) <= width


def test_task_that_is_far_behind_is_marked() -> None:
    """By red and by a word."""

    def place(step: int) -> Progress:
        return Progress(epoch=1, step=step, steps=1000, steps_per_s=10.0)

    for step, is_marked in ((590, True), (620, False), (800, False)):
        state = running(2, progressed("worker:0", place(810)), progressed("worker:1", place(step)))
        assert behind_tasks(state) == ({"worker:1"} if is_marked else set())
        first, second = footer_lines(moment(state), 120, 24, colour=True)[-2:]
        assert "(behind)" not in first
        assert (f"\x1b[1;31mepoch 1 step {step}/1,000 (behind)" in second) is is_marked


def test_step_of_one_task_alone_is_not_behind() -> None:
    state = running(2, progressed("worker:0", Progress(step=5000, steps_per_s=10.0)))
    assert behind_tasks(state) == frozenset()


def test_long_silence_is_marked() -> None:
    shown = moment(running(2), now=100.0)
    since_10_s = replace(shown, last_lines={"worker:0": shown.now - 10.0})
    assert "QUIET" in footer_lines(since_10_s, 60, 24, colour=False)[1]
    quiet = replace(shown, last_lines={"worker:0": 30.0, "worker:1": 41.0})
    assert "QUIET" in footer_lines(quiet, 60, 24, colour=False)[1]
    first, second = footer_lines(quiet, 120, 24, colour=False)[-2:]
    assert first.endswith("1m10s !") and second.endswith(" 59s")


def test_empty_column_is_left_out() -> None:
    assert lay_out((Column("A"), Column("B", rank=1)), [(Cell("x"), Cell(""))], None, colour=False) == [
        "A",
        "x",
    ]


def test_cut_text_ends_with_an_ellipsis() -> None:
    assert fit([Cell("hello "), Cell("world")], 8, colour=False) == "hello w…"
    assert fit([Cell("漢字漢字")], 5, colour=False) == "漢字…"
    assert fit([Cell("hello")], 5, colour=False) == "hello"
    assert fit([Cell("red", ("31",))], None, colour=True) == "\x1b[31mred\x1b[0m"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0s"),
        (-1, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3661, "1h01m"),
        (90000, "1d01h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_short_durations() -> None:
    assert [short_duration(s) for s in (0.0041, 0.62, 0.9999, 1.25, 59.0, 61.0)] == [
        "4ms", "620ms", "1.0s", "1.2s", "59.0s", "1m01s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0 B"), (999, "999 B"), (1000, "1 KB"), (14_300, "14 KB"), (1_400_000, "1.4 MB"),
     (999_999_999, "1.0 GB"), (512_000_000, "512 MB"), (5 * 10**15, "5000 TB")],
)  # fmt: skip
def test_sizes(value: int | None, text: str) -> None:
    assert size(value) == text


def test_numbers() -> None:
    assert [number(v) for v in (None, 0.123456, 12345.6, math.nan, math.inf)] == [
        "",
        "0.1235",
        "1.235e+04",
        "nan",
        "inf",
    ]
    assert [rate(v) for v in (None, 0.532, 12.43, 1234.5, math.inf)] == ["", "0.53", "12.4", "1,234", "inf"]


def status(state_name: str = "running") -> Status:
    state = running(2, progressed("worker:0", TRAINING), exited("worker:1", 2))
    tasks = task_statuses(state, {"worker:0": {"cpu_percent": 50.0, "memory_bytes": 2e8}}, 75.0)
    run = RunStatus(
        id="digits-x",
        name="digits",
        state=state_name,
        attempt=1,
        started_at=0.0,
        uptime_s=65.0,
        dir="/runs/digits-x",
        directory="/home",
        checkpoint_dir="/c",
        exit_code=None,
    )
    return Status(run=run, tasks=tasks)


def test_status_lines() -> None:
    head, where, titles, first, second = status_lines(status(), None, colour=False)
    assert head == "digits-x  running  1m05s"
    assert where == "/runs/digits-x"
    assert titles.split()[:3] == ["TASK", "STATE", "PID"]
    assert first.split()[:4] == ["worker:0", "running", "1000", "1m05s"]
    assert "200 MB" in first
    assert second.split()[:4] == ["worker:1", "failed", "(exit", "2)"]
    assert all(len(line) <= 40 for line in status_lines(status(), 40, colour=False))


def test_run_table_shows_size_and_age() -> None:
    assert run_lines([], None, colour=False) == []
    runs = [
        RunRow("a-1", "a", "running", 4, 100.0, 100.0, 1_000_000, "/home/a"),
        RunRow("b-2", "b", "timed_out", 2, 90_000.0, 60.0, 3_000_000, "/home/b"),
    ]
    titles, first, second, total = run_lines(runs, None, colour=False)
    assert titles.split() == ["RUN", "STATE", "TOOK", "AGE", "TASKS", "SIZE", "NAME", "DIRECTORY"]
    assert first.split() == ["a-1", "running", "1m40s", "1m40s", "4", "1.0", "MB", "a", "/home/a"]
    assert "timed out" in second
    assert total == "2 runs, 4.0 MB, the oldest from 1d01h ago"


def test_runs_in_80_columns_have_exit_code_duration_loss_and_command() -> None:
    command = "train.py --data /data/digits --epochs 30 --learning-rate 0.01"
    runs = [
        RunRow("proj-20261123T032932Z-3fd3", "proj", "failed", 2, 100.0, 754.0, 10**6, "/home/a/proj", **more)
        for more in ({"exit_code": 1, "loss": 0.0525, "command": command}, {"bad_loss": "nan"})
    ]
    titles, first, second, _ = run_lines(runs, 80, colour=False)
    assert titles.split() == ["RUN", "STATE", "EXIT", "TOOK", "LOSS", "COMMAND"]
    assert all(cell_len(line) <= 80 for line in (titles, first, second))
    assert first.split()[1:6] == ["failed", "1", "12m34s", "0.0525", "train.py"] and first.endswith("…")
    assert second.split()[1:4] == ["failed", "12m34s", "nan"]
    assert command in run_lines(runs, None, colour=False)[1]
