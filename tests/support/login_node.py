"""`orch` on the login node of a Slurm on the pretend machines."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch_command import ORCH, read_document, read_events
from slurm import Slurm
from testbed import Testbed
from waiting import PATIENCE_S, until

NODES = ("--engine", "slurm", "--nodes", "3", "--workers", "3")


@dataclass
class LoginNode:
    """Runs orch on n0. Its runs are in a directory that all machines share."""

    machines: Testbed
    slurm: Slurm
    project: Path

    @property
    def environ(self) -> dict[str, str]:
        return {**self.slurm.environ, "XDG_STATE_HOME": str(self.project / "state")}

    def orch(self, verb: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = (str(ORCH), verb, "--as-root-anyway", *words)
        return self.machines["n0"].run(*command, check=check, cwd=self.project, env=self.environ)

    def status(self, *run: str) -> dict[str, Any]:
        document = json.loads(self.orch("status", "--json", *run).stdout)
        assert isinstance(document["run"], dict)
        return document["run"]

    @property
    def runs(self) -> Path:
        return self.project / "state/orch/runs"

    @property
    def directory(self) -> Path:
        """The directory of the only run."""
        (run,) = self.runs.glob("[!.]*")
        return run

    def events(self, kind: str) -> list[dict[str, Any]]:
        return read_events(self.directory, kind)

    def result(self, run: Path | None = None) -> dict[str, Any]:
        """Wait for the result of a run (default: the only one)."""
        path = (run or self.directory) / "result.json"
        until(path.exists)
        return read_document(path)


@contextlib.contextmanager
def all_nodes_taken(slurm: Slurm) -> Iterator[str]:
    """Another job has all nodes during the block; its id."""
    n0 = slurm.machines["n0"]
    other = n0.start("srun", "--exclusive", "-N3", "sleep", "600", env=slurm.environ)
    try:
        until(lambda: [line.split()[1] for line in slurm.queue()] == ["RUNNING"])
        (line,) = slurm.queue()
        yield line.split()[0]
    finally:
        n0.run("scancel", line.split()[0], env=slurm.environ)
        other.wait(PATIENCE_S)
