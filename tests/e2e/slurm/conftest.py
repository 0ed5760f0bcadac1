"""Fixtures of the tests with Slurm, whose daemons run on the pretend machines for all tests of a test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import testbed
from batch_run import RESUMES, BatchRun
from login_node import LoginNode
from slurm import Slurm, reason_to_skip
from testbed import Testbed


@pytest.fixture(scope="session")
def all_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Machines that only the tests with Slurm use."""
    if reason := testbed.reason_to_skip() or reason_to_skip():
        pytest.skip(reason)
    made = Testbed(tmp_path_factory.mktemp("nodes"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def all_slurm(all_machines: Testbed) -> Iterator[Slurm]:
    started = Slurm(all_machines)
    yield started
    started.close()


@pytest.fixture
def slurm(all_slurm: Slurm, up: Any, machines: Testbed) -> Iterator[Slurm]:
    """A Slurm of three idle nodes. At the end its queue is empty; `machines` checks that no step is left."""
    yield all_slurm
    machines.heal()
    all_slurm.settle()


@pytest.fixture
def login(slurm: Slurm, machines: Testbed, project: Path) -> Iterator[LoginNode]:
    node = LoginNode(machines, slurm, project)
    yield node
    node.orch("down", "--all", check=False)


@pytest.fixture
def batch(machines: Testbed, slurm: Slurm, project: Path) -> Iterator[BatchRun]:
    (project / "resumes.py").write_text(RESUMES)
    run = BatchRun(machines, slurm, project)
    yield run
    if run.job:
        machines["n0"].run("scancel", run.job, env=slurm.environ, check=False)
    for name in ("n0", "n1"):
        machines[name].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")
