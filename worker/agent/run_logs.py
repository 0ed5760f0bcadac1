"""Open files in a run's directory: the logs for appending, and the tasks' stacks."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from worker.wire.facts import Identity

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RunFile(NamedTuple):
    """A file in the run's directory, or in a directory in it. `run_directory`: device and inode; None: not checked."""

    path: str
    run_directory: Identity | None = None


def open_log(file: RunFile) -> int:
    """Open a log, created with mode 0600 if it is missing, and return its descriptor. OSError."""
    log = open_in_run(file, _APPEND)
    try:
        if not stat.S_ISREG(os.fstat(log).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", file.path)
        _require_own(log, file.path)
        os.set_blocking(log, True)  # the task inherits it
    except OSError:
        os.close(log)
        raise
    return log


def open_in_run(file: RunFile, flags: int) -> int:
    """Open a file with these flags of open(2), without waiting for the other end of a pipe. OSError.

    Another user may have put something else in the place of the run's directory: its descriptor is checked, and no
    link is followed from the directory above it on.
    """
    place, name = os.path.split(os.path.abspath(file.path))  # noqa: PTH100 (does not follow links)
    try:
        directory = _open_directory(place)
        try:
            _require_own(directory, place)
            _require_run(directory, file.run_directory)
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, file.path) from error


def _open_directory(place: str) -> int:
    above, name = os.path.split(place)
    parent = os.open(above, _PLACE)
    try:
        return os.open(name, _PLACE, dir_fd=parent)
    finally:
        os.close(parent)


def _require_own(fd: int, path: str) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"belongs to the user {status.st_uid}", path)
    if status.st_mode & _OTHERS_MAY_WRITE:
        raise PermissionError(errno.EPERM, "others may write here", path)


def _require_run(directory: int, run_directory: Identity | None) -> None:
    """Check that an open directory is the run's, or in it. OSError."""
    # Others cannot move anything in or out of the run's directory, so that `..` is certain.
    around = (os.stat(name, dir_fd=directory) for name in (".", ".."))
    if run_directory is not None and run_directory not in [(each.st_dev, each.st_ino) for each in around]:
        raise OSError(errno.ESTALE, "another directory was put in the place of the run's")
