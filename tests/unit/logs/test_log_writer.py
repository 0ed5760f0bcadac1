"""The index of the raw logs: its contents, the times of its records, and its cost."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_making import Writer

from orchestrator.store.directory import Directory
from orchestrator.store.logs.index import (
    INDEX_NAME,
    IndexRecord,
    format_record,
    log_name,
    parse_records,
    read_records,
    task_of_log,
    task_order,
    truncation,
)
from orchestrator.store.logs.writer import (
    MIN_INTERVAL_S,
    POLL_INTERVAL_S,
    TAIL_BYTES,
    UNTERMINATED_S,
    LogStore,
    LogTail,
)
from worker.wire.growth import GrowthWatch


def spans(logs_dir: Path, task: str = "worker:0") -> list[tuple[int, int]]:
    """Return (offset, length) of the records of a task."""
    return [(r.offset, r.length) for _, r in read_records(logs_dir / INDEX_NAME) if r.task == task]


tasks = st.builds(
    "{}:{}".format, st.sampled_from(["worker", "chief", "ps", "evaluator"]), st.integers(0, 99_999)
)
big = st.integers(0, 10**15)
times = big.map(lambda micros: micros / 1_000_000)
records = st.builds(IndexRecord, times, tasks, st.integers(1, 1000), big, big)


@given(records, st.binary(max_size=80))
def test_record_is_parsed_as_formatted_after_any_line(record: IndexRecord, line: bytes) -> None:
    assert task_of_log(log_name(record.task)) == record.task
    data = format_record(record)
    ((end, read),) = parse_records(data)
    assert end == len(data) and read[1:] == record[1:]
    assert read.time == pytest.approx(record.time, abs=1e-6)
    found = list(parse_records(line + b"\n" + data))
    assert len(found) <= 2 + line.count(b"\n")
    assert found[-1] == next(parse_records(data, len(line) + 1))


DAMAGED = (
    *(b"", b"\n", b"1.0 worker:0 1 0 5", b"1.0 worker:0 1 0\n", b"1.0 ../../etc/passwd 1 0 5\n"),
    *(b"1.0 worker:0 1 -5 5\n", b"1.0 worker:0 1 0 -2\n", b"nan worker:0 1 0 5\n"),
)


def test_damaged_records_and_other_files_are_skipped() -> None:
    assert [list(parse_records(line)) for line in DAMAGED] == [[]] * len(DAMAGED)
    assert task_of_log("index") is None
    assert task_of_log("worker-0.log.old") is None


def test_tasks_are_ordered_by_number() -> None:
    assert sorted(["worker:10", "worker:2", "ps:0"], key=task_order) == ["ps:0", "worker:2", "worker:10"]


def test_chunks_end_after_the_last_newline(writer: Writer) -> None:
    writer.write("worker:0", b"one\ntwo\nthr")
    assert spans(writer.dir) == [(0, 8)]
    writer.write("worker:0", b"ee\nfour", after_s=MIN_INTERVAL_S)
    assert spans(writer.dir) == [(0, 8), (8, 6)]


def test_unterminated_line_is_indexed_when_overdue(writer: Writer) -> None:
    writer.write("worker:0", b"password? ")
    assert spans(writer.dir) == []
    wait = writer.poll(MIN_INTERVAL_S)
    assert wait is not None
    assert 0 < wait <= UNTERMINATED_S
    writer.poll(wait)
    assert spans(writer.dir) == [(0, 10)]
    writer.write("worker:0", b"secret\n")
    assert spans(writer.dir) == [(0, 10), (10, 7)]


def test_finish_and_close_index_an_unterminated_line(writer: Writer) -> None:
    writer.append("worker:0", b"a\nlast words")
    writer.append("worker:1", b"b")
    writer.store.finish("worker:0", writer.now)
    assert (spans(writer.dir), spans(writer.dir, "worker:1")) == ([(0, 12)], [])
    writer.close()
    assert (spans(writer.dir), spans(writer.dir, "worker:1")) == ([(0, 12)], [(0, 1)])


def test_restarted_task_continues_its_log_with_the_new_attempt(writer: Writer) -> None:
    writer.append("worker:0", b"first\ncut off")
    writer.begin("worker:0", 2)
    writer.write("worker:0", b"again\n")
    found = [(r.attempt, r.offset, r.length) for _, r in read_records(writer.dir / INDEX_NAME)]
    assert found == [(1, 0, 13), (2, 13, 6)]


def test_log_that_is_not_watched_is_indexed_when_its_growth_is_noted(writer: Writer) -> None:
    writer.store.add("worker:0", 1, writer.path("worker:0").name, watched=False)
    writer.poll()
    writer.path("worker:0").write_bytes(b"one\ntwo")
    assert writer.poll() is None and spans(writer.dir) == []
    writer.store.note_growth("worker:0")
    writer.poll()
    assert spans(writer.dir) == [(0, 4)]
    writer.poll(UNTERMINATED_S)  # without another note
    assert spans(writer.dir) == [(0, 4), (4, 3)]
    assert [tail.data for tail in writer.store.take_tails()] == [b"one\ntwo"]
    writer.path("worker:0").write_bytes(b"")
    writer.store.note_growth("worker:0")
    writer.poll()
    assert [record for _, record in read_records(writer.dir / INDEX_NAME)][-1].lost == 7
    writer.store.note_growth("worker:7")  # unknown
    assert writer.poll() is None


def test_truncation_is_indexed(writer: Writer) -> None:
    writer.write("worker:0", b"0123456789\n")
    writer.path("worker:0").write_bytes(b"new\n")
    writer.poll()
    found = [r for _, r in read_records(writer.dir / INDEX_NAME)]
    assert found[1] == truncation(found[1].time, "worker:0", 1, 11)
    assert (found[2].offset, found[2].length) == (0, 4)


def test_work_of_one_poll_is_bounded_and_files_are_private(writer: Writer) -> None:
    writer.append("worker:0", b"x" * (9 << 20) + b"\n")
    assert writer.store.poll(writer.now) == 0.0
    writer.poll()
    assert spans(writer.dir) == [(0, (9 << 20) + 1)]
    for name in (INDEX_NAME, log_name("worker:0")):
        assert stat.S_IMODE((writer.dir / name).stat().st_mode) == 0o600


def readable(fd: int, timeout: float) -> bool:
    return bool(select.select([fd], [], [], timeout)[0])


def test_write_wakes_the_owner_and_a_flood_does_not_before_the_next_poll(writer: Writer) -> None:
    fd = writer.store.fileno()
    if fd < 0:
        pytest.skip("no inotify here")
    writer.begin("worker:0", 1)
    assert writer.poll() is None
    assert not readable(fd, 0)
    writer.append("worker:0", b"hello\n")
    assert readable(fd, 30)
    assert writer.poll() == MIN_INTERVAL_S
    writer.append("worker:0", b"more\n")
    assert not readable(fd, 0)
    assert writer.store.poll(writer.now + MIN_INTERVAL_S / 2) == pytest.approx(MIN_INTERVAL_S / 2)
    assert spans(writer.dir) == [(0, 6)]
    writer.poll(MIN_INTERVAL_S)
    assert spans(writer.dir) == [(0, 6), (6, 5)]
    # After a poll without new output the descriptor becomes readable again.
    assert writer.poll(MIN_INTERVAL_S) is None
    writer.append("worker:0", b"x\n")
    assert readable(fd, 30)


def no_inotify() -> GrowthWatch:
    raise OSError(24, "no inotify instances left")


class FullWatch(GrowthWatch):
    def add(self, fd: int) -> None:
        raise OSError(28, "no watches left")


@pytest.mark.parametrize("watch", [no_inotify, FullWatch])
def test_store_polls_without_inotify(tmp_path: Path, watch: Callable[[], GrowthWatch]) -> None:
    with LogStore(Directory.at(tmp_path), open_watch=watch) as store:
        assert (store.fileno() == -1) == (watch is no_inotify)
        store.add("worker:0", 1, "worker-0.log")
        (tmp_path / "worker-0.log").write_bytes(b"a\n")
        assert store.poll(1.0) == MIN_INTERVAL_S
        assert store.poll(2.0) == POLL_INTERVAL_S
    assert spans(tmp_path) == [(0, 2)]


def test_existing_index_is_continued_without_its_incomplete_record(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_bytes(b"one\ntwo\n")
    whole = format_record(IndexRecord(1.0, "worker:0", 1, 0, 4))
    (tmp_path / INDEX_NAME).write_bytes(whole + b"2.0 worker:0 1 4 1")
    with LogStore(Directory.at(tmp_path)) as store:
        store.add("worker:0", 1, log.name)
    assert spans(tmp_path) == [(0, 4), (4, 4)]


def test_full_disk_loses_no_record(tmp_path: Path) -> None:
    """/dev/full rejects every write like a full disk."""
    with LogStore(Directory.at(tmp_path)) as store:
        store.add("worker:0", 1, "worker-0.log")
        (tmp_path / "worker-0.log").write_bytes(b"one\n")
        real = os.dup(store._index._fd)
        with Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), store._index._fd)
            assert store.poll(10.0) == 1.0
            assert spans(tmp_path) == []
            os.dup2(real, store._index._fd)
        os.close(real)
        store.poll(20.0)
        assert spans(tmp_path) == [(0, 4)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["worker:0", "worker:1"]),
            st.binary(max_size=30),
            st.sampled_from([0.0, 0.005, 0.05, 0.2]),
        ),
        max_size=30,
    )
)
def test_every_byte_is_indexed_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes, float]]
) -> None:
    writer = Writer(tmp_path_factory.mktemp("logs"))
    written = {"worker:0": b"", "worker:1": b""}
    for task, data, pause in writes:
        writer.write(task, data, after_s=pause)
        written[task] += data
    writer.close()
    for task, data in written.items():
        position = 0
        for offset, length in spans(writer.dir, task):
            assert offset == position
            assert length > 0
            position += length
        assert position == len(data)


def test_log_tail_is_returned_once(writer: Writer) -> None:
    writer.write("worker:0", b"first\n")
    writer.append("worker:1", b"nothing whole yet")
    assert writer.store.take_tails() == [LogTail("worker:0", 1, b"first\n", missed=False)]
    assert writer.store.take_tails() == []
    writer.write("worker:0", b"second\nthi")
    assert [(tail.task, tail.data) for tail in writer.store.take_tails()] == [("worker:0", b"second\n")]
    writer.poll()
    assert {tail.task: tail.data for tail in writer.store.take_tails()} == {
        "worker:0": b"thi",
        "worker:1": b"nothing whole yet",
    }
    writer.write("worker:0", b"rd\n")
    assert [tail.data for tail in writer.store.take_tails()] == [b"rd\n"]


def test_log_tail_is_limited_and_restarts_after_truncation_and_for_a_new_attempt(writer: Writer) -> None:
    writer.write("worker:0", b"x" * 3 * TAIL_BYTES + b"\n")
    (tail,) = writer.store.take_tails()
    assert tail.missed and tail.data == b"x" * (TAIL_BYTES - 1) + b"\n"
    writer.path("worker:0").write_bytes(b"new\n")
    writer.poll()
    assert [tail.data for tail in writer.store.take_tails()] == [b"new\n"]
    writer.append("worker:0", b"old\n")
    writer.begin("worker:0", 2)
    writer.write("worker:0", b"young\n")
    assert writer.store.take_tails() == [LogTail("worker:0", 2, b"young\n", missed=False)]


def test_process_start_is_the_offset_of_the_current_process(writer: Writer) -> None:
    writer.append("worker:0", b"first, unfinished")
    writer.store.mark_process_start("worker:0", writer.now)
    assert writer.store.process_start("worker:0") == 17
    assert spans(writer.dir) == [(0, 17)]
    writer.write("worker:0", b"second\n")
    assert writer.store.process_start("worker:0") == 17
    # It truncates the log, then writes more than before.
    writer.path("worker:0").write_bytes(b"new\n")
    writer.poll()
    writer.write("worker:0", b"x" * 50 + b"\n")
    assert writer.store.process_start("worker:0") == 0
    writer.store.mark_process_start("worker:1", writer.now)
    assert writer.store.process_start("worker:1") == 0
