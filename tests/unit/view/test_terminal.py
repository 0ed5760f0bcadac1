"""The terminal view on a real pseudo-terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import exited
from moments import moment, progressed, running
from screen import Watched, chunk, write_log

from orchestrator.client.view.log_line import LineStyle
from orchestrator.client.view.output import Output, wants_colour
from orchestrator.client.view.plain import PlainView
from orchestrator.client.view.screen_queue import MAX_LINES
from orchestrator.client.view.terminal import TerminalView, open_view
from orchestrator.core.state.events import Progress
from orchestrator.request.settings.request import ColorMode
from orchestrator.store.logs.merge import LogReader

# More lines than the view keeps.
_MANY = MAX_LINES + 10_000


@pytest.fixture
def watched(no_leaked_descriptors: None) -> Iterator[Watched]:
    with Watched() as made:
        yield made


def test_lines_stream_above_the_footer_until_the_end(watched: Watched) -> None:
    watched.view.update(moment(running(2)))
    watched.view.show([chunk(b"hello\n")])
    first = watched.frame()
    assert first[0] == "worker:0 | hello"
    assert first[1].startswith("digits  running  1m05s")
    assert [line.split()[0] for line in first[2:]] == ["TASK", "worker:0", "worker:1"]
    watched.view.show([chunk(b"again\n", 1), chunk(b"and more\nlast")])
    lines = ["worker:0 | hello", "worker:1 | again", "worker:0 | and more"]
    assert watched.frame() == [*lines, *first[1:]]
    assert watched.finish() == [*lines, "worker:0 | last"]
    assert watched.cursor_column == 0


def test_table_alone_on_the_screen_is_redrawn_in_place(watched: Watched) -> None:
    """tmux would keep each copy in its history if the whole screen were erased."""
    for now in (75.0, 76.0, 77.0):
        watched.view.update(moment(running(2), now=now))
        shown = watched.frame()
    assert [line.split()[0] for line in shown] == ["digits", "TASK", "worker:0", "worker:1"]
    assert watched.finish() == []


# The last one is a skin tone, which `cell_len` counts as no cell.
@pytest.mark.parametrize("pad", [" ", "x", "\u2800", "\t", "漢", "\x1b[31m ", "\U0001f3fb"])
def test_row_of_a_long_line_never_begins_with_text_of_the_task(watched: Watched, pad: str) -> None:
    """Padded lines would wrap so that a row looks like orch's own last line."""
    faked = "orch: digits-1 succeeded after 3s"
    watched.view.show([chunk(f"{pad * n}{faked}\n".encode()) for n in (34, 35, 36, 68, 69, 70, 149, 150)])
    watched.view.say("notice of " + " " * 60 + faked)
    rows = watched.finish()
    assert all(row.startswith(("worker:0 |", "         |", "notice", "  ")) for row in rows), rows
    assert not [row for row in rows if row.startswith(faked)]
    assert "".join(row[11:] for row in rows).count("succeeded") >= 8


def test_frames_are_few_and_write_only_changes(watched: Watched) -> None:
    watched.view.update(moment(running(2)))
    watched.view.show([chunk(b"a\n")])
    assert watched.view.frame(5.0) == pytest.approx(0.1)
    watched.view.show([chunk(b"b\n")])
    assert watched.view.frame(5.04) == pytest.approx(0.06)
    assert watched.drained()[1].startswith("digits")
    watched.view.frame(5.1)
    assert watched.drained()[:2] == ["worker:0 | a", "worker:0 | b"]
    written = len(watched.written)
    watched.frame()
    assert len(watched.written) == written


def test_lines_are_shown_as_text_in_the_order_of_their_arrival(watched: Watched) -> None:
    bar = b"\x08" * 60 + b"\r%4d/2000 [====>....] - ETA: 0s - loss: 0.1000"
    watched.view.show([chunk(b"\x1b[2J\x1b[H[bold red]x[/bold red] [/] :smile: {0} %s\n")])
    watched.view.say("orch: no \x1b[2J/ev\x1b]0;t\x07il\nand more")
    watched.view.show([chunk(b"".join(bar % step for step in range(1, 2001)) + b"\nnext\n")])
    watched.view.show([chunk(b"", lost=5), chunk(b"\r10%"), chunk(b"\r20%")])
    before = watched.frame()
    watched.view.show([chunk(b"\r30%\n")])
    assert watched.frame() == [*before, "worker:0 | 30%"]
    assert before == [
        "worker:0 | [bold red]x[/bold red] [/] :smile: {0} %s",
        "orch: no /evil",
        "and more",
        "worker:0 | 2000/2000 [====>....] - ETA: 0s - loss: 0.1000",
        "worker:0 | next",
        "worker:0 truncated its own log: 5 bytes lost",
    ]


def test_long_line_is_cut_between_characters_and_shows_its_size(watched: Watched) -> None:
    watched.view.show([chunk(b"x" * (1 << 20)) for _ in range(10)])
    watched.view.show([chunk(b"\nnext\n")])
    *rows, last = watched.frame()
    assert "".join(row[11:] for row in rows).endswith("xxx … 10,485,760 bytes, orch logs --raw shows all")
    assert last == "worker:0 | next" and len(rows) < 70
    watched.view.show([chunk(begin + "é".encode() * 5_000 + b"\n") for begin in (b"", b"x")])
    shown = "".join(watched.frame())
    assert "\ufffd" not in shown
    assert (shown.count("10,000 bytes"), shown.count("10,001 bytes")) == (1, 1)


