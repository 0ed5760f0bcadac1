"""File locks: the lock of a live run, and the lock of each run name."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.store.directory import Directory
from orchestrator.store.files import open_regular
from orchestrator.store.ownership import is_own
from orchestrator.store.runs.paths import make_names, open_names

_OTHERS_MAY_OPEN = 0o066
# A probe holds a lock for a moment: how often, and at which interval, a name is tried again.
_ATTEMPTS = 100
_RETRY_S = 0.01
# Age at which the file of a free name is removed.
_UNUSED_NAME_S = 86_400.0


class Lock:
    """An flock on a file. It ends with release() or with the process."""

    def __init__(self, fd: int) -> None:
        """Take over the descriptor of a file that is locked."""
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> Lock | None:
        """Take the exclusive lock of a file, which is created if missing. None if the lock is held.

        UsageError where files cannot be locked: live runs could not be distinguished from dead ones.
        """
        with Directory.at(path.parent) as directory:
            return cls.acquire_in(directory, path.name)

    @classmethod
    def acquire_in(cls, directory: Directory, name: str) -> Lock | None:
        """Like acquire(), for a file of an open directory."""
        return cls._take(directory, name, fcntl.LOCK_EX)

    @classmethod
    def share_in(cls, directory: Directory, name: str) -> Lock | None:
        """Take a shared lock, which keeps others from acquire() but reads as free in probe()."""
        return cls._take(directory, name, fcntl.LOCK_SH)

    @classmethod
    def _take(cls, directory: Directory, name: str, operation: int) -> Lock | None:
        while True:
            fd = directory.open_private(name, os.O_RDWR)
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            except OSError as error:
                os.close(fd)
                raise UsageError(
                    f"{directory.path}: files there cannot be locked ({os.strerror(error.errno or 0)}), and orch needs"
                    " locks to know which runs are live;"
                    " name a directory on another file system (XDG_STATE_HOME, --log-dir)"
                ) from error
            if _is_same_file(directory, name, fd):
                return cls(fd)
            # The file was removed before it was locked. The next process would lock a new file.
            os.close(fd)

    def fileno(self) -> int:
        """The descriptor. A process that inherits it holds the lock, too."""
        return self._fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _is_same_file(directory: Directory, name: str, fd: int) -> bool:
    try:
        return os.path.samestat(directory.lstat(name), os.fstat(fd))
    except FileNotFoundError:
        return False


class Held(Enum):
    """The state of an exclusive lock."""

    YES = "yes"
    NO = "no"
    MISSING = "missing"  # the file does not exist; a process may still hold a removed one
    UNKNOWN = "unknown"  # the file system or the user cannot probe it, or other users may hold it


def probe(path: Path) -> Held:
    """Report whether a process holds the exclusive lock. Takes a shared lock, so that probes do not see each other."""
    return _probe(lambda: open_regular(path))


def probe_in(directory: Directory, name: str) -> Held:
    """Like probe(), for a file of an open directory."""
    return _probe(lambda: directory.open_regular(name))


def _probe(open_file: Callable[[], int]) -> Held:
    try:
        fd = open_file()
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
        # A lock can be taken by anyone who may read its file, as after `chmod -R a+rX`.
        return Held.UNKNOWN if os.fstat(fd).st_mode & _OTHERS_MAY_OPEN else Held.YES
    except OSError:  # ENOLCK, EOPNOTSUPP: a file system without locks
        return Held.UNKNOWN
    fcntl.flock(fd, fcntl.LOCK_UN)
    return Held.NO


def is_held(path: Path) -> bool:
    """True if a process certainly holds the lock."""
    return probe(path) is Held.YES


def is_holder(pid: int, path: Path) -> bool:
    """True if this process holds the exclusive lock of the file, even if it was removed or moved within its directory.

    No other file of that directory is locked.
    """
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
        if descriptor.readlink().parent == path.parent:
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


def take_unless_held(directory: Directory, name: str) -> Lock | None:
    """Take the lock; None if a process holds it. A probe shares it for a moment, so it is tried again."""
    for _ in range(_ATTEMPTS):
        lock = Lock.acquire_in(directory, name)
        if lock is not None or probe_in(directory, name) is Held.YES:
            return lock
        time.sleep(_RETRY_S)
    return None


def lock_name(name: str) -> Lock | None:
    """Take the lock of a run name. None if another live run holds it."""
    with make_names() as names:
        for _ in range(_ATTEMPTS):
            lock = Lock.acquire_in(names, name)
            # Without an exclusive holder, the lock is shared for a moment by a probe or by the removal of free names.
            if lock is not None or (held := probe_in(names, name)) is Held.YES:
                return lock
            if held is Held.UNKNOWN:
                names.unlink(name)  # the next file is private
            time.sleep(_RETRY_S)
    return None


def remove_free_names(now: float) -> None:
    """Remove the lock files of free names that are older than a day at `now` (Unix seconds)."""
    try:
        names = open_names()
    except (OSError, UsageError):  # `up` refuses a directory of names that it must not use
        return
    with names:
        for name in names.entries():
            try:
                _remove_free_name(names, name, now)
            except (OSError, UsageError):
                continue


def _remove_free_name(names: Directory, name: str, now: float) -> None:
    status = names.lstat(name)
    # A lock is always empty: a file with contents is not one.
    is_lock = stat.S_ISREG(status.st_mode) and is_own(status) and not status.st_size
    if not is_lock or now - status.st_mtime <= _UNUSED_NAME_S:
        return
    # Removed under its lock: a process that waits for the lock notices this and creates a new file.
    lock = Lock.share_in(names, name)
    if lock is not None:
        try:
            names.unlink(name)
        finally:
            lock.release()
