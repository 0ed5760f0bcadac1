"""Fixtures that several directories of tests use. The root conftest loads them as a plugin."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from forks import ROOT, ForkedProcess, ForkServer
from kept import Kept
from leftover_processes import end_leftovers, processes_of
from orch_command import Orch, remove_variables

from orchestrator.host.inheritance import inheritance
from orchestrator.links.supervisor_link import SupervisorProcess, _start_process

_SUPERVISOR = (
    "orchestrator.supervisor.here",
    "orchestrator.supervisor.kept",
    "orchestrator.supervisor.serve",
)
TUTORIAL_VARIABLES: dict[str, str | None] = {
    "DIGITS": str(ROOT / "worker/examples/digits.npz"),
    "EPOCHS": "2",
    "STEPS": "5",
    "SEED": "7",
}


@pytest.fixture(scope="session", autouse=True)
def _forked_supervisors() -> Iterator[None]:
    """Fork the supervisors that this process starts, so that none has to import its modules: 0.3 s of CPU.

    Those that would inherit other attributes are new processes. With ORCH_TEST_COLD=1, all are."""
    if os.environ.get("ORCH_TEST_COLD") == "1":
        yield
        return
    first, server = inheritance(), ForkServer(*_SUPERVISOR)

    def start(door: int) -> subprocess.Popen[bytes] | ForkedProcess:
        if inheritance() != first or not Path("/proc/self/cwd").exists():
            return _start_process(door)
        with open(1, "wb", closefd=False) as out, open(2, "wb", closefd=False) as err:
            words = ["-P", "-m", "orchestrator.supervisor"]
            return server.fork(words, out, err, os.environ, Path.cwd(), door=door)

    with patch.object(SupervisorProcess.__init__, "__defaults__", (start,)):
        yield
    server.close()


@pytest.fixture(scope="session")
def kept() -> Iterator[Kept | None]:
    """The supervisor for most runs of this test process. With ORCH_TEST_COLD=1, each run starts its own."""
    if os.environ.get("ORCH_TEST_COLD") == "1":
        yield None
        return
    processes = Kept()
    yield processes
    processes.close()


@pytest.fixture
def orch(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    state_dir: Path,
    kept: Kept | None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Orch]:
    """The `orch` command in a new directory, with its own state directory. Its runs are ended after the test.

    Runs of slow tests are cold: most of them use TensorFlow, whose preloader stays as long as the kept processes."""
    kept = kept if request.node.get_closest_marker("slow") is None else None
    with _orch(tmp_path, state_dir, kept, monkeypatch) as command:
        yield command
    if kept is not None:
        kept.check()


@pytest.fixture
def cold_orch(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orch]:
    """Like `orch`, but each run starts its own supervisor and agent. For tests of how these start and exit."""
    with _orch(tmp_path, state_dir, None, monkeypatch) as command:
        yield command


@pytest.fixture(scope="module")
def shared_orch(tmp_path_factory: pytest.TempPathFactory, kept: Kept | None) -> Iterator[Orch]:
    """Like `orch`, for the runs that all tests of a module look at. Start a run that stays live with `cold=True`."""
    yield from _shared(tmp_path_factory.mktemp("shared"), kept)


@pytest.fixture(scope="session")
def tensorflow_orch(tmp_path_factory: pytest.TempPathFactory, kept: Kept | None) -> Iterator[Orch]:
    """Like `orch`, for scripts with TensorFlow: one preloader imports it for all of them.

    It fits runs with equal directories and variables, so all runs have the variables of the tutorials."""
    for command in _shared(tmp_path_factory.mktemp("tensorflow"), kept):
        command.variables = {**TUTORIAL_VARIABLES, "OUTPUT": str(command.state.parent / "output")}
        yield command


def _shared(base: Path, kept: Kept | None) -> Iterator[Orch]:
    before = {process.pid for process in processes_of(base / "state")}
    with pytest.MonkeyPatch.context() as patch:
        remove_variables(patch)
        with _orch(base, base / "state", kept, patch) as command:
            yield command
    if kept is not None:
        kept.check()
    end_leftovers(base / "state", before)


@contextlib.contextmanager
def _orch(
    tmp_path: Path, state_dir: Path, kept: Kept | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Orch]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "here"
    directory.mkdir()
    command = Orch(directory, state_dir, kept)
    yield command
    command.end_all()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts programs with TensorFlow imported. For tests that do not test the start itself."""
    server = ForkServer("tensorflow", "keras")
    yield server
    server.close()
