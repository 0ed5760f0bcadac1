"""Fixtures of the tests with several hosts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts_run import HOSTS, HostsRun, counting_command, host_files, without_caches
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
    """The machines with a network that works. Fails a test that leaves a process on one of them.

    Its files are removed.
    """
    own_files = all_machines.own_files
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
            left = machine.files() - own_files[name]
            if left:
                machine.run("rm", "-f", *left)


@pytest.fixture
def project(machines: Testbed, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new directory that all machines share, for the files of one test. Its name is that of the run."""
    directory = machines.shared / request.node.name.partition("[")[0]
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def up(machines: Testbed, project: Path) -> Iterator[Any]:
    """Starts `orch up` on n0. At the end, no process and no file of a run is left on the hosts."""
    before = {name: without_caches(machines.own_files[name]) for name in HOSTS}
    started: list[HostsRun] = []

    def start(*words: str, **options: Any) -> HostsRun:
        started.append(HostsRun.start(machines, project, *words, **options))
        return started[-1]

    yield start
    for run in started:
        run.clear()
    for name in HOSTS:
        # clear() may miss the process that removes these files, if it has just started.
        with contextlib.suppress(AssertionError):
            until(lambda name=name: host_files(machines[name]) == before[name])
        assert host_files(machines[name]) == before[name], name


@pytest.fixture
def counting(project: Path) -> tuple[str, ...]:
    """A command whose tasks print until the file `end` exists."""
    return counting_command(project)
