"""A user of this machine with a home directory and runs: the user of the tests, or one that root switches to."""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import measure_coverage
import pytest
from orch_command import ORCH
from waiting import PATIENCE_S, until

# The uid of an ordinary user without a name or files.
ORDINARY = 54_321


@functools.cache
def _runs_orch(uid: int, orch: Path) -> bool:
    """Whether this user can run this installation of orch: its directories may be closed to others."""
    who: dict[str, Any] = {} if uid == os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}
    try:
        done = subprocess.run([str(orch), "--version"], capture_output=True, check=False, cwd="/", **who)
    except PermissionError:  # the script or its interpreter
        return False
    return done.returncode == 0


@functools.cache
def _make_environment() -> Path | None:
    """A virtual environment on the system's Python with the packages of the tests. None: that is another Python.

    The Python of the tests may be in a home directory that others cannot enter. The end of this process removes it.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if (system := shutil.which(version, path=os.defpath)) is None:
        return None
    environment = Path(tempfile.mkdtemp(prefix="orch-environment-"))
    atexit.register(shutil.rmtree, environment)
    packages = environment / "lib" / version / "site-packages"
    for directory in (environment / "bin", packages.parent):
        directory.mkdir(parents=True)
    packages.symlink_to(sysconfig.get_path("purelib"))
    (environment / "bin/python").symlink_to(system)
    (environment / "pyvenv.cfg").write_text(f"home = {Path(system).parent}\n")
    _, _, program = ORCH.read_text().partition("\n")
    (environment / "bin/orch").write_text(f"#!{environment}/bin/python\n{program}")
    for path in (environment, *environment.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    return environment


def _find_orch(uid: int) -> Path:
    """The `orch` that this user can run: the installed one, or the one on the system's Python."""
    if _runs_orch(uid, ORCH):
        return ORCH
    environment = _make_environment()
    if environment is not None and _runs_orch(uid, environment / "bin/orch"):
        return environment / "bin/orch"
    pytest.skip(
        f"the user {uid} can run neither {ORCH} nor its packages with the Python of the system: this needs a"
        " checkout and a virtual environment that all users can read, and a Python of the same version"
    )


def _is_locked(lock: Path) -> bool:
    """Whether a run is live. Not by orch's own functions, which do not use files of other users."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class User:
    """The user `uid`; None: the user of the tests. The end of the `with` stops all runs left.

    `orch` and `python` are paths of programs that this user can run. Skips the test if there are none.
    """

    def __init__(self, uid: int | None, state_dir: Path) -> None:
        if uid is not None and os.geteuid() != 0:
            pytest.skip("needs root to become another user")
        self.uid = os.geteuid() if uid is None else uid
        self.orch = _find_orch(self.uid)
        self.python = self.orch.with_name("python")
        # Not below the directory of the tests, which other users cannot enter.
        self.home = Path(tempfile.mkdtemp(prefix="orch-user-"))
        self._become: dict[str, Any] = {}
        if uid is not None:
            os.chown(self.home, uid, uid)
            self._become = {"user": uid, "group": uid, "extra_groups": []}
        self._env = os.environ | {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state")}
        # Marks the user's processes as processes of this test.
        self._env["OF_XDG_STATE_HOME"] = str(state_dir)
        if uid is not None:
            self._env.pop(measure_coverage.INTO, None)  # others cannot write there

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs():
            if _is_locked(run / "lock"):
                self("down", "--force", run.name)
        shutil.rmtree(self.home)

    def __call__(self, *words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run `orch` with these words, after the words of `before`, to its end."""
        return self.run(*before, str(self.orch), *words)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command as this user in the home directory, to its end."""
        return subprocess.run(
            argv,
            cwd=self.home,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **self._become,
        )

    def script(self, name: str, text: str) -> str:
        (self.home / name).write_text(text)
        return name

    def runs(self) -> list[Path]:
        runs = self.home / "state/orch/runs"
        return sorted(run for run in runs.iterdir() if not run.name.startswith(".")) if runs.exists() else []

    def detached(self, *words: str, before: tuple[str, ...] = ()) -> Path:
        """Start a run in the background and return its directory."""
        done = self("up", "-d", *words, before=before)
        assert done.returncode == 0, done.stderr
        return self.home / "state/orch/runs" / done.stdout.strip()

    def until_logged(self, run: Path, text: str, task: str = "worker-0") -> str:
        """Wait until the task's log holds `text` and return it; fail if the run ends without it."""
        log, result = run / "logs" / f"{task}.log", run / "result.json"

        def found() -> str | None:
            has_ended = result.exists()
            # Complete lines only: an unbuffered print is several writes.
            whole, end, _ = (log.read_text() if log.exists() else "").rpartition("\n")
            words = whole + end
            assert text in words or not has_ended, (words, result.read_text())
            return words if text in words else None

        return until(found)

    def pid_of_first_task(self, run: Path) -> int:
        """Wait for the pid: a task's output may arrive before the event of its start."""
        return until(lambda: next((int(task["pid"]) for task in self.tasks(run) if task["pid"]), None))

    def tasks(self, run: Path) -> list[dict[str, Any]]:
        tasks = json.loads(self("status", "--json", run.name).stdout)["tasks"]
        assert isinstance(tasks, list)
        return tasks
