"""Write a file that the user named: whole, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_output(path: Path, data: bytes, *, mode: int, may_replace: bool = True) -> None:
    """Write `data` beside `path` and rename it. A file that a link leads to is replaced, not the link. OSError.

    The umask applies to `mode`. FileExistsError if `path` exists, even as a link that leads nowhere, and it may not be
    replaced.
    """
    target = Path(os.path.realpath(path)) if may_replace else path
    if may_replace and target.exists() and not target.is_file():
        # Renaming a file over it would even replace a device, if the user is root.
        raise OSError(errno.EINVAL, "it is not a regular file any more", str(target))
    beside = target.with_name(f".{target.name[:100]}-{secrets.token_hex(4)}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        if may_replace:
            beside.replace(target)
        else:
            _publish(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _publish(beside: Path, target: Path) -> None:
    """Give the file its name unless that is taken."""
    try:
        os.link(beside, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems do not support hard links.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        beside.replace(target)
