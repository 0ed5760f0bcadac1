"""Fixtures of the tests with several hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hosts_run import COUNT, HostsRun
from orch_command import ORCH
from slurm import Slurm
from slurm import reason_to_skip as why_no_slurm
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


@pytest.fixture
def up(machines: Testbed, project: Path) -> Iterator[Any]:
    """Starts `orch up` on n0. At the end, no process and no file of a run is left on the hosts."""
    before = {name: _files(machines, name) for name in ("n1", "n2", "n3")}
    started: list[HostsRun] = []

    def start(
        *words: str,
        hosts: str | None = "n1,n2,n3",
        within: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> HostsRun:
        output = machines.directory / "output"
        where = [] if hosts is None else ["--hosts", hosts]
        with output.open("wb") as file:
            command = [*within, str(ORCH), "up", "--as-root-anyway", *where, *words]
            process = machines["n0"].start(
                *("env", "-C", str(project), *command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=env,
            )
        started.append(HostsRun(machines, process, output))
        return started[-1]

    yield start
    machines.heal()
    for run in started:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()
    for name in before:
        until(lambda name=name: not machines[name].programs())
        assert _files(machines, name) == before[name], name
    machines["n0"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")


def _files(machines: Testbed, name: str) -> set[str]:
    """The files of a machine without the cached bundle, and without those of Keras and ssh themselves."""
    kept = ("/.cache/orch/bundles/", "/.keras/", "/.ssh/")
    return {path for path in machines[name].files() if not any(part in path for part in kept)}


@pytest.fixture
def counting(project: Path) -> tuple[str, ...]:
    """A command whose tasks print until the file `end` exists."""
    (project / "count.py").write_text(COUNT)
    return ("--", sys.executable, "count.py", str(project / "end"))


@pytest.fixture
def slurm(up: Any, machines: Testbed) -> Iterator[Slurm]:
    """A Slurm of three nodes. At the end its queue is empty, and no step is left on a node."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    started = Slurm(machines)
    try:
        yield started
        machines.heal()
        until(lambda: not started.queue())
        for name in ("n1", "n2", "n3"):
            until(lambda name=name: len(machines[name].programs()) == len(started.daemons(name)))
    finally:
        started.close()
