"""Open the logs in a run's directory for appending."""

from __future__ import annotations

import errno
import os
import stat

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_log(path: str) -> int:
    """Open a log, created with mode 0600 if it is missing, and return its descriptor. OSError.

    Another user may have put something else in the place of the run's directory: its descriptor is checked, and no
    link is followed from the directory above it on.
    """
    place, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 (does not follow links)
    try:
        directory = _open_directory(place)
        try:
            _require_own(directory, place)
            log = os.open(name, _APPEND, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from error
    try:
        if not stat.S_ISREG(os.fstat(log).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        _require_own(log, path)
        os.set_blocking(log, True)  # the task inherits it
    except OSError:
        os.close(log)
        raise
    return log


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
