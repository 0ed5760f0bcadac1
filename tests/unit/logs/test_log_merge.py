"""The reader merges logs while they grow, later, and with a missing or damaged index."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_making import Writer, read_all, read_unindexed

from orchestrator.store.logs.index import INDEX_NAME
from orchestrator.store.logs.merge import LogReader


def contents(reader: LogReader, max_bytes: int = 1 << 20) -> list[tuple[str, bytes]]:
    return [(chunk.task, chunk.data) for chunk in read_all(reader, max_bytes)]


def test_chunks_are_in_order_of_arrival_and_of_the_selected_tasks(writer: Writer) -> None:
    for task, data in (
        ("worker:0", b"a\n"),
        ("worker:1", b"b\n"),
        ("worker:0", b"c\n"),
        ("worker:2", b"d\n"),
    ):
        writer.write(task, data)
    with LogReader(writer.dir, {"worker:1", "worker:0"}) as reader:
        chunks = read_all(reader)
    assert [(c.task, c.offset, c.data) for c in chunks] == [
        ("worker:0", 0, b"a\n"),
        ("worker:1", 0, b"b\n"),
        ("worker:0", 2, b"c\n"),
    ]
    assert [c.time for c in chunks] == sorted(c.time for c in chunks if c.time is not None)


def test_reader_waits_for_a_missing_directory_and_returns_new_chunks(tmp_path: Path) -> None:
    with LogReader(tmp_path / "logs") as reader:
        assert reader.read() == reader.read_unindexed() == []
        (tmp_path / "logs").mkdir()
        writer = Writer(tmp_path / "logs")
        for data in (b"a\n", b"b\n"):
            writer.write("worker:0", data)
            assert contents(reader) == [("worker:0", data)]
            assert reader.read() == []
        writer.close()


def test_big_chunk_is_split_after_newlines(writer: Writer) -> None:
    data = b"".join(b"line %d\n" % n for n in range(1000))
    writer.write("worker:0", data)
    with LogReader(writer.dir) as reader:
        pieces = [data for _, data in contents(reader, max_bytes=1000)]
    assert len(pieces) > 5
    assert b"".join(pieces) == data
    assert all(piece.endswith(b"\n") for piece in pieces)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["worker:0", "worker:1"]), st.binary(min_size=1, max_size=40)), max_size=12
    ),
    st.integers(1, 400),
    st.integers(0, 30),
)
def test_reader_can_start_from_the_position_of_another(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes]], max_bytes: int, reads: int
) -> None:
    writer = Writer(tmp_path_factory.mktemp("logs"))
    for task, data in writes:
        writer.write(task, data)
    writer.close()
    with LogReader(writer.dir) as reader:
        whole = read_all(reader)
    with LogReader(writer.dir) as reader:
        first = [chunk for _ in range(reads) for chunk in reader.read(max_bytes)]
        position = reader.position
    with LogReader(writer.dir, position=position) as reader:
        second = read_all(reader)
        assert read_unindexed(reader) == []
    for task in ("worker:0", "worker:1"):
        joined = b"".join(c.data for c in first + second if c.task == task)
        assert joined == b"".join(c.data for c in whole if c.task == task)
        assert joined == b"".join(data for name, data in writes if name == task)


def test_unindexed_output_is_last_in_task_order_without_a_time(writer: Writer) -> None:
    """From any position, and without an index."""
    writer.write("worker:10", b"indexed\n")
    writer.write("worker:2", b"also\n")
    with LogReader(writer.dir) as reader:
        assert len(read_all(reader)) == 2
        end = reader.position
    for task in ("worker:10", "worker:2", "worker:0"):
        writer.append(task, b"after the end\n")
    with LogReader(writer.dir, position=end) as reader:
        assert reader.read() == []
        rest = read_unindexed(reader, max_bytes=4)
    joined: dict[str, bytes] = {}
    for chunk in rest:
        assert chunk.time is None
        joined[chunk.task] = joined.get(chunk.task, b"") + chunk.data
    assert list(joined.items()) == [
        (task, b"after the end\n") for task in ("worker:0", "worker:2", "worker:10")
    ]
    assert next(chunk.offset for chunk in rest if chunk.task == "worker:2") == len("also\n")
    (writer.dir / INDEX_NAME).unlink()
    with LogReader(writer.dir) as reader:
        assert reader.read() == []
        assert {c.task: c.data for c in read_unindexed(reader)}["worker:10"] == b"indexed\nafter the end\n"


def test_slow_reader_can_skip_the_oldest_chunks(writer: Writer) -> None:
    for number in range(10):
        for task in ("worker:0", "worker:1", "worker:2"):
            writer.write(task, b"line %d\n" % number)
    with LogReader(writer.dir, {"worker:0", "worker:1"}) as reader:
        assert reader.skip_old(1000) == {}
        reader.read(1)
        assert reader.skip_old(35) == {"worker:0": 55, "worker:1": 49}
        assert contents(reader) == [
            ("worker:1", b"line 7\n"),
            ("worker:0", b"line 8\n"),
            ("worker:1", b"line 8\n"),
            ("worker:0", b"line 9\n"),
            ("worker:1", b"line 9\n"),
        ]
        assert reader.skip_old(0) == {}
        assert read_unindexed(reader) == []


def test_output_before_a_truncation_is_not_replayed(writer: Writer) -> None:
    """A live reader reports it, too."""
    with LogReader(writer.dir) as live:
        writer.write("worker:0", b"gone for ever\n")
        writer.write("worker:1", b"kept\n")
        assert [data for _, data in contents(live)] == [b"gone for ever\n", b"kept\n"]
        writer.path("worker:0").write_bytes(b"")
        writer.poll()
        writer.write("worker:0", b"new beginning, longer than before\n")
        new = [("worker:0", b"", 14), ("worker:0", b"new beginning, longer than before\n", 0)]
        assert [(c.task, c.data, c.lost) for c in read_all(live)] == new
    with LogReader(writer.dir) as reader:
        chunks = read_all(reader)
    assert [(c.task, c.data, c.lost) for c in chunks] == [("worker:1", b"kept\n", 0), *new]


def test_incomplete_record_is_read_later(writer: Writer) -> None:
    writer.write("worker:0", b"one\n")
    writer.append("worker:0", b"two\n")
    with LogReader(writer.dir) as reader:
        assert contents(reader) == [("worker:0", b"one\n")]
        with (writer.dir / INDEX_NAME).open("ab") as index:
            index.write(b"1700000009.000000 worker:0 1 4")
        assert reader.read() == []
        with (writer.dir / INDEX_NAME).open("ab") as index:
            index.write(b" 4\n")
        assert contents(reader) == [("worker:0", b"two\n")]


def test_invalid_lines_in_the_index_are_skipped(writer: Writer) -> None:
    writer.write("worker:0", b"one\n")
    with (writer.dir / INDEX_NAME).open("ab") as index:
        index.write(b"\x00\xff garbage \r\n1.0 worker:7 1 0 99\n1.0 worker:0 1 999 5\n")
    writer.write("worker:0", b"two\n")
    with LogReader(writer.dir) as reader:
        assert contents(reader) == [("worker:0", b"one\n"), ("worker:0", b"two\n")]
