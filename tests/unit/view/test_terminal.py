"""The terminal view on a real pseudo-terminal."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from moments import exited, moment, progressed, running
from screen import Screen, Watched

from orchestrator.client.view.log_line import LineStyle
from orchestrator.client.view.output import Output, is_capable, wants_colour
from orchestrator.client.view.plain import PlainView
from orchestrator.client.view.screen_queue import MAX_LINES
from orchestrator.client.view.terminal import TerminalView, open_view
from orchestrator.core.state.events import Progress
from orchestrator.request.settings.request import ColorMode
from orchestrator.store.directory import Directory
from orchestrator.store.logs.lines import Chunk
from orchestrator.store.logs.merge import LogReader
from orchestrator.store.logs.writer import LogStore

# More lines than the view keeps.
_MANY = MAX_LINES + 10_000


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Screen() as screen:
        made = Watched(screen)
        yield made
        made.close()


def chunk(data: bytes, task: str = "worker:0", lost: int = 0) -> Chunk:
    return Chunk(task, 1, 0.0, 0, data, lost)


def test_lines_stream_above_the_footer(watched: Watched) -> None:
    watched.view.update(moment(running(2)))
    watched.view.show([chunk(b"hello\n")])
    first = watched.frame()
    assert first[0] == "worker:0 | hello"
    assert first[1].startswith("digits  running  1m05s")
    assert first[3].startswith("worker:0  running")
    assert first[4].startswith("worker:1  running")
    watched.view.show([chunk(b"again\n", "worker:1"), chunk(b"and more\n")])
    second = watched.frame()
    assert second[:3] == ["worker:0 | hello", "worker:1 | again", "worker:0 | and more"]
    assert second[3:] == first[1:]


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


def test_footer_is_removed_at_end_of_run(watched: Watched) -> None:
    watched.view.update(moment(running(3)))
    watched.view.show([chunk(b"a\nlast")])
    watched.frame()
    assert watched.finish() == ["worker:0 | a", "worker:0 | last"]
    assert watched.screen.cursor_column == 0


def test_frame_without_changes_writes_nothing(watched: Watched) -> None:
    watched.view.update(moment(running(2)))
    watched.frame()
    written = len(watched.screen.written)
    watched.frame()
    assert len(watched.screen.written) == written


def test_frame_rate_is_limited(watched: Watched) -> None:
    watched.view.show([chunk(b"a\n")])
    assert watched.view.frame(5.0) == pytest.approx(0.1)
    watched.view.show([chunk(b"b\n")])
    assert watched.view.frame(5.04) == pytest.approx(0.06)
    assert watched.drained() == ["worker:0 | a"]
    watched.view.frame(5.1)
    assert watched.drained() == ["worker:0 | a", "worker:0 | b"]


def test_task_output_cannot_move_cursor(watched: Watched) -> None:
    watched.view.update(moment(running(1)))
    watched.view.show([chunk(b"\x1b[2J\x1b[Hclear\n\x1b]0;title\x07title\n\x1b[5Aup\n")])
    watched.view.show([chunk(b"\x1bcreset\n\x1b[?1049halternate\n\x9b2J8 bit\n")])
    assert watched.frame()[:6] == [
        "worker:0 | clear",
        "worker:0 | title",
        "worker:0 | up",
        "worker:0 | reset",
        "worker:0 | alternate",
        "worker:0 | \ufffd2J8 bit",
    ]


def test_markup_is_shown_as_text(watched: Watched) -> None:
    watched.view.show([chunk(b"[bold red]x[/bold red] [/] :smile: {0} %s\n")])
    assert watched.frame() == ["worker:0 | [bold red]x[/bold red] [/] :smile: {0} %s"]


def test_progress_bar_is_one_line(watched: Watched) -> None:
    watched.view.show([chunk(b"\r10%"), chunk(b"\r20%")])
    watched.frame()
    watched.view.show([chunk(b"\r30%\n")])
    assert watched.frame() == ["worker:0 | 30%"]


@pytest.mark.parametrize("frames", [90, 2_000])
def test_last_frame_of_long_progress_bar_is_shown(watched: Watched, frames: int) -> None:
    frame = b"\x08" * 60 + b"\r%4d/2000 [====>....] - ETA: 0s - loss: 0.1000"
    watched.view.show([chunk(b"".join(frame % step for step in range(1, frames + 1)) + b"\nnext\n")])
    assert watched.frame() == [
        f"worker:0 | {frames:4d}/2000 [====>....] - ETA: 0s - loss: 0.1000",
        "worker:0 | next",
    ]


def test_long_line_is_cut_and_shows_its_size(watched: Watched) -> None:
    watched.view.show([chunk(b"x" * (1 << 20)) for _ in range(10)])
    watched.view.show([chunk(b"\nnext\n")])
    *rows, last = watched.frame()
    assert "".join(row[11:] for row in rows).endswith("xxx … 10,485,760 bytes, orch logs --raw shows all")
    assert last == "worker:0 | next"
    assert len(rows) < 70


def test_cut_does_not_split_character(watched: Watched) -> None:
    watched.view.show([chunk("é".encode() * 5_000 + b"\n"), chunk(b"x" + "é".encode() * 5_000 + b"\n")])
    shown = "".join(watched.frame())
    assert "\ufffd" not in shown
    assert shown.count("10,000 bytes") == 1
    assert shown.count("10,001 bytes") == 1


def test_flood_is_skipped_and_counted(watched: Watched) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(_MANY))
    watched.view.show([chunk(lines), chunk(b"short\n", "worker:1")])
    watched.view.say("orch: a word")
    watched.frame()
    watched.finish()
    shown = watched.screen.written.decode().replace("\r\r\n", "\r\n")
    (skipped,) = re.findall(r"\.\.\. ([\d,]+) lines skipped \(worker:0\)", shown)
    seen = [int(n) for n in re.findall(r"line (\d+)\r\n", shown)]
    assert len(seen) + int(skipped.replace(",", "")) == _MANY
    # The end of the flood is shown, in order and without a gap.
    assert seen == list(range(seen[0], _MANY))
    assert "worker:1 | short" in shown
    assert "orch: a word" in shown


def test_output_far_behind_is_skipped(watched: Watched, tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    with LogStore(Directory.at(tmp_path)) as store:
        store.add("worker:0", 1, log.name)
        with log.open("ab") as file:
            file.write(b"early\nnever fin")
            file.flush()
            store.finish("worker:0", 0.0)
            file.truncate(200 << 20)  # a hole: no disk is filled
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
            file.flush()
            store.finish("worker:0", 0.0)
            file.write(b"late\n")
    with LogReader(tmp_path) as reader:
        watched.view.show(reader.read(140))
        watched.frame()
        watched.view.catch_up(reader)
        watched.view.show(reader.read())
        assert watched.frame() == ["worker:0 | early", "... 210 MB skipped (worker:0)", "worker:0 | late"]


def test_size_of_frame_is_bounded(watched: Watched) -> None:
    for _ in range(10):
        watched.view.show([chunk(b"y\n" * 500_000)])
    watched.frame()
    assert len(watched.screen.written) < 1 << 20


def test_stopped_terminal_does_not_block(watched: Watched) -> None:
    """The terminal is not read, as after Ctrl-S."""
    watched.view.update(moment(running(2)))
    for number in range(20):
        watched.view.show([chunk(b"line\n" * 10_000)])
        watched.view.frame(float(number))
    assert not watched.view.drain(0.0)
    shown = watched.finish()
    assert shown[-1] == "worker:0 | line"
    assert b" lines skipped (worker:0)" in watched.screen.written


def test_messages_keep_their_place_between_lines(watched: Watched) -> None:
    watched.view.show([chunk(b"before\n")])
    watched.view.say("orch: port taken, trying another")
    watched.view.show([chunk(b"after\n"), chunk(b"", lost=5)])
    assert watched.frame() == [
        "worker:0 | before",
        "orch: port taken, trying another",
        "worker:0 | after",
        "worker:0 truncated its own log: 5 bytes lost",
    ]


def test_message_is_wrapped_between_words(watched: Watched) -> None:
    words = ["orch:", *(f"word-{n}" for n in range(30))]
    watched.view.say(" ".join(words))
    rows = watched.finish()
    assert len(rows) > 1
    assert " ".join(rows).split() == words
    assert all(row.startswith("      word") for row in rows[1:])


def test_footer_is_erased_after_terminal_became_narrower(watched: Watched) -> None:
    watched.view.show([chunk(b"keep %d\n" % n) for n in range(3)])
    watched.view.update(moment(running(2)))
    watched.frame()
    watched.screen.resize(40, 24)
    watched.view.update(moment(running(2), now=99.0))
    shown = watched.frame()
    assert sum("digits" in line for line in shown) == 1
    assert sum("worker:1" in line for line in shown) == 1
    assert all(len(line) < 40 for line in shown)


@pytest.mark.parametrize("columns", [1, 5, 20, 40, 80, 200])
@pytest.mark.parametrize("lines", [1, 3, 8, 24])
def test_footer_fits_any_terminal(columns: int, lines: int) -> None:
    with Screen(columns, lines) as screen:
        watched = Watched(screen)
        progress = Progress(epoch=2, epochs=5, step=123, steps=1000, loss=0.123, steps_per_s=12.0)
        watched.view.update(moment(running(20, progressed("worker:1", progress), exited("worker:19", 3))))
        for _ in range(3):
            watched.view.show([chunk(b"x\n")])
            watched.frame()
        shown = watched.finish()
        watched.close()
    # A wrapped footer line would leave text behind.
    assert "".join(shown).replace(" ", "") == "worker:0|x" * 3


def test_colour_is_reset_at_end_of_line() -> None:
    with Screen() as screen:
        watched = Watched(screen, LineStyle(colour=True))
        watched.view.show([chunk(b"\x1b[31mred\n")])
        assert watched.frame() == ["worker:0 | red"]
        watched.close()
    assert b"\x1b[31mred\x1b[0m\r" in screen.written


def test_no_colour_is_written_without_colour(watched: Watched) -> None:
    watched.view.update(moment(running(2, exited("worker:1", 1))))
    watched.view.show([chunk(b"\x1b[31mred\n")])
    watched.frame()
    assert re.search(rb"\x1b\[[0-9;]*m", watched.screen.written) is None


def test_view_and_colour_depend_on_output(tmp_path: Path) -> None:
    err = Output(2)
    with Screen() as screen, (tmp_path / "file").open("wb") as file:
        terminal, plain = Output(screen.fd), Output(file.fileno())
        env = {"TERM": "xterm-256color"}
        assert isinstance(open_view(terminal, err, LineStyle(), env), TerminalView)
        assert isinstance(open_view(terminal, err, LineStyle(), env, footer=False), PlainView)
        assert isinstance(open_view(terminal, err, LineStyle(), {"TERM": "dumb"}), PlainView)
        assert isinstance(open_view(terminal, err, LineStyle(), {}), PlainView)
        assert isinstance(open_view(plain, err, LineStyle(), env), PlainView)
        assert is_capable(screen.fd, env)
        assert wants_colour(ColorMode.AUTO, screen.fd, env)
        assert not wants_colour(ColorMode.AUTO, screen.fd, env | {"NO_COLOR": "1"})
        assert wants_colour(ColorMode.AUTO, screen.fd, env | {"NO_COLOR": ""})
        assert not wants_colour(ColorMode.AUTO, file.fileno(), env)
        assert wants_colour(ColorMode.ALWAYS, file.fileno(), {"NO_COLOR": "1"})
        assert not wants_colour(ColorMode.NEVER, screen.fd, env)
        terminal.close()
        plain.close()
    err.close()


def test_footer_is_not_drawn_in_background() -> None:
    """After Ctrl-Z and `bg`, the shell's prompt below the footer is not overwritten or erased."""
    with Screen() as screen:
        out, foreground = Output(screen.fd), True
        view = TerminalView(out, LineStyle(), screen.size, lambda: foreground)
        view.update(moment(running(2)))
        view.show([chunk(b"before\n")])
        view.frame(1.0)
        before = screen.shown()
        assert before[0] == "worker:0 | before" and any("TASK" in line for line in before)
        foreground = False
        os.write(screen.fd, b"\r\n[1]+ Stopped\r\n$ bg\r\n$ ")
        view.update(moment(running(2), now=99.0))
        view.frame(2.0)
        waiting = [*before, "[1]+ Stopped", "$ bg", "$"]
        assert screen.shown() == waiting
        view.show([chunk(b"meanwhile\n")])
        view.frame(3.0)
        assert screen.shown() == [*waiting[:-1], "$ worker:0 | meanwhile"]
        foreground = True
        view.frame(4.0)
        assert screen.shown()[-2].startswith("worker:0  running")
        view.finish()
        assert screen.shown() == [*waiting[:-1], "$ worker:0 | meanwhile"]
        out.close()


def test_words_keep_their_lines_and_steer_nothing(watched: Watched) -> None:
    watched.view.say("orch: no \x1b[2J/ev\x1b]0;t\x07il\nand more")
    assert watched.frame() == ["orch: no /evil", "and more"]


def test_no_descriptor_is_left() -> None:
    gc.collect()  # what other tests have left is not closed meanwhile
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with Screen() as screen:
        Watched(screen).close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
