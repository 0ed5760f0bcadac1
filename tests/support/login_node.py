"""`orch` on the login node of a Slurm on the pretend machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts_run import Commands, shared_state
from orch_command import Finished, read_document, read_events
from slurm import Slurm
from waiting import PATIENCE_S, until

NODES = ("--engine", "slurm", "--nodes", "3", "--workers", "3")


@dataclass
class LoginNode:
    """Runs orch on n0, in one process. Its runs are in a directory that all machines share."""

    commands: Commands
    slurm: Slurm
    project: Path

    @property
    def environ(self) -> dict[str, str]:
        return {**self.slurm.environ, **shared_state(self.project)}

    def orch(self, *words: str, code: int | None = 0) -> Finished:
        """`code`: the expected exit code; None for any."""
        done = self.commands.run(self.project, *words, env=self.environ)
        assert code in (None, done.code), done
        return done

    def status(self, *run: str) -> dict[str, Any]:
        document = self.orch("status", "--json", *run).document
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
    words = ("srun", "--exclusive", "-N3", "sleep", "600")
    other = slurm.machines["n0"].start(*words, env=slurm.environ)
    try:
        until(lambda: [line.split()[1] for line in slurm.queue()] == ["RUNNING"])
        job = slurm.job()
        yield job
    finally:
        slurm.run("scancel", job)
        other.wait(PATIENCE_S)
