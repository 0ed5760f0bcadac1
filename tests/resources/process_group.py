"""A control group that holds few processes: what is in it cannot fork any more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from memory_group import NoGroup
from waiting import until

_V1 = Path("/sys/fs/cgroup/pids")
_V2 = Path("/sys/fs/cgroup")


class ProcessGroup:
    """There from the beginning of its `with` to the end; whatever is in it must have ended by then."""

    def __init__(self) -> None:
        top = _V1 if _V1.is_dir() else _V2
        self.path = top / f"orch-test-pids-{os.getpid()}"

    def __enter__(self) -> Self:
        try:
            self.path.mkdir()
        except OSError as error:
            raise NoGroup(f"no control group can be made here: {error}") from error
        if not (self.path / "pids.max").exists():
            self.path.rmdir()
            raise NoGroup("no processes can be limited here")
        return self

    def __exit__(self, *_: object) -> None:
        until(self._is_removed)

    def allow(self, processes: int) -> None:
        (self.path / "pids.max").write_text(str(processes))

    def take(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    @property
    def before(self) -> tuple[str, ...]:
        """Words in front of a command that is run in the group."""
        return ("sh", "-c", 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"', "sh", str(self.path))

    def _is_removed(self) -> bool:
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True
