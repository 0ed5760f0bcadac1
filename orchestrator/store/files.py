"""Open, read and write one file of the state by its path, through the directory that contains it (directory.py)."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.store.directory import Directory, NotRegularFile
from orchestrator.store.open_files import MAX_DOCUMENT_BYTES, parse_object


def open_regular(path: Path) -> int:
    """Open a regular file of this user for reading and return its descriptor. Never blocks. NotOurs, OSError."""
    with Directory.at(path.parent) as directory:
        return directory.open_regular(path.name)


def open_if_exists(path: Path) -> int:
    """Open like open_regular(), but return -1 if the file is missing or not regular. OSError if it is unreadable."""
    try:
        return open_regular(path)
    except (FileNotFoundError, NotADirectoryError, NotRegularFile):
        return -1


class SharedFile:
    """A regular file that several threads read by offset or lock. It is open while at least one of them uses it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._users = 0
        self._fd = -1

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yield the common descriptor, opened if necessary; -1 if the file cannot be opened."""
        with self._lock:
            if self._fd < 0:
                try:
                    self._fd = open_regular(self._path)
                except OSError:
                    self._fd = -1
            fd = self._enter()
        try:
            yield fd
        finally:
            self._leave()

    @contextmanager
    def if_open(self) -> Iterator[int]:
        """Yield the descriptor if another user has it open, else -1."""
        with self._lock:
            fd = self._enter()
        try:
            yield fd
        finally:
            self._leave()

    def _enter(self) -> int:
        self._users += 1
        return self._fd

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def read_bytes(path: Path, limit: int = MAX_DOCUMENT_BYTES) -> bytes | None:
    """Return the first `limit` bytes of a file; None if it cannot be read."""
    try:
        with Directory.at(path.parent) as directory:
            return directory.read_bytes(path.name, limit)
    except (OSError, ValueError):
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is unreadable or contains anything else."""
    data = read_bytes(path)
    return None if data is None else parse_object(data)


def exists(path: Path) -> bool:
    """True if a run's directory contains this entry, also a link that leads nowhere."""
    try:
        with Directory.at(path.parent) as directory:
            return directory.exists(path.name)
    except OSError:
        return False


def make_private(path: Path, existing: Collection[Path] = ()) -> None:
    """Create a directory that the user named, and its missing parents, all with mode 0700. UsageError.

    `existing`: see Directory.create().
    """
    try:
        Directory.create(path, existing, may_be_shared=True).close()
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be made: {os.strerror(error.errno or 0)}") from error


def write_once(path: Path, text: str) -> bool:
    """Write `path` atomically unless it exists. Return False, without a change, if it exists. OSError."""
    with Directory.at(path.parent) as directory:
        return directory.write_once(path.name, text)


def disk_bytes(path: Path) -> int:
    """Return the bytes on disk of a run's directory or of a file in it. Symbolic links are not followed."""
    try:
        with Directory.shared(path.parent) as directory:
            return directory.disk_bytes(path.name)
    except OSError:  # removed in the meantime
        return 0


def directory_if_used(path: str | None) -> str | None:
    """Return `path` if it is a directory with something in it, else None."""
    try:
        with os.scandir(path or "") as entries:
            return path if next(entries, None) is not None else None
    except OSError:
        return None
