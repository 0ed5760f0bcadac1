"""Damage to the files of a live run: it is still shown as live, and `down` ends it and no other process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from damage import ALL_DAMAGES, Damage
from orch_command import Orch
from waiting import lives, until, until_gone

from orchestrator.store.runs.paths import RunPaths

_LASTS = "import os, time; print('said by', os.environ['ORCH_TASK'], flush=True); time.sleep(600)"
PROGRAM = [sys.executable, "-I", "-S", "-c", _LASTS]
Start = Callable[[], "Live"]


class Live:
    """A run of two tasks that end on request."""

    def __init__(self, orch: Orch) -> None:
        done = orch("up", "-n", "2", "-d", "--wait", "ready", "--name", "live", "--json", "--", *PROGRAM)
        assert done.code == 0, done.err
        self.paths = RunPaths(Path(done.document["run"]["dir"]))
        self.id: str = done.document["run"]["id"]
        self.supervisor = orch.record(self.paths.root)["supervisor_pid"]
        self.pids: list[int] = [self.supervisor, *(task["pid"] for task in done.document["tasks"])]
        until(lambda: b"said by" in self.paths.task_log("worker:1").read_bytes())

    def is_whole(self) -> bool:
        return all(lives(pid) for pid in self.pids)


@pytest.fixture
def start(cold_orch: Orch) -> Iterator[Start]:
    """Start live runs. They are ended by their pids, because no command can find some of them."""
    started: list[Live] = []

    def run() -> Live:
        started.append(Live(cold_orch))
        return started[-1]

    yield run
    for live in started:
        if lives(live.supervisor):
            os.kill(live.supervisor, signal.SIGKILL)
        until_gone(*live.pids)
        shutil.rmtree(live.paths.root, ignore_errors=True)


def _planted(run: Path) -> None:
    (run / "result.json").write_text('{"schema_version": 1, "run_id": "x", "outcome": "succeeded"}')


def _all_but_the_lock(run: Path) -> None:
    for path in run.iterdir():
        if path.is_file() and path.name != "lock":
            path.unlink(missing_ok=True)


NAMED = (
    *("lock: missing", "control: missing", "lock: empty", "lock: a link", "lock: a pipe", "control: empty"),
    *("run.json: missing", "run.json: garbage", "events.jsonl: missing", "events.jsonl: garbage"),
)
HARM: dict[str, Damage] = {
    **{name: ALL_DAMAGES[name] for name in NAMED},
    "a result is put there": _planted,
    "everything but the lock is removed": _all_but_the_lock,
}


@pytest.mark.parametrize(
    "how", [*NAMED[:2], *(pytest.param(each, marks=pytest.mark.slow) for each in [*HARM][2:])]
)
def test_damaged_live_run_stays_live_and_can_be_ended(how: str, cold_orch: Orch, start: Start) -> None:
    orch, run = cold_orch, start()
    HARM[how](run.paths.root)
    status = orch("status", run.id, "--json")
    assert (status.code, status.document["run"]["state"]) == (0, "running"), status.err
    listed = orch("ls", "--all", "--json").document["runs"]
    assert [(row["id"], row["state"]) for row in listed] == [(run.id, "running")]
    assert "said by worker:0" in orch("logs", run.id).out
    assert orch("wait", run.id, "--timeout", "50ms").code == 124
    assert orch("up", "--name", "live", "--", *PROGRAM).code == 4
    assert orch("prune", "--keep", "0", "--all").code == 0
    assert run.paths.root.exists() and run.is_whole()
    ended = orch("down", run.id)
    assert ended.code == 0 and "was not running" not in ended.err, ended.err
    until_gone(*run.pids)
    assert orch("status", run.id, "--json").document["run"]["state"] in ("stopped", "lost", "failed")


def test_copy_of_a_live_run_is_dead_and_affects_no_process(
    cold_orch: Orch, start: Start, tmp_path: Path
) -> None:
    """Neither does a socket of another process in place of the control socket receive anything."""
    orch, run = cold_orch, start()
    copy = run.paths.root.with_name(f"{run.id[:-4]}0000")
    # Temporary documents are excluded: they can be renamed before they are copied.
    shutil.copytree(run.paths.root, copy, ignore=shutil.ignore_patterns("control", ".*.json.*"))
    assert orch("status", copy.name, "--json").document["run"]["state"] == "lost"
    assert "copy" in orch("status", copy.name).err
    ended = orch("down", copy.name, "--json")
    assert (ended.code, ended.document["swept"]) == (0, 0)
    assert orch("wait", copy.name).code == 125
    assert run.is_whole()
    assert orch("status", "live", "--json").document["run"]["id"] == run.id
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(4)
        listener.setblocking(False)
        run.paths.control.unlink()
        run.paths.control.symlink_to(tmp_path / "s")
        assert orch("down", run.id).code == 0
        with pytest.raises(BlockingIOError):
            listener.accept()
    until_gone(*run.pids)


@pytest.mark.parametrize("is_whole_state", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_run_ends_when_its_directory_is_renamed(
    is_whole_state: bool, cold_orch: Orch, state_dir: Path
) -> None:
    """All processes end, because no command could find them, and waiting commands return."""
    orch = cold_orch
    up = orch.start("up", "-n", "2", "--", *PROGRAM)
    for number in range(2):
        up.until_out(f"said by worker:{number}")
    root = orch.run_dir()
    waiting = orch.start("wait", root.name)
    until(lambda: _has_open(waiting.process.pid, "lock"))
    pids = [*orch.pids(), orch.supervisor() or 0]
    renamed = state_dir if is_whole_state else root
    renamed.rename(renamed.with_name("elsewhere"))
    done = up.finish()
    until_gone(*pids)
    assert done.code == 125 and str(root) in done.err
    waited = waiting.finish()
    assert waited.code == 125 and "Traceback" not in waited.err


def _has_open(pid: int, name: str) -> bool:
    try:
        return any(fd.readlink().name == name for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
