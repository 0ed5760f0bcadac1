"""Write a file that the user named: whole, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from orchestrator.store.ownership import open_place


def write_output(path: Path, data: bytes, *, mode: int, may_replace: bool = True) -> None:
    """Write `data` beside `path` and rename it. A file that a link leads to is replaced, not the link. OSError.

    Links of other users are not followed. The umask applies to `mode`. FileExistsError if `path` exists, even as a link
    that leads nowhere, and it may not be replaced.
    """
    place, name = open_place(path, follow=may_replace)
    try:
        if may_replace and not _is_missing_or_regular(name, place):
            # Renaming a file over it would even replace a device, if the user is root.
            raise OSError(errno.EINVAL, "it is not a regular file any more", str(path))
        beside = f".{name[:100]}-{secrets.token_hex(4)}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=place)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            if may_replace:
                os.rename(beside, name, src_dir_fd=place, dst_dir_fd=place)
            else:
                _publish(beside, name, place)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=place)
    finally:
        os.close(place)


def _is_missing_or_regular(name: str, place: int) -> bool:
    try:
        return stat.S_ISREG(os.lstat(name, dir_fd=place).st_mode)
    except FileNotFoundError:
        return True


def _publish(beside: str, name: str, place: int) -> None:
    """Give the file its name unless that is taken."""
    try:
        os.link(beside, name, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems do not support hard links.
        with suppress(FileNotFoundError):
            os.lstat(name, dir_fd=place)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
        os.rename(beside, name, src_dir_fd=place, dst_dir_fd=place)
