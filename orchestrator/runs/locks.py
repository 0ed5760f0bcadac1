"""Locks that the kernel releases when their holder dies: the only sign of life that cannot go stale."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from orchestrator.runs.paths import PRIVATE_FILE


class Lock:
    """An exclusive flock on a file, from acquire() to release() or the holder's death."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> Lock | None:
        """None when somebody else holds it. The file is made if it is not there."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_held(path: Path) -> bool:
    """Whether somebody holds the exclusive lock now. A shared lock is tried, so probes do not see each other."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
