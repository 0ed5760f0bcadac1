"""Which directories and files of the state belong to this user, and where the user's own links lead."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from orchestrator.core.errors import NotOurs, UsageError

_ROOT = 0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOR_ROOT = (
    "run orch as that user, or set XDG_STATE_HOME or HOME (sudo -H) to one of root's, or add --as-root-anyway"
)
_ELSEWHERE = "name a directory on another file system (XDG_STATE_HOME, --log-dir, --checkpoint-dir)"
# As many as the kernel follows in one path (man 7 path_resolution).
_MOST_LINKS = 40
# Flags to open a directory of a path. O_DIRECTORY makes the kernel mount the file system of an automount point.
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Owners that are accepted besides the user of this process: `orch --as-root-anyway` adds one.
_also_accepted: set[int] = set()


def is_own(status: os.stat_result) -> bool:
    """True if the file belongs to this user, or to one that accept_owner() named."""
    return is_own_user(status.st_uid)


def is_own_user(uid: int) -> bool:
    return uid == os.geteuid() or uid in _also_accepted


def accept_owner(owner: int) -> None:
    """Let this process, which root runs, use the state of another user (--as-root-anyway)."""
    if os.geteuid() == _ROOT:
        _also_accepted.add(owner)


def forget_accepted_owners() -> None:
    """Undo accept_owner()."""
    _also_accepted.clear()


def accepted_owner() -> int | None:
    """Return the user whose state this process uses by accept_owner()."""
    return next(iter(_also_accepted), None)


def refuse_others(status: os.stat_result, path: Path) -> None:
    """Raise NotOurs for a file or directory that another user owns, or that others can write to."""
    owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    if not is_own(status):
        is_root = os.geteuid() == _ROOT
        remedy = (
            f"remove it if you may, or set XDG_STATE_HOME to a directory of your own: you are {os.geteuid()}"
        )
        reason = f"belongs to the user {owner}, who could replace files of your runs"
        raise NotOurs(path, owner, reason, _FOR_ROOT if is_root else remedy)
    if mode & _OTHERS_MAY_WRITE:
        reason = f"others may write here (mode {mode:o}), and could replace files of your runs"
        remedy = f"look at its files, then chmod -R go-w {path}; if its mode stays, {_ELSEWHERE}"
        raise NotOurs(path, owner, reason, remedy)


def refuse_parent_of_others(status: os.stat_result, parent: Path) -> None:
    """Raise NotOurs if root is about to create the state directory in a directory of another user (sudo -E)."""
    owner = status.st_uid
    if os.geteuid() == _ROOT and not is_own(status):
        reason = f"belongs to the user {owner}, who could replace files of your runs below it"
        raise NotOurs(parent, owner, reason, _FOR_ROOT)


def refuse_others_in_new(status: os.stat_result, path: Path) -> None:
    """Raise NotOurs for a directory that this process has just made, if its owner or mode is not what was asked for."""
    owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    if owner != os.geteuid():
        reason = (
            f"belongs to the user {owner} although the user {os.geteuid()} has just made it: either the file system"
            " changes the owner (NFS with root_squash, or a mount option), or that user replaced it"
        )
        raise NotOurs(path, owner, reason, _ELSEWHERE)
    if mode & _OTHERS_MAY_WRITE:
        reason = (
            f"others may write here (mode {mode:o}): the file system keeps no permissions (CIFS, vfat, WSL), so others"
            " could replace files of your runs"
        )
        raise NotOurs(path, owner, reason, _ELSEWHERE)


def follow_own_links(path: Path) -> Path:
    """Return what a path leads to through links of this user or of root. NotOurs, UsageError; OSError if missing."""
    place = path
    for _ in range(_MOST_LINKS):
        try:
            fd = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if place == path:
                raise
            raise UsageError(_dangling(path, f"{place}, which does not exist")) from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISLNK(status.st_mode):
                return place
            if not is_own(status) and status.st_uid != _ROOT:
                owner = status.st_uid
                reason = f"belongs to the user {owner}, who can change this symbolic link"
                raise NotOurs(place, owner, reason, "set XDG_STATE_HOME to a directory of your own")
            # Read by the descriptor, so that the link that was checked is followed.
            place = place.parent / os.readlink("", dir_fd=fd)
        finally:
            os.close(fd)
    raise UsageError(_dangling(path, "itself"))


def open_place(path: Path, *, follow: bool = True) -> tuple[int, str]:
    """Open the directory of a file that the user named. Return it with the name of the file, which may not exist.

    Links on the way are followed if they are of this user or of root; the file itself, too, unless `follow` is false.
    The returned name must not be followed: another user may create a link there later. PermissionError, OSError.
    """
    parts, links = list(reversed(path.parts)) or ["."], 0
    place = os.open(".", _PASS)
    try:
        while True:
            name = parts.pop()
            target = _target_of_own_link(name, place, path) if parts or follow else None
            if target is not None:
                if (links := links + 1) > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                parts += reversed(Path(target).parts)
            elif parts:
                inner = os.open(name, _PASS, dir_fd=place)
                os.close(place)
                place = inner
            else:
                return place, name
    except BaseException:
        os.close(place)
        raise


def _target_of_own_link(name: str, place: int, path: Path) -> str | None:
    """Return where a link leads; None if it is not a link, or missing. PermissionError for a link of another user."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISLNK(status.st_mode):
            return None
        # In a user namespace that does not map the machine's root, root's files have the same owner as /proc.
        if not is_own(status) and status.st_uid not in (_ROOT, os.stat("/proc").st_uid):
            why = f"{name} is a symbolic link of the user {status.st_uid}; give a path without this link"
            raise PermissionError(errno.EPERM, why, str(path))
        # Read by the descriptor, so that the link that was checked is followed.
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def _dangling(path: Path, target: str) -> str:
    return f"{path}: is a symbolic link to {target}; create that directory, or remove the link"


def is_link(name: str | Path, parent: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode)
    except OSError:
        return False
