"""A real pseudo-terminal, drawn by pyte: the screen that a user would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from os import terminal_size
from typing import Self

import pyte
from scrolling_screen import ScrollingScreen

from orchestrator.client.view.log_line import LineStyle
from orchestrator.client.view.output import Output
from orchestrator.client.view.terminal import TerminalView


class Screen:
    """The terminal `fd` with `columns` x `lines`; `shown()` returns its lines, with those that scrolled away."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self._master, self.fd = pty.openpty()
        self._screen = ScrollingScreen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)

    def size(self) -> terminal_size:
        return os.get_terminal_size(self.fd)

    def take(self) -> None:
        """Draw the bytes that were written to the terminal so far."""
        while select.select([self._master], [], [], 0)[0]:
            data = os.read(self._master, 65536)
            self.written += data
            self._stream.feed(data)

    def shown(self) -> list[str]:
        self.take()
        lines = [*self._screen.scrolled_text(), *map(str.rstrip, self._screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def cursor_column(self) -> int:
        self.take()
        return int(self._screen.cursor.x)

    def close(self) -> None:
        os.close(self._master)
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Watched:
    """A TerminalView on a Screen, with a clock that the test moves from frame to frame."""

    def __init__(self, screen: Screen, style: LineStyle | None = None) -> None:
        self.screen = screen
        self.out = Output(screen.fd)
        self.now = 0.0
        self.style = style or LineStyle()
        self.view = TerminalView(self.out, self.style, screen.size, wall_clock=lambda: self.now)

    def frame(self) -> list[str]:
        """The screen after the next frame."""
        self.now += 1.0
        self.view.frame(self.now)
        return self.drained()

    def finish(self) -> list[str]:
        self.view.finish()
        return self.drained()

    def drained(self) -> list[str]:
        self.screen.take()
        while not self.view.drain(0.0):
            self.screen.take()
        return self.screen.shown()

    def close(self) -> None:
        self.out.close()
