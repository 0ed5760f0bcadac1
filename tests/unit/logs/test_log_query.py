"""The lines that `orch logs` selects."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_making import Writer, read_all

from orchestrator.store.logs.index import INDEX_NAME
from orchestrator.store.logs.lines import Block
from orchestrator.store.logs.merge import LogReader, position_of_tail
from orchestrator.store.logs.query import (
    LastLines,
    LineFilter,
    LogLine,
    LogQuery,
    parse_when,
    query_lines,
    query_raw,
)


def ask(logs_dir: Path, query: LogQuery, *, over: bool = True) -> list[LogLine]:
    return [line for batch in query_lines(logs_dir, query, lambda: over) for line in batch]


def texts(logs_dir: Path, query: LogQuery) -> list[str]:
    return [line.text for line in ask(logs_dir, query)]


def raw(logs_dir: Path, query: LogQuery) -> bytes:
    return b"".join(query_raw(logs_dir, query, lambda: True))


@pytest.fixture
def counted(writer: Writer) -> Writer:
    """Write ten lines each of two tasks, alternating, one second apart, then one without a newline."""
    for number in range(10):
        for task in ("worker:0", "worker:1"):
            writer.write(task, f"{task} line {number}\n".encode())
    writer.write("worker:0", b"the end")
    writer.poll()
    return writer


def test_all_lines_are_returned_in_order(counted: Writer) -> None:
    lines = ask(counted.dir, LogQuery())
    assert [line.text for line in lines[:3]] == ["worker:0 line 0", "worker:1 line 0", "worker:0 line 1"]
    assert len(lines) == 21
    assert lines[-1] == LogLine(lines[-1].ts, "worker:0", 1, 11, "the end", True, False)
    assert [line.seq for line in lines if line.task == "worker:1"] == list(range(1, 11))
    assert not any(line.partial for line in lines[:-1])
    alone = LogQuery(tasks=frozenset({"worker:1"}))
    assert ask(counted.dir, alone) == [line for line in lines if line.task == "worker:1"]


def test_tail_of_a_long_log_has_correct_line_numbers(writer: Writer) -> None:
    """The index is so long that it is searched from its end. Some lines arrive in several chunks."""
    for number in range(1500):
        writer.write("worker:0", b"left ", after_s=0.11)
        writer.write("worker:1", b"other %d\n" % number)
        writer.write("worker:0", b"right %d\n" % number)
    assert (writer.dir / INDEX_NAME).stat().st_size > 100_000
    everything = ask(writer.dir, LogQuery())
    alone = [line for line in everything if line.task == "worker:1"]
    for count in (1, 3, 50):
        assert ask(writer.dir, LogQuery(tail=count)) == everything[-count:]
        assert ask(writer.dir, LogQuery(tasks=frozenset({"worker:1"}), tail=count)) == alone[-count:]
    assert raw(writer.dir, LogQuery(tail=1)) == b"left right 1499\n"


def test_since_and_until_select_lines(counted: Writer) -> None:
    everything = ask(counted.dir, LogQuery())
    since, until = everything[4].ts, everything[9].ts
    for terms, tail, expected in (
        ({"since": since}, None, everything[4:]),
        ({"until": until}, None, everything[:10]),
        ({"since": since, "until": until}, None, everything[4:10]),
        ({"since": since}, 2, everything[-2:]),
        ({"since": 1e12}, None, []),
    ):
        assert ask(counted.dir, LogQuery(lines=LineFilter(**terms), tail=tail)) == expected


def test_since_returns_a_complete_line_that_began_earlier(writer: Writer) -> None:
    writer.write("worker:0", b"first\nhalf ", after_s=0.1)
    writer.poll(0.2)
    writer.write("worker:0", b"a line\n")
    (line,) = ask(writer.dir, LogQuery(lines=LineFilter(since=writer.wall)))
    assert (line.text, line.seq) == ("half a line", 2)


def test_grep_and_invert_select_lines(counted: Writer) -> None:
    def matching(pattern: str, tail: int | None = None, **terms: bool) -> list[str]:
        return texts(counted.dir, LogQuery(lines=LineFilter(grep=pattern, **terms), tail=tail))

    assert matching(r"line [13]$") == [f"worker:{task} line {n}" for n in (1, 3) for task in (0, 1)]
    assert matching("line", invert=True) == ["the end"]
    assert matching("line", tail=1) == ["worker:1 line 9"]
    # The displayed text is searched.
    counted.write("worker:0", b"\n\x1b[31mlo\x1b[0mss: 0.5\n10%\r100%\n")
    assert matching(r"^loss: 0\.5$") == ["loss: 0.5"]
    assert matching("10%") == []
    with pytest.raises(ValueError, match=r'"\(" is not a regular expression'):
        LineFilter(grep="(")


def test_grep_of_a_huge_line_is_fast(writer: Writer) -> None:
    """`a.*b` takes quadratic time in a line of a's. Plain text is searched in the whole line."""
    writer.append("worker:0", b"a" * 10_000_000 + b" needle\nnext\n")
    writer.poll()
    assert texts(writer.dir, LogQuery(lines=LineFilter(grep="a.*b"))) == []
    assert [len(t) for t in texts(writer.dir, LogQuery(lines=LineFilter(grep="needle")))] == [10_000_007]


