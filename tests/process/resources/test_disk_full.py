"""A disk that becomes full ends the run with that cause, nothing hangs, and written files can be read."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orch_command import Finished, Orch
from small_disk import SmallDisk
from waiting import until

NO_SPACE = "No space left on device"
UP = "import sys, time\nprint('up', flush=True)\n"
SLEEP = "time.sleep(600)\n"
# The task writes more than the disk holds.
FLOOD = "for n in range(10**9): print(n, 'x' * 90)\n"
SAVE = """
import os
with open(os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], "ckpt"), "wb") as file:
    for n in range(1000): file.write(b"w" * 65536)
"""


class OnDisk:
    """`orch` with the small disk mounted."""

    def __init__(self, orch: Orch, disk: SmallDisk) -> None:
        self._orch = orch
        self.disk = disk

    def start(self, *words: str, state: bool = False) -> Any:
        """`state`: all of orch's own files are on the small disk."""
        env = {"XDG_STATE_HOME": str(self.disk.path)} if state else {}
        return self._orch.start(*words, before=self.disk.before(self._orch.directory), env=dict(env))

    def __call__(self, *words: str, state: bool = False) -> Finished:
        done: Finished = self.start(*words, state=state).finish()
        return done

    def run_dir(self) -> Path:
        """The run's directory on the disk, from --log-dir or in the state directory."""
        (run,) = self.run_dirs()
        return run

    def run_dirs(self) -> list[Path]:
        found = [*self.disk.seen.glob("*/run.json"), *self.disk.seen.glob("orch/runs/*/run.json")]
        return [record.parent for record in found]


@pytest.fixture
def on_disk(orch: Orch, disk: SmallDisk) -> Iterator[OnDisk]:
    here = OnDisk(orch, disk)
    yield here
    for run in here.run_dirs():
        here("down", "--force", run.name, state=run.is_relative_to(disk.seen / "orch"))
    # Other processes cannot follow these links.
    for pointer in (orch.state / "orch" / "runs").glob("*"):
        if pointer.is_symlink():
            pointer.unlink()


def program(*parts: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", "".join(parts))


def assert_documents_are_complete(run: Path) -> None:
    """Assert that every document can be parsed and that no temporary file is left."""
    for path in run.glob("*.json"):
        json.loads(path.read_text())
    for line in (run / "events.jsonl").read_text().splitlines():
        json.loads(line)
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


def test_full_disk_under_orchs_own_files_ends_the_run(on_disk: OnDisk) -> None:
    """The tasks write nothing more, so only orch notices."""
    up = on_disk.start("up", "-n", "2", "--", *program(UP, SLEEP), state=True)
    up.until_out("up", 2)
    on_disk.disk.fill()
    done = up.finish()
    run = on_disk.run_dir()
    result = json.loads((run / "result.json").read_text())
    assert_documents_are_complete(run)
    assert done.code == result["exit_code"] == 125
    assert (result["cause"]["task"], result["cause"]["kind"]) == (None, "limit")
    assert result["cause"]["text"].startswith(str(on_disk.disk.path)) and NO_SPACE in result["cause"]["text"]
    assert NO_SPACE in done.err
    assert on_disk("status", "--json", state=True).document["run"]["state"] == "failed"
    assert on_disk("logs", "--no-prefix", state=True).out == "up\nup\n"
    assert on_disk("down", state=True).code == 0
    assert on_disk.disk.free() < 1 << 20


@pytest.mark.slow
def test_task_that_fills_the_log_directory(on_disk: OnDisk) -> None:
    """The task or orch notices first. In both cases the run ends and reports the reason."""
    log_dir = str(on_disk.disk.path)
    done = on_disk("up", "-n", "2", "--log-dir", log_dir, "-q", "--", *program(UP, FLOOD))
    run = on_disk.run_dir()
    result = json.loads((run / "result.json").read_text())
    assert result["outcome"] == "failed"
    assert done.code == result["exit_code"] != 0
    assert NO_SPACE in done.err + result["cause"]["text"]
    assert_documents_are_complete(run)
    status = on_disk("status", "--json").document
    assert status["run"]["state"] == "failed"
    assert all(task["state"] in ("failed", "stopped") for task in status["tasks"])
    assert [run["state"] for run in on_disk("ls", "--json").document["runs"]] == ["failed"]
    logged = on_disk("logs", "--raw")
    assert logged.code == 0
    written = sum(path.stat().st_size for path in run.glob("logs/*.log"))
    assert len(logged.out.encode()) == written > 100_000


def test_run_ends_even_if_the_task_ignores_write_errors(on_disk: OnDisk) -> None:
    """TensorFlow ignores errors of its log lines, too; orch notices them."""
    ignores_errors = """
import time
while True:
    try: print('x' * 90, flush=True)
    except OSError: time.sleep(0.01)
"""
    log_dir = str(on_disk.disk.path)
    done = on_disk("up", "-n", "2", "--log-dir", log_dir, "-q", "--", *program(UP, ignores_errors))
    run = on_disk.run_dir()
    result = json.loads((run / "result.json").read_text())
    assert done.code == result["exit_code"] == 125
    assert (result["cause"]["task"], result["cause"]["kind"]) == (None, "limit")
    assert NO_SPACE in result["cause"]["text"]
    assert str(on_disk.disk.path) in result["cause"]["text"]
    assert_documents_are_complete(run)
    assert on_disk("status", "--json").document["run"]["state"] == "failed"


@pytest.mark.slow
def test_checkpoint_that_does_not_fit_is_the_tasks_failure(on_disk: OnDisk, orch: Orch) -> None:
    where = str(on_disk.disk.path / "checkpoints")
    script = orch.script("save.py", UP + SAVE)
    done = on_disk("up", "-n", "2", "--checkpoint-dir", where, "--", sys.executable, script)
    result = orch.result()
    assert done.code == result["exit_code"] == 1
    assert result["cause"]["kind"] == "exited"
    assert NO_SPACE in result["first_failure"]["exception"]
    assert "The disk is full" in result["first_failure"]["advice"]
    assert (on_disk.disk.seen / "checkpoints" / "ckpt").stat().st_size > 1 << 19


def test_disk_that_is_full_before_the_run_is_refused(on_disk: OnDisk) -> None:
    on_disk.disk.fill()
    done = on_disk("up", "--log-dir", str(on_disk.disk.path), "--", *program(UP))
    assert done.code == 2
    assert NO_SPACE in done.err
    assert "Traceback" not in done.err
    left = [path.name for path in on_disk.disk.seen.iterdir()]
    assert left == ["filler"]


@pytest.mark.slow
def test_verbs_work_again_after_prune(on_disk: OnDisk) -> None:
    on_disk("up", "--log-dir", str(on_disk.disk.path), "-q", "--", *program(UP, FLOOD))
    run = on_disk.run_dir()
    on_disk.disk.fill()
    before = on_disk("prune", "--keep", "0", "--dry-run").out
    done = on_disk("prune", "--keep", "0")
    assert done.code == 0
    expected = before.replace("would remove", "removed").replace("would free", "freed")
    assert re.sub(r"ended \w+ ago", "", expected) == re.sub(r"ended \w+ ago", "", done.out)
    assert not run.exists()
    assert until(lambda: on_disk.disk.free()) > 100_000
    assert on_disk("up", "--log-dir", str(on_disk.disk.path), "--", *program(UP)).code == 0
