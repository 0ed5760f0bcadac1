"""Trainings under a real Slurm have the same losses as on one machine, however they are started."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_run import HOSTS, host_files
from orch_command import ORCH
from slurm import Slurm
from testbed import Testbed
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_UP = (str(ORCH), "up", "--as-root-anyway", "--workers", "3", "--threads", "1")
_NODES = ("--engine", "slurm", "--nodes", "3")
_PROGRAM = ("--", "--epochs", "2", "--global-batch", "48", "--export", "none")
_LONGEST_S = 400.0


def _places(directory: Path) -> tuple[str, ...]:
    return ("--checkpoint-dir", str(directory / "kept"))


def _environ(directory: Path) -> dict[str, str]:
    """The environment that puts the runs into a directory that all machines share."""
    return {"XDG_STATE_HOME": str(directory / "state")}


def _losses(directory: Path) -> list[float]:
    epochs = json.loads((directory / "kept/history.json").read_text())["epochs"]
    return [epoch[name] for epoch in epochs for name in ("loss", "accuracy")]


@pytest.fixture(scope="module")
def losses_of_one_machine(all_machines: Testbed) -> Iterator[list[float]]:
    directory = all_machines.shared / "one_machine"
    directory.mkdir()
    command = (*_UP, *_places(directory), *_PROGRAM)
    all_machines["n0"].run(*command, env=_environ(directory), cwd=directory, timeout_s=_LONGEST_S)
    yield _losses(directory)
    shutil.rmtree(directory)


@pytest.mark.parametrize("where", ["login node", "salloc", "sbatch", "detached"])
def test_training_has_the_losses_of_one_machine(
    slurm: Slurm, machines: Testbed, project: Path, losses_of_one_machine: list[float], where: str
) -> None:
    files = {name: host_files(machines[name]) for name in HOSTS}
    words = (*_UP, *_NODES, *_places(project))
    nodes, script = ("--nodes=3", "--exclusive"), b""
    match where:
        case "login node":
            command = (*words, *_PROGRAM)
        case "salloc":
            command = ("salloc", *nodes, *words, *_PROGRAM)
        case "sbatch":
            command = ("sbatch", "--wait", *nodes, f"--output={project / 'out'}")
            script = f"#!/bin/sh\nexec {' '.join((*words, *_PROGRAM))}\n".encode()
        case _:
            command = (*words, "-d", "--wait", "done", *_PROGRAM)
    environ = {**slurm.environ, **_environ(project)}
    machines["n0"].run(*command, stdin=script, env=environ, cwd=project, timeout_s=_LONGEST_S)
    assert _losses(project) == pytest.approx(losses_of_one_machine, rel=1e-5)
    (result,) = (project / "state/orch/runs").glob("[!.]*/result.json")
    assert [task["host"] for task in json.loads(result.read_text())["tasks"]] == list(HOSTS)
    until(lambda: not slurm.queue())
    for name in HOSTS:
        until(lambda name=name: host_files(machines[name]) == files[name])
