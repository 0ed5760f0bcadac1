"""Any content of the logs and their index gives safe lines on a screen, and none is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fuzzing import fuzzed, torn
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.client.view.log_line import LineStyle, format_block
from orchestrator.request.settings.request import TimeFormat
from orchestrator.store.logs.index import (
    INDEX_NAME,
    IndexRecord,
    format_record,
    last_records,
    last_truncations,
    log_name,
    parse_records,
    task_of_log,
    tasks_with_logs,
    truncation,
)
from orchestrator.store.logs.lines import Chunk, LineAssembler
from orchestrator.store.logs.merge import LogReader, Position, position_of_time
from orchestrator.store.logs.query import LineFilter, LogQuery, query_blocks, query_lines, query_raw

# Output of a task that may reach a terminal: characters, tabs, line ends, and colour.
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PIECES = [
    *(b"text ", "\u00fc\u2603".encode(), b"\n", b"\n", b"\r", b"\r\n", b"\t", b"\xe2\x82", b"\x00", b"\x08"),
    *(b"\x1b[31m", b"\x1b[2J", b"\x1b]0;title\x07", b"\x1bP", b"\x9b2J", b"\xc2\x9b2J"),
]
written = st.lists(st.sampled_from(PIECES) | st.binary(max_size=12), max_size=14).map(b"".join)
TASKS = ("worker:0", "worker:1", "chief")


chunks = st.lists(st.tuples(st.sampled_from(TASKS), written), max_size=6)


@given(chunks, st.booleans(), st.sampled_from([None, *TimeFormat]))
@fuzzed(80)
def test_screen_gets_only_lines(
    chunks: list[tuple[str, bytes]], colour: bool, timestamps: TimeFormat | None
) -> None:
    """Each line whole behind its task's name, whatever the task wrote: no line can pass for another task's."""
    style = LineStyle(colour=colour, timestamps=timestamps)
    assembler = LineAssembler()
    blocks = [block for task, data in chunks for block in assembler.feed(Chunk(task, 1, 5.0, 0, data))]
    shown = b"".join(format_block(block, style) for block in [*blocks, *assembler.flush()])
    text = shown.decode()
    assert CONTROL.search(COLOUR.sub("", text)) is None
    lines = COLOUR.sub("", text).split("\n")
    assert lines.pop() == ""
    assert all(line.partition(" | ")[0] in TASKS for line in lines)


times = st.floats(0, 2e9) | st.sampled_from([0.0, 999_999_999_999.0])
offsets = st.integers(0, 400) | st.sampled_from([2**31, 10**18 - 1])
records = st.builds(
    IndexRecord, times, st.sampled_from([*TASKS, "worker:999999"]), st.integers(0, 3), offsets, offsets
) | st.builds(truncation, times, st.sampled_from(TASKS), st.integers(1, 2), offsets)
index_lines = records.map(format_record)
other_lines = st.sampled_from([b"\n", b"1.0 worker:0 1 0 5", b"1.0 ../../etc 1 0 5\n", b" -1\n"])
any_line = index_lines | index_lines.flatmap(torn) | st.binary(max_size=20) | other_lines
any_index = st.lists(any_line, max_size=8).map(b"".join)
three_logs = st.lists(written, min_size=3, max_size=3)


@given(any_index)
@fuzzed(80)
def test_any_index_bytes(place: Path, index: bytes) -> None:
    path = place / INDEX_NAME
    path.write_bytes(index)
    found = list(parse_records(index))
    assert [end for end, _ in found] == sorted({end for end, _ in found})
    for _, record in found:
        assert task_of_log(log_name(record.task)) == record.task
        assert "/" not in log_name(record.task)
    assert set(last_truncations(path)) <= {record.task for _, record in found}
    last = last_records(path, len(index), TASKS)
    assert set(last) <= set(TASKS)
    assert position_of_time(place, 1e9) <= Position(len(index))


@given(any_index, three_logs, st.integers(0, 5) | st.none(), st.integers(0, 300))
@example(b"999999999999.0 worker:0 1 0 5\n", [b"a\nb", b"", b""], None, 0)
@example(b"1.0 worker:0 1 0 999999999999999999\n", [b"a\nb", b"", b""], 1, 0)
@fuzzed(80)
def test_logs_are_shown_whatever_their_index_says(
    place: Path, index: bytes, logs: list[bytes], tail: int | None, start: int
) -> None:
    logs_dir = place / "logs"
    logs_dir.mkdir(exist_ok=True)
    (logs_dir / INDEX_NAME).write_bytes(index)
    for task, data in zip(TASKS, logs, strict=True):
        (logs_dir / log_name(task)).write_bytes(data)
    assert set(tasks_with_logs(logs_dir)) == set(TASKS)
    query = LogQuery(tail=tail)
    style = LineStyle(timestamps=TimeFormat.ISO)
    for blocks in query_blocks(logs_dir, query, lambda: True):
        for block in blocks:
            assert CONTROL.search(format_block(block, style).decode()) is None
    for lines in query_lines(logs_dir, LogQuery(lines=LineFilter(grep="e")), lambda: True):
        json.dumps([line._asdict() for line in lines])
    assert all(isinstance(piece, bytes) for piece in query_raw(logs_dir, query, lambda: True))
    with LogReader(logs_dir, position=Position(start)) as reader:
        while reader.read(64) or reader.read_unindexed(64):
            reader.skip_old(16)


@given(three_logs)
@fuzzed(30)
def test_lost_index_loses_no_log(place: Path, logs: list[bytes]) -> None:
    """A killed supervisor leaves no index or half of one: all bytes are shown anyway."""
    logs_dir = place / "bare"
    logs_dir.mkdir(exist_ok=True)
    for task, data in zip(TASKS, logs, strict=True):
        (logs_dir / log_name(task)).write_bytes(data)
    raw = b"".join(query_raw(logs_dir, LogQuery(), lambda: True))
    assert raw == b"".join(logs[TASKS.index(task)] for task in sorted(TASKS))
