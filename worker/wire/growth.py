"""Waits for files to grow, by inotify."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable

_IN_MODIFY = 0x2
# Enough to empty the kernel's queue: 16,384 events (fs.inotify.max_queued_events) of 16 bytes.
_DRAIN_BYTES = 16_384 * 16
# Loaded once, because each ctypes.CDLL creates a class that is never freed.
_LIBC = ctypes.CDLL(None, use_errno=True)


class GrowthWatch:
    """Watches files for writes. `fileno()` is readable after a write, except between mute() and rearm().

    Muting limits the wake-ups under a flood of writes, each of which is an event.
    """

    def __init__(self) -> None:
        """OSError without inotify: the user's limit is reached, or the kernel lacks it."""
        self._add_watch: Callable[[int, bytes, int], int] = _LIBC.inotify_add_watch
        self._inotify = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._epoll = select.epoll()
        self._epoll.register(self._inotify, select.EPOLLIN)

    def add(self, fd: int) -> None:
        """Watch the file of an open descriptor. OSError if the user's watches are used up."""
        # By descriptor: the path can belong to another file by now.
        if self._add_watch(self._inotify, b"/proc/self/fd/%d" % fd, _IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")

    def fileno(self) -> int:
        return self._epoll.fileno()

    def mute(self) -> None:
        """Discard the events so far and wait for no others. Checking every file is cheaper than reading their names."""
        self._epoll.modify(self._inotify, 0)
        try:
            os.read(self._inotify, _DRAIN_BYTES)
        except BlockingIOError:
            pass

    def rearm(self) -> None:
        """Wait for events again. An event since mute() makes `fileno()` readable immediately."""
        self._epoll.modify(self._inotify, select.EPOLLIN)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._inotify)
