"""Fixtures of the tests with Slurm, whose daemons run on the pretend machines for all tests of a test process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import testbed
from batch_run import RESUMES, BatchRun
from hosts_run import Commands, HostsRun, shared_state
from login_node import NODES, LoginNode
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
    for machine in machines.machines.values():
        shutil.rmtree(machine.state, ignore_errors=True)


@pytest.fixture
def login(slurm: Slurm, machines: Testbed, project: Path) -> Iterator[LoginNode]:
    with Commands(machines["n0"]) as commands:
        yield LoginNode(commands, slurm, project)
        commands.run(project, "down", "--all", env=slurm.environ | shared_state(project))


@pytest.fixture
def start(up: Any, slurm: Slurm) -> Callable[..., HostsRun]:
    """Starts `orch up` on three nodes."""
    return lambda *words: up(*NODES, *words, hosts=None, env=slurm.environ)


@pytest.fixture
def started(start: Callable[..., HostsRun], counting: tuple[str, ...]) -> Callable[..., HostsRun]:
    """Starts a run whose three tasks count."""

    def start_all(*words: str) -> HostsRun:
        run = start(*words, *counting)
        run.until_event("task_started", 3)
        return run

    return start_all


@pytest.fixture
def batch(machines: Testbed, slurm: Slurm, project: Path) -> Iterator[BatchRun]:
    (project / "resumes.py").write_text(RESUMES)
    run = BatchRun(machines, slurm, project)
    yield run
    if run.job:
        slurm.run("scancel", run.job, check=False)
