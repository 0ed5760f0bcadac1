"""A small disk (a tmpfs in its own mount namespace) and the commands that run on it."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

_HOLD = 'mount -t tmpfs -o "size=$2,mode=700" tmpfs "$1" && echo mounted && exec sleep 3600'
_HERE = 'cd "$1" && shift && exec "$@"'


class NoDisk(Exception):
    """The reason why no disk can be mounted here."""


class SmallDisk:
    """A disk of `size` bytes, mounted on `path` within its `with`."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size

    def __enter__(self) -> Self:
        self.path.mkdir()
        as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        argv = ["unshare", *as_root, "--mount", "--propagation", "private"]
        argv += ["sh", "-c", _HOLD, "sh", str(self.path), str(self._size)]
        try:
            self._holder = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        except FileNotFoundError as error:
            raise NoDisk(str(error)) from error
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            raise NoDisk(f"no file system can be mounted here: {self._holder.communicate()[1]}")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    def before(self, cwd: Path) -> tuple[str, ...]:
        """The words before a command that make it run in `cwd`, with the disk mounted."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        pid = str(self._holder.pid)
        return ("nsenter", "--target", pid, "--mount", *user, "sh", "-c", _HERE, "sh", str(cwd))

    @property
    def seen(self) -> Path:
        """The disk's contents, by a path that this process can use."""
        return Path(f"/proc/{self._holder.pid}/root{self.path}")

    def fill(self) -> None:
        with (self.seen / "filler").open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"\0" * (1 << 12))

    def free(self) -> int:
        found = os.statvfs(self.seen)
        return found.f_bavail * found.f_frsize
