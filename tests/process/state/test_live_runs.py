"""Damage to the files of a live run: it is still shown as live, and `down` ends it and no other process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from made_runs import LASTS, Cli
from orch_command import Orch
from waiting import lives, until, until_gone

from orchestrator.store.runs.paths import RunPaths

PROGRAM = [sys.executable, "-I", "-S", "-c", LASTS]


@pytest.fixture
def orch(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orch]:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    orch = Orch(tmp_path / "project", state_dir)
    yield orch
    for run in Live.made:  # not by `orch`, which cannot find the runs in some of these tests
        if run.supervisor.is_running():
            run.supervisor.kill()
        until_gone(*run.all_pids)
    Live.made.clear()


class Live:
    """A run of two tasks that end on request."""

    made: ClassVar[list[Live]] = []

    def __init__(self, orch: Orch) -> None:
        done = orch("up", "-n", "2", "-d", "--wait", "ready", "--name", "live", "--json", "--", *PROGRAM)
        assert done.code == 0, done.err
        document = done.document
        self.paths = RunPaths(Path(document["run"]["dir"]))
        self.id: str = document["run"]["id"]
        record = json.loads(self.paths.record.read_text())
        self.supervisor = psutil.Process(record["supervisor_pid"])
        self.made.append(self)
        self.pids: list[int] = [task["pid"] for task in document["tasks"]]
        until(lambda: b"said by" in self.paths.task_log("worker:1").read_bytes())

    @property
    def all_pids(self) -> list[int]:
        return [self.supervisor.pid, *self.pids]

    def is_whole(self) -> bool:
        return all(lives(pid) for pid in self.all_pids)


def _swap(path: Path) -> None:
    """Replace a file by a new one, which is not locked."""
    path.unlink()
    path.touch(0o600)


def _link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(1000))


def _planted(path: Path) -> None:
    path.write_text('{"schema_version": 1, "run_id": "x", "outcome": "succeeded"}')


HARM: dict[str, Callable[[RunPaths], object]] = {
    "its lock is removed": lambda paths: paths.lock.unlink(),
    "its lock is another file": lambda paths: _swap(paths.lock),
    "its control socket is removed": lambda paths: paths.control.unlink(),
    "its record is garbage and its lock is gone": lambda paths: (_garbage(paths.record), paths.lock.unlink()),
    "its lock is a link": lambda paths: _link(paths.lock),
    "its lock is a pipe": lambda paths: (paths.lock.unlink(), os.mkfifo(paths.lock)),
    "its control socket is a file": lambda paths: (paths.control.unlink(), paths.control.touch()),
    "its record is removed": lambda paths: paths.record.unlink(),
    "its record is garbage": lambda paths: _garbage(paths.record),
    "its events are removed": lambda paths: paths.events.unlink(),
    "its events are garbage": lambda paths: (paths.events.unlink(), _garbage(paths.events)),
    "a result is put there": lambda paths: _planted(paths.result),
    "everything but the lock is removed": lambda paths: [
        path.unlink(missing_ok=True)
        for path in paths.root.iterdir()
        if path.is_file() and path.name != "lock"
    ],
}
QUICK = ("its lock is removed", "its control socket is removed")


@pytest.mark.parametrize(
    "how", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in HARM]
)
def test_damaged_live_run_stays_live_and_can_be_ended(how: str, orch: Orch, cli: Cli) -> None:
    run = Live(orch)
    HARM[how](run.paths)
    status = cli("status", run.id, "--json")
    assert (status.code, json.loads(status.out)["run"]["state"]) == (0, "running"), status.err
    listed = json.loads(cli("ls", "--all", "--json").out)["runs"]
    assert [(row["id"], row["state"]) for row in listed] == [(run.id, "running")]
    assert "said by worker:0" in cli("logs", run.id).out
    assert cli("wait", run.id, "--timeout", "50ms").code == 124
    assert orch("up", "--name", "live", "--", *PROGRAM).code == 4
    assert cli("prune", "--keep", "0", "--all").code == 0
    assert run.paths.root.exists()
    assert run.is_whole()
    ended = cli("down", run.id)
    assert ended.code == 0, ended.err
    assert "was not running" not in ended.err
    until_gone(*run.all_pids)
    assert json.loads(cli("status", run.id, "--json").out)["run"]["state"] in ("stopped", "lost", "failed")


def test_socket_of_another_process_receives_nothing(orch: Orch, cli: Cli, tmp_path: Path) -> None:
    run = Live(orch)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(4)
        listener.setblocking(False)
        run.paths.control.unlink()
        run.paths.control.symlink_to(tmp_path / "s")
        assert cli("down", run.id).code == 0
        with pytest.raises(BlockingIOError):
            listener.accept()
    until_gone(*run.all_pids)


def test_copy_of_a_live_run_is_dead_and_affects_no_process(orch: Orch, cli: Cli) -> None:
    run = Live(orch)
    copy = run.paths.root.with_name(f"{run.id[:-4]}0000")
    # Temporary documents are excluded: they can be renamed before they are copied.
    shutil.copytree(run.paths.root, copy, ignore=shutil.ignore_patterns("control", ".*.json.*"))
    assert json.loads(cli("status", copy.name, "--json").out)["run"]["state"] == "lost"
    assert "copy" in cli("status", copy.name).err
    ended = cli("down", copy.name, "--json")
    assert (ended.code, json.loads(ended.out)["swept"]) == (0, 0)
    assert cli("wait", copy.name).code == 125
    assert run.is_whole()
    assert json.loads(cli("status", "live", "--json").out)["run"]["id"] == run.id
    assert cli("down", run.id).code == 0
    until_gone(*run.all_pids)


@pytest.mark.slow
def test_renamed_live_run_is_ended_by_its_new_name(orch: Orch, cli: Cli) -> None:
    run = Live(orch)
    run.paths.root.rename(run.paths.root.with_name("by-hand"))
    cli("down", "by-hand")
    until_gone(*run.all_pids)
    assert json.loads(cli("status", "by-hand", "--json").out)["run"]["state"] in ("stopped", "failed")


@pytest.mark.parametrize(
    "how",
    ["removed", pytest.param("renamed", marks=pytest.mark.slow), pytest.param("all", marks=pytest.mark.slow)],
)
def test_run_ends_when_its_directory_is_removed(how: str, orch: Orch, state_dir: Path) -> None:
    """All processes end, because no command could find them, and waiting commands return."""
    up = orch.start("up", "-n", "2", "--", *PROGRAM)
    up.until_out("said by worker:0")
    up.until_out("said by worker:1")
    root = orch.run_dir()
    waiting = orch.start("wait", root.name)
    until(lambda: _has_open(waiting.process.pid, "lock"))
    pids = [*orch.pids(), orch.supervisor() or 0]
    if how == "removed":
        until(lambda: _removed(root))
    elif how == "renamed":
        root.rename(root.with_name(f"{root.name}-old"))
    else:
        state_dir.rename(state_dir.with_name("elsewhere"))
    done = up.finish()
    until_gone(*pids)
    assert done.code == 125
    assert str(root) in done.err
    waited = waiting.finish()
    assert waited.code == 125 and "Traceback" not in waited.err


def _removed(directory: Path) -> bool:
    """Remove the directory. False if that fails because the run writes a file in between, like `rm -rf`."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def _has_open(pid: int, name: str) -> bool:
    try:
        return any(fd.readlink().name == name for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