def test_flood_is_skipped_and_counted(watched: Watched) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(_MANY))
    watched.view.show([chunk(lines), chunk(b"short\n", 1)])
    watched.view.say("orch: a word")
    watched.finish()
    shown = watched.written.decode().replace("\r\r\n", "\r\n")
    (skipped,) = re.findall(r"\.\.\. ([\d,]+) lines skipped \(worker:0\)", shown)
    seen = [int(n) for n in re.findall(r"line (\d+)\r\n", shown)]
    assert len(seen) + int(skipped.replace(",", "")) == _MANY
    # The end of the flood is shown, in order and without a gap.
    assert seen == list(range(seen[0], _MANY))
    assert "worker:1 | short" in shown and "orch: a word" in shown
    assert len(watched.written) < 1 << 20


def test_output_far_behind_is_skipped(watched: Watched, tmp_path: Path) -> None:
    write_log(tmp_path, b"early\nnever fin", 200 << 20, b"\n", b"late\n")
    with LogReader(tmp_path) as reader:
        watched.view.show(reader.read(140))
        watched.frame()
        watched.view.catch_up(reader)
        watched.view.show(reader.read())
        assert watched.frame() == ["worker:0 | early", "... 210 MB skipped (worker:0)", "worker:0 | late"]


def test_stopped_terminal_does_not_block(watched: Watched) -> None:
    """The terminal is not read, as after Ctrl-S."""
    watched.view.update(moment(running(2)))
    for number in range(20):
        watched.view.show([chunk(b"line\n" * 10_000)])
        watched.view.frame(float(number))
    assert not watched.view.drain(0.0)
    assert watched.finish()[-1] == "worker:0 | line"
    assert b" lines skipped (worker:0)" in watched.written


def test_footer_is_erased_after_terminal_became_narrower(watched: Watched) -> None:
    watched.view.update(moment(running(2)))
    watched.frame()
    watched.resize(40, 24)
    watched.view.update(moment(running(2), now=99.0))
    shown = watched.frame()
    assert [sum(word in line for line in shown) for word in ("digits", "worker:1")] == [1, 1]
    assert all(len(line) < 40 for line in shown)


def test_footer_fits_any_terminal() -> None:
    progress = Progress(epoch=2, epochs=5, step=123, steps=1000, loss=0.123, steps_per_s=12.0)
    state = running(20, progressed("worker:1", progress), exited("worker:19", 3))
    wrong = {}
    for columns in (1, 5, 20, 40, 80, 200):
        for lines in (1, 3, 8, 24):
            with Watched(columns, lines) as watched:
                watched.view.update(moment(state))
                for _ in range(3):
                    watched.view.show([chunk(b"x\n")])
                    watched.frame()
                shown = "".join(watched.finish()).replace(" ", "")
            # A wrapped line of the footer would leave text behind.
            if shown != "worker:0|x" * 3 or b"\x1b[3" in watched.written:
                wrong[columns, lines] = shown
    assert not wrong, wrong


def test_footer_is_not_drawn_in_background() -> None:
    """After Ctrl-Z and `bg`, the shell's prompt below the footer is not overwritten or erased."""
    foreground = True
    with Watched(is_in_foreground=lambda: foreground) as watched:
        watched.view.update(moment(running(2)))
        before = watched.frame()
        foreground = False
        os.write(watched.fd, b"\r\n[1]+ Stopped\r\n$ bg\r\n$ ")
        watched.view.update(moment(running(2), now=99.0))
        waiting = [*before, "[1]+ Stopped", "$ bg"]
        assert watched.frame() == [*waiting, "$"]
        watched.view.show([chunk(b"meanwhile\n")])
        assert watched.frame() == [*waiting, "$ worker:0 | meanwhile"]
        foreground = True
        assert watched.frame()[-2].startswith("worker:0  running")
        assert watched.finish() == [*waiting, "$ worker:0 | meanwhile"]


def test_view_and_colour_depend_on_output(watched: Watched, tmp_path: Path) -> None:
    terminal, env = watched.fd, {"TERM": "xterm-256color"}
    with (tmp_path / "file").open("wb") as opened:
        file = opened.fileno()
        for fd, environ, footer, kind in (
            (terminal, env, True, TerminalView),
            (terminal, env, False, PlainView),
            (terminal, {"TERM": "dumb"}, True, PlainView),
            (file, env, True, PlainView),
        ):
            out = Output(fd)
            assert isinstance(open_view(out, out, LineStyle(), environ, footer=footer), kind)
            out.close()
        rows = [
            (ColorMode.AUTO, terminal, env, True),
            (ColorMode.AUTO, terminal, env | {"NO_COLOR": "1"}, False),
            (ColorMode.AUTO, terminal, env | {"NO_COLOR": ""}, True),
            (ColorMode.AUTO, file, env, False),
            (ColorMode.ALWAYS, file, {"NO_COLOR": "1"}, True),
            (ColorMode.NEVER, terminal, env, False),
        ]
        assert [wants_colour(*row[:3]) for row in rows] == [row[3] for row in rows]
