"""Open directories of the state. All readers and writers reach its files through them, relative to a descriptor.

A directory is checked after it was opened: it must belong to this user, and others must not be able to write to it.
Symbolic links below it are never followed. Another user therefore cannot exchange what was checked for something
else, and a link in a directory from somewhere else leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from orchestrator.store.open_files import MAX_DOCUMENT_BYTES, parse_object, read_all
from orchestrator.store.ownership import (
    follow_own_links,
    is_link,
    refuse_others,
    refuse_others_in_new,
    refuse_parent_of_others,
)
from orchestrator.store.trees import OPEN_DIRECTORY, Removal, disk_bytes, identity_of, remove_tree

PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600
_LINK = "is a symbolic link, which is not followed here"
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class NotRegularFile(OSError):
    """The path exists, but it is a link, a pipe, a directory or another kind of file that orch does not create."""


class Directory:
    """An open directory of this user. `path` is its name in messages. Close it, or use it in a `with`.

    In one that `is_shared`, others may be able to create, rename and exchange entries at any time.
    """

    def __init__(self, fd: int, path: Path, *, is_shared: bool = False) -> None:
        """Take over an open descriptor that has been checked, unless the directory `is_shared`."""
        self.fd = fd
        self.path = path
        self.is_shared = is_shared

    @classmethod
    def open(cls, path: Path) -> Directory:
        """Open a directory that the user named: the state directory. It may be a link of the user, or of root.

        NotOurs; UsageError for a link that leads nowhere; OSError.
        """
        return _open_checked(follow_own_links(path), path)

    @classmethod
    def at(cls, path: Path) -> Directory:
        """Open a directory within the state by its resolved path. Neither it nor its parent may be a link. OSError."""
        parent = _open_place(path.parent)
        try:
            return _open_checked(path.name, path, parent)
        finally:
            os.close(parent)

    @classmethod
    def shared(cls, path: Path) -> Directory:
        """Open a directory that the user chose for results, and may share with others on purpose (--log-dir).

        Use it only to open, make and rename directories in it, which are checked themselves. OSError.
        """
        return cls(_open_place(path, follow=True), path, is_shared=True)

    @classmethod
    def create(cls, path: Path, existing: Collection[Path] = (), *, may_be_shared: bool = False) -> Directory:
        """Open a directory that the user named. Create it and its missing parents, all with mode 0700.

        A directory that another user created in the meantime is refused. `existing` are directories that were there
        before: one that has appeared below them since must be this user's. NotOurs, UsageError, OSError.
        """
        existing_fd, missing = _nearest_existing(path, existing)
        if not missing:
            os.close(existing_fd)
            return cls.shared(path) if may_be_shared else cls.open(path)
        directory = cls(existing_fd, path.parents[len(missing) - 1], is_shared=True)
        for name in missing:
            with directory:
                if directory.is_shared and not may_be_shared:
                    refuse_parent_of_others(os.fstat(directory.fd), directory.path)
                directory = directory._make_named(name)
        return directory

    def _make_named(self, name: str) -> Directory:
        """Like make(), but a link in its place is named with what it leads to. NotOurs, UsageError, OSError."""
        try:
            return self.make(name)
        except NotADirectoryError:
            follow_own_links(self.path / name)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return identity_of(self.fd)

    def require_search(self) -> None:
        """Raise PermissionError if files in this directory cannot be reached (its mode has no `x`)."""
        if not os.access(".", os.X_OK, dir_fd=self.fd, effective_ids=True):
            remedy = f"Permission denied; chmod 700 {self.path}"
            raise PermissionError(errno.EACCES, remedy, str(self.path))

    # -- directories in it

    def descend(self, path: Path) -> Directory:
        """Open this directory again, or one below it, by its whole path. No link is followed. NotOurs, OSError."""
        opened = Directory(os.open(".", OPEN_DIRECTORY, dir_fd=self.fd), self.path)
        for name in path.relative_to(self.path).parts:
            with opened:
                opened = opened.sub(name)
        return opened

    def sub(self, name: str) -> Directory:
        """Open a directory in this one. NotOurs, OSError."""
        return _open_checked(_checked_name(name), self.path / name, self.fd)

    def make(self, name: str) -> Directory:
        """Open a directory in this one, created with mode 0700 if it is missing. NotOurs, OSError."""
        try:
            return self.make_new(name)
        except FileExistsError:
            return self.sub(name)

    def make_new(self, name: str) -> Directory:
        """Like make(), but FileExistsError if something has this name already, or had it before the new one was opened.

        Another user can put another directory in the place of the new one, but cannot empty it.
        """
        try:
            os.mkdir(_checked_name(name), PRIVATE_DIR, dir_fd=self.fd)
        except OSError as error:
            raise _named(error, self.path / name) from error
        try:
            made = _open_checked(name, self.path / name, self.fd, refuse_others_in_new)
            if self.is_shared and made.entries():
                made.close()
                why = "another process put a directory with files in its place"
                raise FileExistsError(errno.EEXIST, why, str(self.path / name))
        except OSError:
            with suppress(OSError):
                os.rmdir(name, dir_fd=self.fd)
            raise
        return made

    def entries(self) -> list[str]:
        """Return the sorted names in this directory."""
        # Opened again, because the descriptor may be one that cannot be read.
        fd = os.open(".", OPEN_DIRECTORY, dir_fd=self.fd)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def lstat(self, name: str) -> os.stat_result:
        """Return the status of an entry, of the link itself if it is one. OSError."""
        try:
            return os.lstat(_checked_name(name), dir_fd=self.fd)
        except OSError as error:
            raise _named(error, self.path / name) from error

    def exists(self, name: str) -> bool:
        """True if there is an entry of this name, also a link that leads nowhere."""
        try:
            self.lstat(name)
        except OSError:
            return False
        return True

    def rename(self, name: str, new: str, to: Directory | None = None) -> None:
        """Rename an entry, into the directory `to` if given. OSError."""
        target = self.fd if to is None else to.fd
        os.rename(_checked_name(name), _checked_name(new), src_dir_fd=self.fd, dst_dir_fd=target)

    def link_to(self, name: str, target: Path) -> None:
        """Create a symbolic link. OSError."""
        os.symlink(target, _checked_name(name), dir_fd=self.fd)

    def unlink(self, name: str) -> None:
        """Remove a file or link. A missing file is not an error. OSError."""
        try:
            os.unlink(_checked_name(name), dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _named(error, self.path / name) from error

    def remove_empty(self, name: str) -> None:
        """Remove a directory if it is there and empty. OSError for other reasons."""
        try:
            os.rmdir(_checked_name(name), dir_fd=self.fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise _named(error, self.path / name) from error

    def remove_tree(self, name: str, identity: tuple[int, int] | None = None) -> Removal:
        """Remove a file, link or tree, as far as possible. The result says what could not be removed, and why.

        In a shared directory `identity` is required: only the directory that has it is emptied.
        """
        if self.is_shared and identity is None:
            raise ValueError(f"{self.path}: others may exchange entries here; a removal needs an identity")
        return remove_tree(self.fd, _checked_name(name), identity)

    def disk_bytes(self, name: str) -> int:
        """Return the bytes on disk of a file or tree. Symbolic links are not followed."""
        return disk_bytes(self.fd, _checked_name(name))

    # -- files in it

    def open_regular(self, name: str) -> int:
        """Open a regular file of this user for reading and return its descriptor. Never blocks. NotOurs, OSError."""
        return self._open_file(name, os.O_RDONLY)

    def open_private(self, name: str, flags: int) -> int:
        """Open a file with these flags of open(2), create it with mode 0600 if it is missing. NotOurs, OSError.

        With O_TRUNC or O_APPEND, a file with a second hard link is replaced by an empty one: the other link may be
        any file of this user."""
        fd = self._open_file(name, (flags & ~os.O_TRUNC) | os.O_CREAT)
        if flags & (os.O_TRUNC | os.O_APPEND) and os.fstat(fd).st_nlink > 1:
            os.close(fd)
            self.unlink(name)
            return self._open_file(name, flags | os.O_CREAT | os.O_EXCL)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
        return fd

    def read_bytes(self, name: str, limit: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """Return the first `limit` bytes of a file; None if it cannot be read."""
        try:
            fd = self.open_regular(name)
        except (OSError, ValueError):
            return None
        return read_all(fd, limit)

    def read_object(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file; None if the file is unreadable or contains anything else."""
        data = self.read_bytes(name)
        return None if data is None else parse_object(data)

    def write_atomically(self, name: str, text: str) -> None:
        """Write a temporary file and rename it to `name`. A reader sees the old document or the new one. OSError."""
        temporary = self._write_temporary(name, text)
        try:
            self.rename(temporary, name)
        except OSError:
            self.unlink(temporary)
            raise

    def write_once(self, name: str, text: str) -> bool:
        """Write `name` atomically unless it exists. Return False, without a change, if it exists. OSError."""
        temporary = self._write_temporary(name, text)
        try:
            os.link(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            # Some file systems do not support hard links.
            if error.errno not in _NO_HARD_LINKS or self.exists(name):
                raise
            self.rename(temporary, name)
        finally:
            self.unlink(temporary)
        return True

    def _write_temporary(self, name: str, text: str) -> str:
        temporary = f".{name}.{os.getpid()}"
        fd = self.open_private(temporary, os.O_WRONLY | os.O_TRUNC)
        try:
            with os.fdopen(fd, "w") as out:
                out.write(text)
        except OSError:
            self.unlink(temporary)  # a partial file would only use space
            raise
        return temporary

    def _open_file(self, name: str, flags: int) -> int:
        path = self.path / name
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(_checked_name(name), flags, PRIVATE_FILE, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise NotRegularFile(error.errno, "is not a regular file", str(path)) from error
            raise _named(error, path) from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise NotRegularFile(errno.EINVAL, "is not a regular file", str(path))
            refuse_others(status, path)
        except OSError:
            os.close(fd)
            raise
        return fd


def _open_checked(
    name: str | Path,
    path: Path,
    parent: int | None = None,
    refuse: Callable[[os.stat_result, Path], None] = refuse_others,
) -> Directory:
    """Open a directory without following a link, then check its owner and mode. NotOurs, OSError."""
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        why = _LINK if is_link(name, parent) else "is not a directory"
        raise NotADirectoryError(error.errno, why, str(path)) from error
    except OSError as error:
        raise _named(error, path) from error
    try:
        refuse(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    return Directory(fd, path)


def _nearest_existing(path: Path, existing: Collection[Path]) -> tuple[int, list[str]]:
    """Return the descriptor of the nearest parent that exists, or of `path`, and the names below it.

    The nearest place of `existing` counts, although directories below it may exist now.
    """
    for place in (path, *path.parents):
        if place in existing:
            return _open_place(place, follow=True), list(path.relative_to(place).parts)
    missing: list[str] = []
    place = path
    while True:
        try:
            return _open_place(place, follow=True), missing[::-1]
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            # The target of a link is not created: who made the link may have meant something else.
            if place == place.parent or is_link(place, None):
                follow_own_links(place)
                raise
            missing.append(place.name)
            place = place.parent


def _open_place(path: Path, *, follow: bool = False) -> int:
    """Open a directory that only has to be passed, which needs no permission to read it."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        why = _LINK if not follow and is_link(path, None) else "is not a directory"
        raise NotADirectoryError(error.errno, why, str(path)) from error


def _checked_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file in a directory")
    return name


def _named(error: OSError, path: Path) -> OSError:
    """Return the same error with the whole path as its file name."""
    return type(error)(error.errno, error.strerror, str(path))
