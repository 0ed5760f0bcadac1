"""Whether a directory takes files, locks and sockets, and on which file system it is."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestrator.store.directory import Directory

_TRIAL = ".orch-probe-"


def nearest_existing(directory: Path) -> Path:
    """The directory, or the nearest parent that exists. OSError if that cannot be found out."""
    return next(path for path in (directory, *directory.parents) if path.exists())


def write_error(directory: Path) -> str | None:
    """Why the directory cannot be written, or the nearest parent that exists; None if it can."""
    try:
        existing = nearest_existing(directory)
        if not existing.is_dir():
            return f"{existing} is not a directory"
        with _trial(existing):
            return None
    except OSError as error:
        return f"{directory} cannot be written ({error.strerror})"


def content_errors(directory: Path) -> Mapping[str, str]:
    """Why files, locks or unix sockets do not work in a directory in which something can be created."""
    errors = {}
    with _trial(directory) as trial:
        for what, attempt in (("files", _write), ("locks", _lock), ("unix sockets", _bind)):
            try:
                attempt(trial)
            except OSError as error:
                errors[what] = error.strerror or str(error)
    return errors


@contextmanager
def _trial(directory: Path) -> Iterator[Path]:
    """Create a directory for a trial, and remove it with its contents, whatever the umask. OSError."""
    trial = Path(tempfile.mkdtemp(prefix=_TRIAL, dir=directory))
    try:
        yield trial
    finally:
        with Directory.shared(directory) as parent:
            parent.remove_tree(trial.name)


def _write(trial: Path) -> None:
    (trial / "file").write_bytes(bytes(4096))


def _lock(trial: Path) -> None:
    """Some network file systems accept locks and ignore them."""
    with (trial / "lock").open("wb") as one, (trial / "lock").open("wb") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError("two processes can hold the same lock")


def _bind(trial: Path) -> None:
    """Bind by a descriptor of the directory, as the supervisor does: the path may be too long for a socket."""
    fd = os.open(trial, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{fd}/socket")
    finally:
        os.close(fd)


def filesystem_of(path: Path, mountinfo: str) -> str:
    """The type of the file system that holds `path` (`ext4`, `nfs4`); empty if the table does not have it."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        mount, _, what = line.partition(" - ")
        words = mount.split(" ")
        if len(words) < 5 or not what:
            continue
        at = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])
        # The last mount at a place counts.
        if path.is_relative_to(at) and len(at) >= len(best):
            best, kind = at, what.split(" ")[0]
    return kind
