"""samples.jsonl is bounded for a run of any length. Damage to it fails neither a reader nor the writer."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from making import run_result
from run_records import make_run, view_of

from orchestrator.core.progress.history_rows import History
from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import MOST_ROWS, TASK_BYTES, HistoryFile
from orchestrator.store.runs.writer import RunStore


@pytest.fixture
def store() -> Iterator[RunStore]:
    with closing(make_run(started_at=0.0)) as made:
        yield made


@pytest.fixture
def file(store: RunStore) -> Iterator[HistoryFile]:
    """The history of the run without the rest of its store, which takes longer to write."""
    with closing(history_of(store)) as made:
        yield made


def history_of(store: RunStore) -> HistoryFile:
    return HistoryFile(store.directory, store.paths.samples.name)


def train(file: HistoryFile, seconds: range, tasks: int = 1) -> None:
    """Report a step of each task, and measure it, once each second."""
    names = [f"worker:{index}" for index in range(tasks)]
    for second in seconds:
        made = Progress(phase="training", step=second, loss=1 / (1 + second), metrics={"accuracy": 0.5})
        usage = {"cpu_percent": second % 100 + 0.5, "memory_bytes": second}
        file.add(float(second), 1, dict.fromkeys(names, made), dict.fromkeys(names, usage))


def history(store: RunStore) -> History:
    return view_of(store.paths).history()


def test_rows_have_progress_and_measurements(store: RunStore, file: HistoryFile) -> None:
    train(file, range(3), tasks=2)
    columns = history(store)
    assert columns["time"] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert columns["task"] == ["worker:0", "worker:1"] * 3
    assert columns["step"] == columns["memory_bytes"] == [0, 0, 1, 1, 2, 2]
    assert columns["accuracy"] == [0.5] * 6


def test_long_run_is_thinned_and_first_and_last_rows_are_exact(store: RunStore, file: HistoryFile) -> None:
    for begin in range(0, 12_000, 500):
        train(file, range(begin, begin + 500))
        assert store.paths.samples.stat().st_size <= TASK_BYTES
    file.end_task(12_000.25, 1, "worker:0", Progress(step=77), {"cpu_percent": 1.0})
    file.flush()
    columns = history(store)
    times = columns["time"]
    assert MOST_ROWS // 8 < len(times) <= MOST_ROWS
    assert (times[0], columns["step"][0], columns["loss"][0]) == (0.0, 0, 1.0)
    assert (times[-1], columns["step"][-1]) == (12_000.25, 77)
    gaps = [later - earlier for earlier, later in pairwise(times)][1:-1]
    usual = median(gaps)
    assert usual == 8 and all(usual / 2 <= gap <= 2 * usual for gap in gaps)
    assert [path.name for path in store.paths.root.glob(".samples*")] == []


def test_number_of_rows_is_bounded_and_a_task_that_reports_rarely_keeps_its_rows(
    store: RunStore, file: HistoryFile
) -> None:
    """Short rows reach this limit before that of the size."""
    for second in range(6000):
        progress = {"worker:0": Progress(step=second), "evaluator:0": Progress(step=second // 600)}
        file.add(float(second), 1, progress, {})
    columns = history(store)
    steps = [step for task, step in zip(columns["task"], columns["step"], strict=True) if task != "worker:0"]
    assert steps == list(range(10))
    assert MOST_ROWS // 2 < columns["task"].count("worker:0") <= MOST_ROWS


def test_tasks_share_the_size_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not fit even once for each task are left out."""
    for most_bytes, tasks_with_rows in ((60_000, 8), (600, 0)):
        monkeypatch.setattr("orchestrator.store.runs.history_file.RUN_BYTES", most_bytes)
        with closing(make_run()) as store, closing(history_of(store)) as file:
            train(file, range(120), tasks=8)
            assert store.paths.samples.stat().st_size <= most_bytes
            columns = history(store)
        for index in range(tasks_with_rows):
            mine = [n for n, task in enumerate(columns["task"]) if task == f"worker:{index}"]
            assert columns["step"][mine[0]] == 0 and columns["step"][mine[-1]] > 110