def test_raw_output_is_exact(writer: Writer) -> None:
    data = bytes(range(256)) * 3 + b"\r\n\x1b[2J\nno newline"
    writer.write("worker:0", data)
    assert raw(writer.dir, LogQuery()) == data
    assert raw(writer.dir, LogQuery(tail=1)) == b"no newline"
    writer.write("worker:1", b"other\n")
    assert raw(writer.dir, LogQuery(tasks=frozenset({"worker:0"}))) == data


def test_too_long_line_is_truncated_except_in_raw_output(writer: Writer) -> None:
    writer.append("worker:0", b"x" * (17 << 20) + b"\nnext\n")
    writer.poll()
    first, second = ask(writer.dir, LogQuery())
    assert (len(first.text), first.truncated, first.partial) == (16 << 20, True, False)
    assert (second.text, second.truncated, second.seq) == ("next", False, 2)
    assert len(raw(writer.dir, LogQuery(tail=2))) == (17 << 20) + 6


def test_unindexed_lines_have_no_time(counted: Writer) -> None:
    counted.append("worker:1", b"unseen\nlast\n")
    lines = ask(counted.dir, LogQuery(tail=3))
    # An unterminated line is complete only when the run is over.
    assert [(line.text, line.ts is None) for line in lines] == [
        ("unseen", True),
        ("last", True),
        ("the end", False),
    ]
    assert "unseen" not in texts(counted.dir, LogQuery(lines=LineFilter(until=1e12)))


def test_live_run_is_shown_up_to_the_end_of_the_index(counted: Writer) -> None:
    counted.append("worker:1", b"not yet\n")
    assert len(ask(counted.dir, LogQuery(), over=False)) == 21


def test_follow_returns_new_lines_until_the_run_is_over(counted: Writer) -> None:
    over = False
    batches = query_lines(counted.dir, LogQuery(tail=2, follow=True), lambda: over)
    assert [line.text for line in next(batches)] == ["worker:0 line 9", "worker:1 line 9"]
    assert next(batches) == []
    counted.write("worker:0", b" is near\nmore\n")
    assert [line.text for line in next(batches)] == ["the end is near", "more"]
    counted.append("worker:1", b"unindexed\n")
    over = True
    rest = list(itertools.chain.from_iterable(batches))
    assert [(line.text, line.ts) for line in rest] == [("unindexed", None)]


def test_truncated_log_is_shown_from_its_new_beginning(counted: Writer) -> None:
    counted.path("worker:0").write_bytes(b"")
    counted.poll()
    counted.write("worker:0", b"fresh\n")
    lines = ask(counted.dir, LogQuery(tasks=frozenset({"worker:0"})))
    assert [(line.text, line.seq) for line in lines] == [("fresh", 1)]
    assert ask(counted.dir, LogQuery(tasks=frozenset({"worker:0"}), tail=5)) == lines


