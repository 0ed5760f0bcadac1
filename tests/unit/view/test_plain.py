"""The plain view for pipes and files: merged lines, and writing to slow and closed readers."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from screen import chunk, write_log

from orchestrator.client.view.layout import painted, task_colour
from orchestrator.client.view.log_line import LineStyle, format_block, line_prefix, local_time
from orchestrator.client.view.output import Output, OutputClosed
from orchestrator.client.view.plain import PlainView
from orchestrator.core.text.clean import clean_line
from orchestrator.request.settings.request import TimeFormat
from orchestrator.store.logs.lines import Block, Chunk
from orchestrator.store.logs.merge import LogReader


class Shown:
    """A PlainView that writes to the new files `out` and `err`."""

    def __init__(self, directory: Path) -> None:
        self._paths = directory / "out", directory / "err"
        self._files = [path.open("wb") for path in self._paths]
        self.view = PlainView(*(Output(file.fileno()) for file in self._files), LineStyle())

    def read(self) -> list[bytes]:
        return [path.read_bytes() for path in self._paths]


def test_lines_are_merged(tmp_path: Path) -> None:
    colour = [chunk(b"red: \x1b[3"), chunk(b"1mtext\x1b"), chunk(b"[0m\n")]
    rows: dict[str, tuple[list[Chunk], bytes]] = {
        "each has its task's prefix": (
            [chunk(b"a\nb\n"), chunk(b"c\n\n", 1)],
            b"worker:0 | a\nworker:0 | b\nworker:1 | c\nworker:1 | \n",
        ),
        "no two are mixed": (
            [chunk(b"be"), chunk(b"other\n", 1), chunk(b"gin\n")],
            b"worker:1 | other\nworker:0 | begin\n",
        ),
        "one without an end waits": ([chunk(b"no newline")], b""),
        "a progress bar is one": (
            [*(chunk(b"\r%d%%" % percent) for percent in (10, 50, 100)), chunk(b"\n")],
            b"worker:0 | 100%\n",
        ),
        "a control sequence is removed, also if it is split": (colour, b"worker:0 | red: text\n"),
        "truncated": ([chunk(b"a\n"), chunk(b"", lost=1234), chunk(b"b\n")], b"worker:0 | a\nworker:0 | b\n"),
    }
    for what, (chunks, out) in rows.items():
        shown = Shown(tmp_path)
        shown.view.show(chunks)
        err = b"worker:0 truncated its own log: 1,234 bytes lost\n" if what == "truncated" else b""
        assert shown.read() == [out, err], what
        shown.view.finish()
        assert shown.read()[0] == (out or b"worker:0 | no newline\n"), what


def test_lines_are_skipped_and_reported_after_stop_only(tmp_path: Path) -> None:
    write_log(tmp_path, b"x" * (17 << 20) + b"\n", b"last\n")
    shown = Shown(tmp_path)
    with LogReader(tmp_path) as reader:
        shown.view.catch_up(reader)
        shown.view.show(reader.read(1000))
        assert shown.read() == [b"", b""]
        shown.view.hurry()
        shown.view.catch_up(reader)
        shown.view.show(reader.read())
    shown.view.finish()
    skipped = b"orch: skipped 18 MB of worker:0; `orch logs` shows all\n"
    assert shown.read() == [b"worker:0 | last\n", skipped]


data_blocks = st.binary(max_size=100) | st.lists(
    st.sampled_from([b"text", b"\n", b"\r", b"\r\n", b"\x1b[31m", b"\xff", "é".encode(), b"\t"]), max_size=20
).map(b"".join)
styles = st.builds(LineStyle, st.booleans(), st.sampled_from([None, *TimeFormat]), st.booleans())


@given(data_blocks, styles, st.sampled_from([None, 1_700_000_000.5]))
def test_block_is_shown_like_its_single_lines(data: bytes, style: LineStyle, time: float | None) -> None:
    """The fast code for whole blocks and the slow code for single lines agree."""
    prefix, data = line_prefix("worker:3", time, style), data + b"\n"
    lines = data.replace(b"\r\n", b"\n").split(b"\n")[:-1]
    expected = "".join(f"{prefix}{clean_line(line, colour=style.colour)}\n" for line in lines)
    assert format_block(Block("worker:3", 1, time, data), style).decode() == expected


def test_prefix_time_colour_and_size() -> None:
    block = Block("worker:0", 1, 1_700_000_000.25, b"a\n")
    when = local_time(block.time, TimeFormat.ISO)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.250[+-]\d\d:\d\d", when)
    iso, short = (LineStyle(timestamps=form) for form in (TimeFormat.ISO, TimeFormat.TIME))
    rows = [
        (block, LineStyle(prefix=False), "a"),
        (block, iso, f"worker:0 | {when} a"),
        (block, short, f"worker:0 | {when[11:19]} a"),
        (block._replace(time=None), iso, f"worker:0 | {'-' * len(when)} a"),
        (block._replace(time=None), short, f"worker:0 | {'-' * 8} a"),
        (block, LineStyle(colour=True), f"{painted('worker:0', task_colour('worker:0'), colour=True)} | a"),
        (
            block._replace(omitted=20_000_000),
            LineStyle(),
            "worker:0 | a… 20,000,001 bytes, orch logs --raw shows all",
        ),
    ]
    found = [format_block(each, style).decode() for each, style, _ in rows]
    assert found == [f"{line}\n" for *_, line in rows]


def test_task_has_fixed_colour_that_differs_from_neighbours() -> None:
    colours = [task_colour(f"worker:{n}") for n in range(8)]
    assert len(set(colours)) == 8
    # The same in each process, whatever its hash seed is.
    assert [*colours[:2], task_colour("trainer:0")] == ["36", "33", "95"]
    assert len({task_colour(task) for task in ("chief:0", "worker:0", "ps:0", "evaluator:0")}) == 4


MUCH = b"0123456789abcdef" * 65536


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest, no_leaked_descriptors: None) -> Iterator[list[int]]:
    """The reader and the writer of a stream. One that a test closes is taken out."""
    if request.param == "pipe":
        made = [*os.pipe()]
    else:
        theirs, ours = socket.socketpair()
        # The default buffer of some machines holds all bytes.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(MUCH) // 8)
        made = [theirs.detach(), ours.detach()]
    yield made
    for fd in made:
        os.close(fd)


def test_slow_reader_does_not_block_and_gets_all_bytes(ends: list[int]) -> None:
    """The descriptor stays blocking: the shell and other programs write to the same file description."""
    reader, writer = ends
    before = fcntl.fcntl(writer, fcntl.F_GETFL)
    out = Output(writer)
    out.write(MUCH)
    assert out.backlog > 0 and not out.drain(0.0)
    assert fcntl.fcntl(writer, fcntl.F_GETFL) == before
    out.write(b"the end")
    got = b""
    while out.backlog:
        got += os.read(reader, 1 << 20)
        out.drain(0.0)
    out.close()
    os.close(ends.pop())
    while data := os.read(reader, 1 << 20):
        got += data
    assert got == MUCH + b"the end"


@pytest.mark.parametrize("begun", [b"", MUCH])
def test_reader_that_closes_raises_output_closed(ends: list[int], begun: bytes) -> None:
    out = Output(ends[1])
    out.write(begun)
    os.close(ends.pop(0))
    with pytest.raises(OutputClosed):
        out.write(b"x")
        out.drain(30.0)
    out.close()


def test_file_is_written_at_its_offset(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        file.write(b"before ")
        file.flush()
        out = Output(file.fileno())
        out.write(MUCH)
        assert out.backlog == 0 and out.drain(0.0)
        out.close()
        file.write(b" after")
    assert (tmp_path / "out").read_bytes() == b"before " + MUCH + b" after"
