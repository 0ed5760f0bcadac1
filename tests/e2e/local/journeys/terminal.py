"""A terminal for a command: a pseudo-terminal with a size, and a screen with what the command painted."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyte
from forks import ForkedProcess
from kept import Kept
from scrolling_screen import ScrollingScreen
from waiting import PATIENCE_S, until


class Terminal:
    """`argv` runs as the leader of the terminal's session. close() acts like closing the window."""

    process: subprocess.Popen[bytes] | ForkedProcess

    def __init__(
        self,
        argv: list[str],
        cwd: Path,
        env: dict[str, str],
        columns: int = 100,
        lines: int = 24,
        erase: bytes | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`erase`: the key that deletes a character. `kept` starts `orch ARGV`."""
        self.screen = ScrollingScreen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        self.resize(columns, lines)
        self.modes_before = termios.tcgetattr(slave)
        if erase is not None:
            self.modes_before[6][termios.VERASE] = erase
            termios.tcsetattr(slave, termios.TCSANOW, self.modes_before)
        self._slave = slave
        self.raw = b""
        env = {"TERM": "xterm-256color", **env}
        if kept is not None:
            with open(slave, "wb", buffering=0, closefd=False) as both:
                self.process = kept.start(argv, both, both, env, cwd)
            return
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *argv], cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave
        )

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def pump(self) -> None:
        """Read what the command has painted so far."""
        while self._master >= 0 and select.select([self._master], [], [], 0)[0]:
            data = os.read(self._master, 1 << 16)
            self.raw += data
            self._stream.feed(data)

    @property
    def shown(self) -> list[str]:
        """The screen's lines, without trailing blanks and without empty lines at the end."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def everything(self) -> list[str]:
        """The lines that scrolled away, then the screen's lines."""
        return self.screen.scrolled_text() + self.shown

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def until_shown(self, text: str) -> None:
        """Wait until a line on the screen contains `text`."""

        def is_shown() -> bool:
            self.pump()
            return any(text in line for line in self.shown)

        try:
            until(is_shown)
        except AssertionError:
            raise AssertionError(f"{text!r} is not on the screen:\n" + "\n".join(self.shown)) from None

    def type_for(self, text: str, shown: str) -> None:
        self.type(text)
        self.until_shown(shown)

    def until_lines(self, is_so: Callable[[list[str]], bool]) -> None:
        """Wait until `is_so` holds for the screen's lines, which may be painted in parts."""

        def is_painted() -> bool:
            self.pump()
            return is_so(self.shown)

        until(is_painted)

    def finish(self) -> int:
        """Read until the command has ended and return its exit code."""

        def has_ended() -> bool:
            self.pump()
            return self.process.poll() is not None

        until(has_ended)
        self.pump()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            os.close(self._slave)
            self._master = -1

    def end(self) -> None:
        self.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


OpenTerminal = Callable[..., Terminal]
