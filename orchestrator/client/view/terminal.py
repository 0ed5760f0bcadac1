"""The terminal view: the tasks' lines stream above a live footer. `open_view` chooses between it and the plain view."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import terminal_size
from typing import Protocol

from rich.cells import cell_len

from orchestrator.client.view import output
from orchestrator.client.view.aftermath import Aftermath, first_failure
from orchestrator.client.view.amounts import size
from orchestrator.client.view.folding import Folder
from orchestrator.client.view.layout import DIM, Cell, broken, painted, without_colour, wrapped
from orchestrator.client.view.log_line import LineStyle, line_prefix, size_note, truncation_note
from orchestrator.client.view.output import Output
from orchestrator.client.view.plain import PlainView
from orchestrator.client.view.progress_cells import LossTrend
from orchestrator.client.view.screen_queue import MAX_BYTES, MAX_LINES, SCREEN_LINE_BYTES, Piece, ScreenQueue
from orchestrator.client.view.tables import Moment, footer_lines
from orchestrator.core.text.clean import clean_line, is_clean, last_frame, safe_lines
from orchestrator.core.text.counted import counted
from orchestrator.store.logs.lines import Block, Chunk, LineAssembler
from orchestrator.store.logs.merge import LogReader

FRAME_S = 0.1
# Limits of one frame; the rest waits for the next.
_FRAME_LINES = 2_000
_FRAME_BYTES = 512 << 10
# Output within this distance is read even if it is skipped, so that the skipped lines can be counted.
_MAX_LAG_BYTES = 64 << 20
# The supervisor decides within this time what follows the exit of a task.
_REACTION_S = 1.0
# Terminals with synchronized output draw the frame in one step; others ignore these sequences.
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"
_ERASE_LINE, _UP = "\x1b[2K", "\x1b[A"
_NEW_LINE = "\r\n"
# Begins the rows of a line after its first; those of a message of orch.
_CONTINUED, _MESSAGE_INDENT = "| ", "  "
# Begins the messages that are wrapped between words. Stacks have their own indentation.
_SPEAKER = "orch: "


class Target(Protocol):
    """Where frames are written: Output documents the methods."""

    def write(self, data: bytes) -> None: ...
    def drain(self, timeout: float) -> bool: ...


class View(Protocol):
    """The methods that PlainView and TerminalView have in common; they are documented there."""

    @property
    def backlog(self) -> int: ...
    def show(self, chunks: Iterable[Chunk]) -> None: ...
    def hurry(self) -> None: ...
    def catch_up(self, reader: LogReader) -> None: ...
    def say(self, text: str) -> None: ...
    def focus(self, task: str | None) -> None: ...
    def update(self, moment: Moment) -> None: ...
    def frame(self, now: float) -> float | None: ...
    def drain(self, timeout: float) -> bool: ...
    def pause(self) -> None: ...
    def finish(self) -> None: ...


def open_view(
    out: Output,
    err: Output,
    style: LineStyle,
    environ: Mapping[str, str],
    folder: Folder | None = None,
    *,
    footer: bool = True,
) -> View:
    """Return a TerminalView if `out` is a capable terminal and a footer is wanted, else a PlainView, which does not
    fold lines."""
    fd = out.fileno()
    if footer and output.is_capable(fd, environ):
        return TerminalView(
            out, style, lambda: output.terminal_size(fd), lambda: output.is_in_foreground(fd), folder
        )
    return PlainView(out, err, style)


class TerminalView:
    """Lines and footer of one terminal. It never blocks: a slow terminal gets fewer frames.

    The caller passes chunks and states, and calls `frame` again after the seconds that it returned.
    """

    def __init__(
        self,
        out: Target,
        style: LineStyle,
        size: Callable[[], terminal_size],
        is_in_foreground: Callable[[], bool] = lambda: True,
        folder: Folder | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`size` returns the terminal's current size. The footer is drawn in the foreground only. Without `folder`
        every line is shown."""
        self._out = out
        self._style = style
        self._size = size
        self._is_in_foreground = is_in_foreground
        self._folder = folder
        self._aftermath = Aftermath()
        self._focus: str | None = None
        # When the state was last set. Lines wait for a state that is newer than they are.
        self._updated = 0.0
        self._wall_clock = wall_clock
        self._assembler = LineAssembler()
        self._queue = ScreenQueue()
        self._moment: Moment | None = None
        self._arrivals: dict[str, float] = {}
        self._losses: dict[str, LossTrend] = {}
        self._max_lag_bytes = _MAX_LAG_BYTES
        self._skipped: Counter[str] = Counter()
        self._footer: list[str] = []
        self._next_frame = 0.0

    @property
    def backlog(self) -> int:
        """Always 0: chunks are accepted at any time, and old lines are skipped."""
        return 0

    def show(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks for the next frames."""
        for chunk in chunks:
            if chunk.time is not None:
                self._arrivals[chunk.task] = chunk.time
            self._fold_blocks(self._assembler.feed(chunk))

    def hurry(self) -> None:
        """The user has stopped the run: more of the old output is skipped from now on."""
        self._max_lag_bytes = _MAX_LAG_BYTES // 16

    def catch_up(self, reader: LogReader) -> None:
        """Skip what is too far behind even to count its lines."""
        for task, skipped in reader.skip_old(self._max_lag_bytes).items():
            self._assembler.forget(task)
            self._skipped[task] += skipped

    def say(self, text: str) -> None:
        """Show a message of orch, in its place between the tasks' lines."""
        if self._folder is not None:
            self._queue_blocks(self._folder.release_all())
            self._push(self._aftermath.flush())
        for line in safe_lines(text).split("\n"):
            self._queue.say(line)

    def focus(self, task: str | None) -> None:
        """Show only the lines of this task from now on; None: those of all."""
        self._focus = task

    def update(self, moment: Moment) -> None:
        """Set what the footer shows from the next frame on. The times of the last lines and the trends of
        the losses are added here."""
        self._updated = self._wall_clock()
        to_monotonic = moment.now - self._updated
        last_lines = {task: at + to_monotonic for task, at in self._arrivals.items()}
        for name, task in moment.state.tasks.items():
            if task.progress.loss is not None:
                self._losses.setdefault(name, LossTrend()).add(task.progress.loss)
        trends = {name: losses.text() for name, losses in self._losses.items()}
        self._moment = replace(moment, last_lines=last_lines, trends=trends)
        if self._folder is not None:
            tasks = moment.state.tasks.values()
            # Lines after an exit wait until it is known whether it was a failure.
            ended_after = moment.now - _REACTION_S
            self._folder.expect(
                task.name
                for task in tasks
                if self._focus in (None, task.name)
                and (task.ended_mono is None or task.ended_mono > ended_after)
            )
            self._push(self._aftermath.begin(first_failure(moment.state, -to_monotonic)))

    def frame(self, now: float) -> float:
        """Paint a frame if one is due at `now` (monotonic seconds). Return the seconds until the next one."""
        if now < self._next_frame:
            return self._next_frame - now
        self._next_frame = now + FRAME_S
        if self._folder is not None:
            self._queue_blocks(self._folder.release(self._updated))
        # A terminal that has not taken the last frame would only be later with another one.
        if self._out.drain(0.0):
            self._paint(_FRAME_LINES, _FRAME_BYTES, with_footer=True)
        return FRAME_S

    def drain(self, timeout: float) -> bool:
        """Give the terminal up to `timeout` seconds to take what was painted. Return whether it has."""
        return self._out.drain(timeout)

    def pause(self) -> None:
        """Paint what waits and remove the footer, until the next frame."""
        self._paint(_FRAME_LINES, _FRAME_BYTES, with_footer=False)

    def finish(self) -> None:
        """After the last chunk: paint all that waits and remove the footer. `drain` afterwards."""
        self._fold_blocks(self._assembler.flush())
        if self._folder is not None:
            self._queue_blocks(self._folder.finish())
            self._push(self._aftermath.flush())
        self._paint(MAX_LINES, MAX_BYTES, with_footer=False)

    def _fold_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if self._focus not in (None, block.task):
                continue
            self._queue_blocks([block] if self._folder is None else self._folder.feed(block))

    def _queue_blocks(self, blocks: Iterable[Block]) -> None:
        self._push(blocks if self._folder is None else self._aftermath.feed(blocks))

    def _push(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.lost:
                self._queue.say(truncation_note(block.task, block.lost))
            else:
                self._queue.push(block)

    def _paint(self, max_lines: int, max_bytes: int, *, with_footer: bool) -> None:
        columns, height = self._size()
        if not self._is_in_foreground():
            # The shell has written its prompt below the footer, where the next frame would erase it.
            self._footer = []
            with_footer = False
        lines = self._skip_notes()
        for piece in self._queue.pop(max_lines, max_bytes):
            lines += screen_lines(piece, self._style, columns)
        footer: list[str] = []
        if with_footer and self._moment is not None:
            footer = footer_lines(self._moment, columns, height, colour=self._style.colour)
        if not lines and footer == self._footer:
            return
        text = _BEGIN_FRAME + _erase(self._footer, columns)
        text += "".join(line + _NEW_LINE for line in lines) + _NEW_LINE.join(footer) + _END_FRAME
        self._footer = footer
        self._out.write(text.encode("utf-8", "replace"))

    def _skip_notes(self) -> list[str]:
        notes = [f"... {size(amount)} skipped ({task})" for task, amount in self._skipped.items()]
        notes += [
            f"... {counted(count, 'line')} skipped ({task})"
            for task, count in self._queue.take_skipped().items()
        ]
        self._skipped.clear()
        return [painted(note, DIM, colour=self._style.colour) for note in notes]


def screen_lines(piece: Piece, style: LineStyle, columns: int) -> list[str]:
    """The lines of a piece as rows of the screen."""
    if piece.task is None:
        text = clean_line(piece.data, colour=style.colour)
        if text.startswith(_SPEAKER):
            words = [Cell(text.removeprefix(_SPEAKER))]
            return wrapped(Cell(_SPEAKER), words, columns, colour=False, is_limited=False)
        return broken("", text, columns, _MESSAGE_INDENT)
    prefix = line_prefix(piece.task, piece.time, style)
    shown = _shown_lines(piece, colour=style.colour)
    if not prefix:
        return shown
    room = columns - cell_len(without_colour(prefix))
    rows = []
    for line in shown:
        # Nearly all lines of a flood fit, and broken() takes longer to find that out.
        if len(line) <= room and line.isascii() and "\t" not in line:
            rows.append(prefix + line)
        else:
            rows += broken(prefix, line, columns, _CONTINUED)
    return rows


def _shown_lines(piece: Piece, *, colour: bool) -> list[str]:
    lines = piece.data.removesuffix(b"\n").split(b"\n")
    if not piece.full_size and is_clean(piece.data) and max(map(len, lines)) <= SCREEN_LINE_BYTES:
        return [line.decode() for line in lines]
    return [_screen_line(line, piece.full_size, colour=colour) for line in lines]


def _screen_line(line: bytes, full_size: int, *, colour: bool) -> str:
    frame = last_frame(line)
    if not full_size and len(frame) <= SCREEN_LINE_BYTES:
        return clean_line(line, colour=colour)
    full_size = full_size or len(line)
    shown = frame[:SCREEN_LINE_BYTES]
    # The cut may have split a character.
    text = clean_line(shown, colour=colour).removesuffix("\ufffd")
    return f"{text} {painted(size_note(full_size), DIM, colour=colour)}"


def _erase(footer: list[str], columns: int) -> str:
    """The sequence that erases `footer`. A terminal that became narrower has wrapped its lines."""
    if not footer:
        return ""
    rows = sum(max(1, -(-cell_len(without_colour(line)) // max(1, columns))) for line in footer)
    # Never from the top left corner: tmux then moves what is erased into its history.
    return "\r" + f"{_ERASE_LINE}{_UP}" * (rows - 1) + _ERASE_LINE
