"""File locks: the lock of a live run, and the lock of each run name."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from enum import Enum
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.store.files import make_private, open_private, open_regular
from orchestrator.store.runs.paths import names_dir

# A probe holds a lock for a moment: how often, and at which interval, a name is tried again.
_NAME_ATTEMPTS = 100
_NAME_RETRY_S = 0.01
# Age at which the file of a free name is removed.
_UNUSED_NAME_S = 86_400.0


class Lock:
    """An flock on a file. It ends with release() or with the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> Lock | None:
        """Take the exclusive lock of a file, which is created if missing. None if the lock is held.

        UsageError where files cannot be locked: live runs could not be distinguished from dead ones.
        """
        return cls._take(path, fcntl.LOCK_EX)

    @classmethod
    def share(cls, path: Path) -> Lock | None:
        """Take a shared lock, which keeps others from acquire() but reads as free in probe()."""
        return cls._take(path, fcntl.LOCK_SH)

    @classmethod
    def _take(cls, path: Path, operation: int) -> Lock | None:
        while True:
            fd = open_private(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            except OSError as error:
                os.close(fd)
                raise UsageError(
                    f"{path.parent}: files there cannot be locked ({os.strerror(error.errno or 0)}), and orch needs"
                    " locks to know which runs are live;"
                    " name a directory on another file system (XDG_STATE_HOME, --log-dir)"
                ) from error
            if _is_same_file(path, fd):
                return cls(fd)
            # The file was removed before it was locked. The next process would lock a new file.
            os.close(fd)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _is_same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


class Held(Enum):
    """The state of an exclusive lock."""

    YES = "yes"
    NO = "no"
    MISSING = "missing"  # the file does not exist; a process may still hold a removed one
    UNKNOWN = "unknown"  # the file exists, but this file system or this user cannot probe it


def probe(path: Path) -> Held:
    """Report whether a process holds the exclusive lock. Takes a shared lock, so that probes do not see each other."""
    try:
        fd = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return Held.MISSING
    except OSError:
        return Held.UNKNOWN
    try:
        return probe_open(fd)
    finally:
        os.close(fd)


def probe_open(fd: int) -> Held:
    """Like probe(), for an open lock file, even if it was moved or removed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Held.YES
    except OSError:  # ENOLCK, EOPNOTSUPP: a file system without locks
        return Held.UNKNOWN
    fcntl.flock(fd, fcntl.LOCK_UN)
    return Held.NO


def is_held(path: Path) -> bool:
    """True if a process certainly holds the lock."""
    return probe(path) is Held.YES


def is_holder(pid: int, path: Path) -> bool:
    """True if this process holds the exclusive lock of the file, even if the file was removed since."""
    process = Path("/proc") / str(pid)
    try:
        descriptors = [entry.name for entry in (process / "fd").iterdir()]
    except OSError:  # it has exited, or is another user's
        return False
    return any(
        _is_of_file(process / "fd" / name, path) and _has_exclusive_lock(process / "fdinfo" / name)
        for name in descriptors
    )


def _is_of_file(descriptor: Path, path: Path) -> bool:
    try:
        if str(descriptor.readlink()) == f"{path} (deleted)":
            return True
        return os.path.samestat(descriptor.stat(), path.lstat())
    except OSError:
        return False


def _has_exclusive_lock(info: Path) -> bool:
    """Read a file of /proc/PID/fdinfo, in which the kernel lists the locks of that descriptor."""
    try:
        lines = info.read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("lock:") and {"FLOCK", "WRITE"} <= set(line.split()) for line in lines)


def lock_name(name: str) -> Lock | None:
    """Take the lock of a run name. None if another live run holds it."""
    make_private(names_dir())
    path = names_dir() / name
    for _ in range(_NAME_ATTEMPTS):
        lock = Lock.acquire(path)
        # Without an exclusive holder, the lock is shared for a moment by a probe or by the removal of free names.
        if lock is not None or probe(path) is Held.YES:
            return lock
        time.sleep(_NAME_RETRY_S)
    return None


def remove_free_names(now: float) -> None:
    """Remove the lock files of free names that are older than a day at `now` (Unix seconds)."""
    try:
        files = list(names_dir().iterdir())
    except OSError:
        return
    for path in files:
        try:
            status = path.lstat()
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if not is_own or now - status.st_mtime <= _UNUSED_NAME_S:
                continue
            # Removed under its lock: a process that waits for the lock notices this and creates a new file.
            lock = Lock.share(path)
            if lock is not None:
                try:
                    path.unlink(missing_ok=True)
                finally:
                    lock.release()
        except (OSError, UsageError):
            continue
