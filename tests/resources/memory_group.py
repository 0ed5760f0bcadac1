"""A control group with little memory, where the kernel really kills: version 1 or 2, whichever the machine has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from waiting import until

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'


class NoGroup(Exception):
    """This machine does not let us make one."""


class MemoryGroup:
    """There from the beginning of its `with` to the end; whatever is in it must have ended by then."""

    def __init__(self, most_bytes: int) -> None:
        is_v1 = (_V1 / "memory.limit_in_bytes").exists()
        self._limit = "memory.limit_in_bytes" if is_v1 else "memory.max"
        self._swap = "memory.memsw.limit_in_bytes" if is_v1 else "memory.swap.max"
        self.path = (_V1 if is_v1 else _V2) / f"orch-test-{os.getpid()}"
        self._most = most_bytes

    def __enter__(self) -> Self:
        try:
            self.path.mkdir()
        except OSError as error:
            raise NoGroup(f"no control group can be made here: {error}") from error
        try:
            (self.path / self._limit).write_text(str(self._most))
        except OSError as error:
            self.path.rmdir()
            raise NoGroup(f"no memory can be limited here: {error}") from error
        if (self.path / self._swap).exists():
            swap = str(self._most) if self._swap.startswith("memory.memsw") else "0"
            (self.path / self._swap).write_text(swap)
        return self

    def __exit__(self, *_: object) -> None:
        until(self._is_removed)

    def _is_removed(self) -> bool:
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True

    @property
    def before(self) -> tuple[str, ...]:
        """Words in front of a command that is run in the group."""
        return ("sh", "-c", _ENTER, "sh", str(self.path))
