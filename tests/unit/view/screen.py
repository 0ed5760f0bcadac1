"""A TerminalView on a real pseudo-terminal, drawn by pyte: the screen that a user would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyte
from scrolling_screen import ScrollingScreen

from orchestrator.client.view.log_line import LineStyle
from orchestrator.client.view.output import Output
from orchestrator.client.view.terminal import TerminalView
from orchestrator.store.directory import Directory
from orchestrator.store.logs.lines import Chunk
from orchestrator.store.logs.writer import LogStore


class Watched:
    """`view` draws on the terminal `fd`; the test moves its clock from frame to frame."""

    def __init__(self, columns: int = 80, lines: int = 24, **fields: Any) -> None:
        """`fields`: of the view."""
        self._master, self.fd = pty.openpty()
        self._screen = ScrollingScreen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._out = Output(self.fd)
        self.written, self.now = b"", 0.0
        self.resize(columns, lines)
        size = partial(os.get_terminal_size, self.fd)
        self.view = TerminalView(self._out, LineStyle(), size, wall_clock=lambda: self.now, **fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        os.close(self._master)
        os.close(self.fd)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)

    @property
    def cursor_column(self) -> int:
        return int(self._screen.cursor.x)

    def frame(self) -> list[str]:
        """The screen after the next frame."""
        self.now += 1.0
        self.view.frame(self.now)
        return self.drained()

    def finish(self) -> list[str]:
        self.view.finish()
        return self.drained()

    def drained(self) -> list[str]:
        """The lines of the screen once all is written, with those that scrolled away."""
        self._take()
        while not self.view.drain(0.0):
            self._take()
        self._take()
        lines = [*self._screen.scrolled_text(), *map(str.rstrip, self._screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _take(self) -> None:
        while select.select([self._master], [], [], 0)[0]:
            data = os.read(self._master, 65536)
            self.written += data
            self._stream.feed(data)


def write_log(directory: Path, *pieces: bytes | int) -> None:
    """Write the log of worker:0 with its index. A number is the size of a hole, which fills no disk."""
    log = directory / "worker-0.log"
    with LogStore(Directory.at(directory)) as store, log.open("wb", buffering=0) as file:
        store.add("worker:0", 1, log.name)
        for piece in pieces:
            if isinstance(piece, int):
                file.seek(piece, os.SEEK_END)
            else:
                file.write(piece)
                store.finish("worker:0", 0.0)


def chunk(data: bytes, index: int = 0, time: float = 0.0, lost: int = 0) -> Chunk:
    """Output of worker:`index`."""
    return Chunk(f"worker:{index}", 1, time, 0, data, lost)
