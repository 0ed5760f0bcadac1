"""Control groups (v1 or v2) with little memory or with few processes, in which the kernel enforces the limit."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from waiting import until

_V2 = Path("/sys/fs/cgroup")
_V1_MEMORY, _V1_PIDS = _V2 / "memory", _V2 / "pids"
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'


class NoGroup(Exception):
    """The reason why no such control group can be made here."""


class _ControlGroup:
    """Exists within its `with`. Every process in it must have ended by then."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        try:
            self.path.mkdir()
        except OSError as error:
            raise NoGroup(f"no control group can be made here: {error}") from error
        try:
            self._limit()
        except OSError as error:
            self.path.rmdir()
            raise NoGroup(f"no limit can be set here: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        until(self._is_removed)

    def _limit(self) -> None:
        """Set the limit; OSError if the kernel does not have it."""
        raise NotImplementedError

    def take(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    @property
    def before(self) -> tuple[str, ...]:
        """The words before a command that make it run in the group."""
        return ("sh", "-c", _ENTER, "sh", str(self.path))

    def _is_removed(self) -> bool:
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True


class MemoryGroup(_ControlGroup):
    """Holds so many bytes, swap included."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._is_v1 = (_V1_MEMORY / "memory.limit_in_bytes").exists()
        super().__init__((_V1_MEMORY if self._is_v1 else _V2) / f"orch-test-{os.getpid()}")

    def _limit(self) -> None:
        limit, swap = "memory.max", "memory.swap.max"
        if self._is_v1:
            limit, swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
        (self.path / limit).write_text(str(self._most))
        if (self.path / swap).exists():
            (self.path / swap).write_text(str(self._most) if self._is_v1 else "0")

    def of(self, pid: int) -> Path:
        """The group that a process is in."""
        lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        ours = next(path for _, names, path in lines if names == ("memory" if self._is_v1 else ""))
        return self.path.parent / ours.lstrip("/")

    def give_back(self, group: Path) -> None:
        """Move the processes that are left to another group."""
        for pid in (self.path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(pid)


class ProcessGroup(_ControlGroup):
    """Holds as many processes as allow() says."""

    def __init__(self) -> None:
        super().__init__((_V1_PIDS if _V1_PIDS.is_dir() else _V2) / f"orch-test-pids-{os.getpid()}")

    def _limit(self) -> None:
        (self.path / "pids.max").stat()

    def allow(self, processes: int) -> None:
        (self.path / "pids.max").write_text(str(processes))
