"""The plain view: merged lines for pipes and files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Self

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.client.view.layout import painted, task_colour, without_colour
from orchestrator.client.view.log_line import LineStyle, format_block, line_prefix, local_time
from orchestrator.client.view.output import Output
from orchestrator.client.view.plain import PlainView
from orchestrator.core.text.clean import clean_line
from orchestrator.request.settings.request import TimeFormat
from orchestrator.store.directory import Directory
from orchestrator.store.logs.lines import Block, Chunk
from orchestrator.store.logs.merge import LogReader
from orchestrator.store.logs.writer import LogStore


class Shown:
    """A PlainView that writes to files."""

    def __init__(self, directory: Path) -> None:
        self._paths = directory / "out", directory / "err"
        self._fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in self._paths]
        self.view = PlainView(Output(self._fds[0]), Output(self._fds[1]), LineStyle())

    @property
    def out(self) -> bytes:
        return self._paths[0].read_bytes()

    @property
    def err(self) -> bytes:
        return self._paths[1].read_bytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


def chunk(index: int, data: bytes, lost: int = 0) -> Chunk:
    return Chunk(f"worker:{index}", 1, 1_700_000_000.25, 0, data, lost)


def test_lines_are_merged(tmp_path: Path) -> None:
    colour = [chunk(0, b"red: \x1b[3"), chunk(0, b"1mtext\x1b"), chunk(0, b"[0m\n")]
    rows: dict[str, tuple[list[Chunk], bytes]] = {
        "each has its task's prefix": (
            [chunk(0, b"a\nb\n"), chunk(1, b"c\n\n")],
            b"worker:0 | a\nworker:0 | b\nworker:1 | c\nworker:1 | \n",
        ),
        "no two are mixed": (
            [chunk(0, b"be"), chunk(1, b"other\n"), chunk(0, b"gin\n")],
            b"worker:1 | other\nworker:0 | begin\n",
        ),
        "one without an end waits": ([chunk(0, b"no newline")], b""),
        "a progress bar is one": (
            [*(chunk(0, b"\r%d%%" % percent) for percent in (10, 50, 100)), chunk(0, b"\n")],
            b"worker:0 | 100%\n",
        ),
        "a control sequence is removed, also if it is split": (colour, b"worker:0 | red: text\n"),
    }
    for what, (chunks, out) in rows.items():
        with Shown(tmp_path) as shown:
            shown.view.show(chunks)
            assert (shown.out, shown.err) == (out, b""), what
            shown.view.finish()
            assert shown.out == (out or b"worker:0 | no newline\n"), what


def test_truncated_log_is_reported_on_stderr(tmp_path: Path) -> None:
    with Shown(tmp_path) as shown:
        shown.view.show([chunk(0, b"a\n"), chunk(0, b"", lost=1234), chunk(0, b"b\n")])
        assert shown.out == b"worker:0 | a\nworker:0 | b\n"
        assert b"worker:0 truncated its own log: 1,234 bytes lost\n" in shown.err


def test_lines_are_skipped_and_reported_after_stop_only(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    with LogStore(Directory.at(tmp_path)) as store:
        store.add("worker:0", 1, log.name)
        for line in (b"x" * (17 << 20) + b"\n", b"last\n"):
            with log.open("ab") as file:
                file.write(line)
            store.finish("worker:0", 0.0)
    with LogReader(tmp_path) as reader, Shown(tmp_path) as shown:
        shown.view.catch_up(reader)
        shown.view.show(reader.read(1000))
        shown.view.hurry()
        shown.view.catch_up(reader)
        shown.view.show(reader.read())
        shown.view.finish()
        assert shown.out == b"worker:0 | last\n"
        assert shown.err == b"orch: skipped 18 MB of worker:0; `orch logs` shows all\n"


def test_oversized_line_shows_its_size() -> None:
    block = Block("worker:0", 1, None, b"xxxx\n", omitted=20_000_000)
    assert format_block(block, LineStyle()).decode() == (
        "worker:0 | xxxx… 20,000,004 bytes, orch logs --raw shows all\n"
    )


data_blocks = st.binary(max_size=100) | st.lists(
    st.sampled_from([b"text", b"\n", b"\r", b"\r\n", b"\x1b[31m", b"\xff", "é".encode(), b"\t"]), max_size=20
).map(b"".join)
styles = st.builds(LineStyle, st.booleans(), st.sampled_from([None, *TimeFormat]), st.booleans())


@given(data_blocks, styles, st.sampled_from([None, 1_700_000_000.5]))
def test_block_is_shown_like_its_single_lines(data: bytes, style: LineStyle, time: float | None) -> None:
    """The fast code for whole blocks and the slow code for single lines agree."""
    data += b"\n"
    prefix = line_prefix("worker:3", time, style)
    expected = "".join(
        f"{prefix}{clean_line(line, colour=style.colour)}\n"
        for line in data.replace(b"\r\n", b"\n").split(b"\n")[:-1]
    )
    assert format_block(Block("worker:3", 1, time, data), style).decode() == expected


def test_prefix_time_and_colour() -> None:
    block = Block("worker:0", 1, 1_700_000_000.25, b"a\n")
    when = local_time(block.time, TimeFormat.ISO)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.250[+-]\d\d:\d\d", when)
    assert format_block(block, LineStyle(prefix=False)) == b"a\n"
    assert format_block(block, LineStyle(timestamps=TimeFormat.ISO)).decode() == f"worker:0 | {when} a\n"
    short = LineStyle(timestamps=TimeFormat.TIME)
    assert format_block(block, short).decode() == f"worker:0 | {when[11:19]} a\n"
    coloured = format_block(block, LineStyle(colour=True)).decode()
    assert coloured == f"{painted('worker:0', task_colour('worker:0'), colour=True)} | a\n"
    assert without_colour(coloured) == "worker:0 | a\n"
    for style, width in ((LineStyle(timestamps=TimeFormat.ISO), len(when)), (short, 8)):
        unknown = format_block(block._replace(time=None), style).decode()
        assert unknown == f"worker:0 | {'-' * width} a\n"


def test_task_has_fixed_colour_that_differs_from_neighbours() -> None:
    colours = [task_colour(f"worker:{n}") for n in range(8)]
    assert len(set(colours)) == 8
    # The same in each process, whatever its hash seed is.
    assert [*colours[:2], task_colour("trainer:0")] == ["36", "33", "95"]
    assert len({task_colour(task) for task in ("chief:0", "worker:0", "ps:0", "evaluator:0")}) == 4
