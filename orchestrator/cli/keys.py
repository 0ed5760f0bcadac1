"""Single keys from the terminal, while a view is on the screen."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


class Keys:
    """`descriptors` become readable on a key; read() takes what was pressed. Without a terminal: no keys.

    In the background there are none either: they are the shell's, and to read them would stop the job (SIGTTIN).
    """

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self._terminals = descriptors

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(fd for fd in self._terminals if _is_ours(fd))

    def read(self) -> str:
        typed = b""
        for fd in self.descriptors:
            if termios.tcgetattr(fd)[tty.LFLAG] & termios.ICANON:
                _unbuffer(fd)  # after Ctrl-Z and fg: the shell has put its own modes, in which a read waits
            try:
                typed += os.read(fd, 1024)
            except BlockingIOError:
                continue
        return typed.decode(errors="ignore")


@contextmanager
def pressed_keys() -> Iterator[Keys]:
    """Keys one by one and unechoed, signals (Ctrl-C) as ever; the terminal is put back at the end."""
    fd = sys.stdin.fileno() if sys.stdin is not None else -1
    if not _is_ours(fd):
        yield Keys(())
        return
    before = termios.tcgetattr(fd)
    try:
        _unbuffer(fd)
        yield Keys((fd,))
    finally:
        if _is_ours(fd):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _unbuffer(fd: int) -> None:
    mode = termios.tcgetattr(fd)
    mode[tty.LFLAG] &= ~(termios.ICANON | termios.ECHO)
    mode[tty.CC][termios.VMIN] = 0
    mode[tty.CC][termios.VTIME] = 0
    termios.tcsetattr(fd, termios.TCSADRAIN, mode)


def _is_ours(fd: int) -> bool:
    """A background job (Ctrl-Z and bg, too) that set modes or read would be stopped; a closed terminal has none."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
