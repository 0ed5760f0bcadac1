"""Chooses the view that fits where the output goes: a terminal with a footer, or plain lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol

from orchestrator.runs.log_lines import Chunk
from orchestrator.runs.log_reader import LogReader
from orchestrator.view.footer import Moment
from orchestrator.view.output import Output
from orchestrator.view.plain import LineStyle, PlainView
from orchestrator.view.terminal import TerminalView


class ColorChoice(StrEnum):
    """`--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class View(Protocol):
    """What a client drives: it brings chunks, words and the state, and gives time to paint and to write."""

    @property
    def backlog(self) -> int: ...
    def show(self, chunks: Iterable[Chunk]) -> None: ...
    def hurry(self) -> None: ...
    def catch_up(self, reader: LogReader) -> None: ...
    def say(self, text: str) -> None: ...
    def update(self, moment: Moment) -> None: ...
    def frame(self, now: float) -> float | None: ...
    def drain(self, timeout: float) -> bool: ...
    def finish(self) -> None: ...


def wants_colour(choice: ColorChoice, fd: int, environ: Mapping[str, str]) -> bool:
    """Colour on `fd`? `auto`: on a terminal that is not dumb, unless NO_COLOR is set (no-color.org)."""
    if choice is ColorChoice.AUTO:
        return is_capable(fd, environ) and not environ.get("NO_COLOR")
    return choice is ColorChoice.ALWAYS


def is_capable(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether `fd` is a terminal that knows how to move its cursor."""
    return os.isatty(fd) and environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def open_view(
    out: Output, err: Output, style: LineStyle, environ: Mapping[str, str], *, footer: bool = True
) -> View:
    """The terminal view when `out` is a capable terminal and a footer is wanted, else the plain one."""
    fd = out.fileno()
    if footer and is_capable(fd, environ):
        return TerminalView(out, style, lambda: _size(fd))
    return PlainView(out, err, style)


def _size(fd: int) -> os.terminal_size:
    """The terminal's size; the usual one for a terminal that says it has none (0 x 0)."""
    columns, lines = os.get_terminal_size(fd)
    return os.terminal_size((columns or 80, lines or 24))
