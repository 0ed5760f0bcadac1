"""Single keys from the terminal, while a view is on the screen."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


class Keys:
    """`descriptors` become readable on a key; read() takes what was pressed. Without a terminal: no keys."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.descriptors = descriptors

    def read(self) -> str:
        typed = b""
        for fd in self.descriptors:
            try:
                typed += os.read(fd, 1024)
            except BlockingIOError:
                continue
        return typed.decode(errors="ignore")


@contextmanager
def pressed_keys() -> Iterator[Keys]:
    """Keys one by one and unechoed, signals (Ctrl-C) as ever; the terminal is put back at the end."""
    fd = sys.stdin.fileno() if sys.stdin is not None else -1
    if not _may_set_modes(fd):
        yield Keys(())
        return
    before = termios.tcgetattr(fd)
    mode = termios.tcgetattr(fd)
    mode[tty.LFLAG] &= ~(termios.ICANON | termios.ECHO)
    mode[tty.CC][termios.VMIN] = 0
    mode[tty.CC][termios.VTIME] = 0
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, mode)
        yield Keys((fd,))
    finally:
        if _may_set_modes(fd):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _may_set_modes(fd: int) -> bool:
    """A background job (Ctrl-Z and bg, too) that set them would be stopped for it; a closed terminal has none."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
