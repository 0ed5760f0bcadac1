"""Fixtures of the tests with several hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import Testbed, reason_to_skip
from waiting import until


@pytest.fixture(scope="session")
def all_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Four machines, which take 1 s to make and 15 MB: each test process has its own."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    made = Testbed(tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()


@pytest.fixture
def machines(all_machines: Testbed) -> Iterator[Testbed]:
    """The machines with a network that works. Fails a test that leaves a process on one of them."""
    files = {name: machine.files() for name, machine in all_machines.machines.items()}
    yield all_machines
    all_machines.heal()
    try:
        for machine in all_machines.machines.values():
            until(lambda machine=machine: not machine.programs())
            machine.end_sessions()
            until(lambda machine=machine: not machine.command_lines())
    finally:
        for name, machine in all_machines.machines.items():
            machine.kill_all()
            for path in machine.files() - files[name]:
                machine.run("rm", "-f", path)


@pytest.fixture
def project(machines: Testbed, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new directory that all machines share, for the files of one test. Its name is that of the run."""
    directory = machines.shared / request.node.name.partition("[")[0]
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)
