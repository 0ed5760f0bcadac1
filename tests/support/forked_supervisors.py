"""Forks the supervisors that this process starts, so that none has to import its modules, which takes 0.3 s of CPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

from forks import ForkedProcess, ForkServer

from orchestrator.host.inheritance import inheritance
from orchestrator.links.supervisor_link import SupervisorProcess, _start_process

ROOT = Path(__file__).resolve().parents[2]
_MODULES = ("orchestrator.supervisor.here", "orchestrator.supervisor.kept", "orchestrator.supervisor.serve")


class ForkedSupervisors:
    """Starts supervisors: forked from a server, or new processes if they would inherit other attributes."""

    def __init__(self) -> None:
        self._inheritance = inheritance()
        self._server = ForkServer(ROOT, *_MODULES)

    def start(self, door: int) -> subprocess.Popen[bytes] | ForkedProcess:
        if inheritance() != self._inheritance or not Path("/proc/self/cwd").exists():
            return _start_process(door)
        with open(1, "wb", closefd=False) as out, open(2, "wb", closefd=False) as err:
            words = ["-P", "-m", "orchestrator.supervisor"]
            return self._server.fork(words, out, err, os.environ, Path.cwd(), door=door)

    def close(self) -> None:
        self._server.close()


@contextmanager
def forked_supervisors() -> Iterator[None]:
    """Fork the supervisors that start within the block."""
    with (
        closing(ForkedSupervisors()) as supervisors,
        patch.object(SupervisorProcess.__init__, "__defaults__", (supervisors.start,)),
    ):
        yield