def test_missing_logs_are_empty(tmp_path: Path) -> None:
    assert ask(tmp_path / "nowhere", LogQuery(tail=5)) == []
    assert raw(tmp_path / "nowhere", LogQuery()) == b""


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["worker:0", "worker:1"]), st.sampled_from([b"a", b"b\n", b"\n", b"cc\ndd\ne"])
        ),
        max_size=15,
    ),
    st.integers(0, 8),
    st.sampled_from([None, "a", "[bd]"]),
)
def test_tail_is_the_end_of_the_full_output(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes]], count: int, grep: str | None
) -> None:
    writer = Writer(tmp_path_factory.mktemp("logs"))
    for task, data in writes:
        writer.write(task, data)
    writer.close()
    everything = ask(writer.dir, LogQuery(lines=LineFilter(grep=grep)))
    assert ask(writer.dir, LogQuery(lines=LineFilter(grep=grep), tail=count)) == (
        everything[-count:] if count else []
    )
    if grep is not None:
        whole = ask(writer.dir, LogQuery())
        assert everything == [line for line in whole if re.search(grep, line.text)]


def test_reader_at_the_tail_begins_with_exactly_these_lines(writer: Writer) -> None:
    """Also in a small log, and where one record of the index has many lines."""
    writer.write("worker:0", b"".join(b"zero %d\n" % number for number in range(10)))
    writer.write("worker:1", b"".join(b"one %d\n" % number for number in range(10)) + b"not whole")
    writer.poll()
    everything = [b"%s %d" % (word, number) for word in (b"zero", b"one") for number in range(10)]
    for count in (0, 1, 7, 20, 21):
        with LogReader(writer.dir, None, position_of_tail(writer.dir, None, count)) as reader:
            lines = b"".join(chunk.data for chunk in read_all(reader)).splitlines()
        assert lines == [*(everything[-count:] if count else ()), b"not whole"]


def test_tail_splits_blocks() -> None:
    tail = LastLines(3)
    tail.extend([Block("worker:0", 1, None, b"a\nb\nc\n"), Block("worker:1", 1, None, b"d\ne\n")])
    assert [(block.data, block.seq) for block in tail.take()] == [(b"c\n", 3), (b"d\ne\n", 1)]
    assert tail.take() == []


def test_parse_when() -> None:
    assert parse_when("5m", 1000.0) == 700.0
    assert parse_when("1h30m", 10_000.0) == 4600.0
    assert parse_when("2026-01-02T03:04:05+00:00", 0.0) == 1767323045.0
    for nonsense in ("yesterday", "", "-5m"):
        with pytest.raises(ValueError, match="neither a time ago"):
            parse_when(nonsense, 1000.0)


def make_hole(writer: Writer, size: int, indexed: bool) -> None:
    """Write a line, a hole and another line."""
    writer.write("worker:0", b"first\n")
    with writer.path("worker:0").open("r+b") as file:
        file.truncate(size)
    if indexed:
        writer.poll(after_s=10.0)
    writer.append("worker:0", b"\nlast\n")
    if indexed:
        writer.poll(after_s=10.0)


@pytest.mark.parametrize("indexed", [True, False])
def test_hole_in_a_log_is_not_read(writer: Writer, indexed: bool) -> None:
    """A task can make its log longer without writing. Reading the zeros would take minutes."""
    make_hole(writer, 4 << 30, indexed)
    for query in (LogQuery(tail=2), LogQuery(lines=LineFilter(grep="first|last|\u2400"))):
        *_, before, last = ask(writer.dir, query)
        assert (last.text, last.seq) == ("last", 3), query
        assert set(before.text) == {"\u2400"} and len(before.text) < 4 << 20


def test_hole_in_raw_output_has_its_whole_length(writer: Writer) -> None:
    make_hole(writer, 8 << 20, indexed=True)
    assert raw(writer.dir, LogQuery()) == writer.path("worker:0").read_bytes()