def test_last_row_of_a_task_is_in_the_file_when_the_run_has_ended(store: RunStore) -> None:
    usage = {"worker:0": {"cpu_percent": 2.0}}
    for step, end in ((8, RunStore.close), (18, lambda store: store.write_result(run_result()))):
        mono, progress = float(step), {"worker:0": Progress(step=step)}
        with closing(make_run(started_at=0.0)) as run:
            run.write_sample(at=0, mono=mono, tasks=usage, progress=progress, attempt=1)
            run.end_task(mono + 0.1, "worker:0", 1, Progress(step=step + 1), usage["worker:0"])
            end(run)
            columns = history(run)
        assert (columns["time"], columns["step"]) == ([mono, mono + 0.1], [step, step + 1])


def test_newer_progress_is_taken_from_the_sample(store: RunStore) -> None:
    """Rows are at least a second apart; the sample is replaced more often."""
    usage = {"worker:0": {"cpu_percent": 2.0, "memory_bytes": 9}}
    for step in (1, 2):
        progress = {"worker:0": Progress(step=step)}
        store.write_sample(at=0, mono=step / 2, tasks=usage, progress=progress, attempt=1)
    columns = history(store)
    assert (columns["time"], columns["step"], columns["memory_bytes"]) == ([0.5, 1.0], [1, 2], [9, 9])


def _huge_line(path: Path) -> None:
    path.write_bytes(b'{"time":1.0,' + b"x" * 3_000_000)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def test_unusable_file_is_an_empty_history(store: RunStore, file: HistoryFile) -> None:
    """Other kinds of damage: test_damaged_runs.py."""
    path = store.paths.samples
    for damage in (_link, _huge_line, lambda path: path.chmod(0o666)):
        train(file, range(2))
        whole = path.read_bytes()
        assert len(history(store)["time"]) == 2
        damage(path)
        assert history(store)["time"] == []
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(whole)


def test_rows_around_damage_are_read(store: RunStore, file: HistoryFile) -> None:
    train(file, range(4))
    first, second, *others = store.paths.samples.read_bytes().splitlines(keepends=True)
    store.paths.samples.write_bytes(first + second[:20] + b"\n\xff\0[[\n" + b"".join(others) + second[:30])
    assert history(store)["step"] == [0, 2, 3]


def test_damaged_file_is_replaced_when_it_is_thinned() -> None:
    for damage in (Path.unlink, _huge_line, _link):
        with closing(make_run(started_at=0.0)) as store, closing(history_of(store)) as file:
            train(file, range(10))
            damage(store.paths.samples)
            train(file, range(10, 4000))
            assert store.paths.samples.stat().st_size <= TASK_BYTES
            assert history(store)["step"][-1] >= 3990


def test_file_that_cannot_be_replaced_stays_within_its_bounds(store: RunStore, file: HistoryFile) -> None:
    in_its_place = store.paths.samples.with_name(f".samples.jsonl.{os.getpid()}")
    in_its_place.mkdir()
    train(file, range(6000))
    assert store.paths.samples.stat().st_size <= TASK_BYTES
    assert history(store)["step"][:10] == list(range(10))
    in_its_place.rmdir()
    train(file, range(6000, 20_000))
    assert history(store)["step"][-1] > 15_000  # it continues


def test_failed_thinning_leaves_no_temporary_file(store: RunStore, file: HistoryFile) -> None:
    train(file, range(1))
    store.paths.samples.unlink()
    store.paths.samples.mkdir()
    train(file, range(1, 4000))
    assert list(store.paths.root.glob(".samples*")) == []


def test_thinning_reads_no_more_than_was_written(
    store: RunStore, file: HistoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(file, range(100))
    os.truncate(store.paths.samples, 0)
    os.truncate(store.paths.samples, 64 << 20)
    monkeypatch.setattr("orchestrator.store.runs.history_file.RUN_BYTES", 1000)
    tracemalloc.start()
    try:
        train(file, range(100, 110))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert store.paths.samples.stat().st_size <= 1000


def test_failed_write_leaves_no_partial_row(
    store: RunStore, file: HistoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is almost full takes a part of the rows."""
    write = os.pwrite
    train(file, range(2))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, data[:30], offset))
    train(file, range(2, 4))
    assert store.paths.samples.read_bytes().endswith(b"}\n")
    monkeypatch.undo()
    train(file, range(4, 6))
    assert history(store)["step"] == [0, 1, 4, 5]
