"""Real ended runs, made once and copied into each test's state directory, and `orch` within this process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from made_runs import FAILS, LASTS, Cli, Made, Output, Place
from orch_command import ORCH
from waiting import until, until_gone

from orchestrator.cli.app import main
from orchestrator.store.runs import locks
from orchestrator.store.runs.paths import RunPaths, runs_dir


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that runs `orch` with these arguments in this process."""

    def run(*words: str) -> Output:
        monkeypatch.setattr(sys, "argv", ["orch", *words])
        capfd.readouterr()
        code = main()
        return Output(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make a run that failed with exit code 3, and a run whose supervisor was killed."""
    state = tmp_path_factory.mktemp("made-state")
    directory = tmp_path_factory.mktemp("project")
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ORCH_")},
        "XDG_STATE_HOME": str(state),
    }

    def up(name: str, program: str, *options: str) -> Path:
        words = [sys.executable, "-I", "-S", "-c", program]
        done = subprocess.run(
            [str(ORCH), "up", "-n", "2", "--name", name, *options, "--", *words],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode in (0, 3), done.stderr
        return next(entry for entry in (state / "orch" / "runs").iterdir() if entry.name.startswith(name))

    failed = up("failing", FAILS)
    lost = up("losing", LASTS, "-d", "--wait", "ready")
    until(lambda: b"said by" in RunPaths(lost).task_log("worker:1").read_bytes())
    supervisor = psutil.Process(_supervisor(lost))
    family = [supervisor, *supervisor.children(recursive=True)]
    supervisor.send_signal(signal.SIGKILL)
    until_gone(*(process.pid for process in family))
    until(lambda: not locks.is_held(lost / "lock"))
    return Made(directory, failed, lost)


def _supervisor(run: Path) -> int:
    pid = json.loads((run / "run.json").read_text())["supervisor_pid"]
    assert isinstance(pid, int)
    return pid


@pytest.fixture
def place(made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """Return a function that copies a made run into the state directory of this test."""
    monkeypatch.chdir(made.directory)

    def put(run: Path) -> RunPaths:
        runs_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = runs_dir() / run.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("control"))
        return RunPaths(copy)

    return put
