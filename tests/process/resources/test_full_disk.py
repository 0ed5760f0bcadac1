"""A disk that is full: what the store still writes, and what `orch` says. Faults at each moment are in the matrix."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orch_command import Finished, Orch
from small_disk import SmallDisk
from waiting import until

from worker.agent.resource_failures import full_disk

NO_SPACE = "No space left on device"
# Runs with the small disk mounted, and fills and empties it between the calls of the store.
_PROGRAM = """
import json, os, sys
sys.path[:0] = {path!r}
os.environ["XDG_STATE_HOME"] = {disk!r}
from run_records import make_run
from orchestrator.core.state import events
from orchestrator.core.state.result import RunResult
from orchestrator.store.runs.record import RunRecord
from orchestrator.store.runs.writer import RunStore, new_run_id

def fill():
    with open({disk!r} + "/filler", "wb", buffering=0) as filler:
        try:
            while True: filler.write(b"x" * 4096)
        except OSError: pass

def make_room(): os.unlink({disk!r} + "/filler")

def notice(n):
    store.append(events.Noticed(at=float(n), mono=float(n), text="x" * 500 + str(n)))
    failures.append(store.take_failure())

store = make_run()
failures = []
{steps}
store.close()
print(json.dumps({{"failures": failures, "written": store.result_is_written, "root": str(store.paths.root)}}))
"""
# The task writes more than the disk holds.
_FLOOD = "import sys\nprint('up', flush=True)\nfor n in range(10**9): print(n, 'x' * 90)\n"
_IGNORES_ERRORS = """
import time
while True:
    try: print('x' * 90, flush=True)
    except OSError: time.sleep(0.01)
"""
_SAVE = """
import os
with open(os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], "ckpt"), "wb") as file:
    for n in range(1000): file.write(b"w" * 65536)
"""


def stored(disk: SmallDisk, steps: str) -> tuple[dict[str, Any], Path]:
    """Return the program's output and the run's directory by a path that this process can use."""
    program = _PROGRAM.format(path=sys.path, disk=str(disk.path), steps=steps)
    argv = [*disk.before(disk.path.parent), sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer, disk.seen / Path(answer["root"]).relative_to(disk.path)


def numbers(run: Path) -> list[float]:
    """The numbers of the notices in the file, every line of which must be complete."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["mono"] for event in events if event["type"] == "noticed"]


def test_events_wait_for_space_and_keep_their_order(disk: SmallDisk) -> None:
    """The failure is reported once."""
    answer, run = stored(disk, "notice(0)\nfill()\nfor n in range(1, 60): notice(n)\nmake_room()\nnotice(60)")
    assert numbers(run) == list(range(61))
    (reason,) = [reason for reason in answer["failures"] if reason]
    assert reason == f"{answer['root']}/events.jsonl: {NO_SPACE}"


def test_result_is_written_into_the_reserved_space(disk: SmallDisk) -> None:
    """A sample is not: it stays as it was."""
    steps = """
store.write_sample(1.0, 1.0, {"worker:0": {"cpu_percent": 1.0}})
fill()
store.write_sample(2.0, 2.0, {f"worker:{n}": {"cpu_percent": 1.0} for n in range(500)})
failures.append(store.take_failure())
for n in range(100): notice(n)
store.write_result(RunResult(run_id="x", outcome="failed", exit_code=125, attempts=1, cause=None, first_failure=None,
                             detection_s=None, teardown_s=None, tasks=()))
"""
    answer, run = stored(disk, steps)
    assert answer["written"]
    assert json.loads((run / "result.json").read_text())["exit_code"] == 125
    assert numbers(run) == list(range(100))
    assert answer["failures"][0] == f"{answer['root']}/sample.json: {NO_SPACE}"
    assert json.loads((run / "sample.json").read_text())["at"] == 1.0
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_run_that_does_not_fit_leaves_nothing(disk: SmallDisk) -> None:
    """Neither if no file can be created, nor if only the reserved space could."""
    steps = """
def publish_without_room():
    fresh = RunStore.create(new_run_id("third"), None, None)
    fill()
    fresh.publish(RunRecord(id="x", name="third", directory="/", started_at=1.0, started_mono=1.0, boot_id="x",
        supervisor_pid=1, supervisor_start_ticks=1, checkpoint_dir="/", versions={}, spec={"x": "x" * 100_000}))

def refused(make):
    try: make()
    except OSError as error: failures.append(os.strerror(error.errno))

fill()
refused(lambda: make_run("second"))
make_room()
refused(publish_without_room)
failures += sorted(path.name for path in store.paths.root.parent.iterdir())
"""
    answer, run = stored(disk, steps)
    assert answer["failures"] == [NO_SPACE, NO_SPACE, run.name]


def test_full_disk_is_found_by_writing(disk: SmallDisk, tmp_path: Path) -> None:
    assert full_disk([str(disk.seen), str(tmp_path), "/nowhere"]) is None
    disk.fill()
    assert full_disk([str(tmp_path), str(disk.seen)]) == f"{disk.seen}: {NO_SPACE}"
    assert [path.name for path in disk.seen.iterdir()] == ["filler"]


class OnDisk:
    """`orch` with the small disk mounted."""

    def __init__(self, orch: Orch, disk: SmallDisk) -> None:
        self._orch = orch
        self.disk = disk
        self.logs = ("--log-dir", str(disk.path))

    def __call__(self, *words: str) -> Finished:
        return self._orch.start(*words, before=self.disk.before(self._orch.directory)).finish()

    def up(self, *words: str) -> Finished:
        """Two tasks, with the run's directory on the disk."""
        return self("up", "-n", "2", *self.logs, "-q", "--", sys.executable, "-I", "-S", "-c", *words)

    def run_dir(self) -> Path:
        (record,) = self.disk.seen.glob("*/run.json")
        return record.parent


@pytest.fixture
def on_disk(orch: Orch, disk: SmallDisk) -> Iterator[OnDisk]:
    yield OnDisk(orch, disk)
    # Other processes cannot follow these links.
    for pointer in (orch.state / "orch" / "runs").glob("*"):
        if pointer.is_symlink():
            pointer.unlink()


def test_run_ends_even_if_the_task_ignores_write_errors(on_disk: OnDisk) -> None:
    """TensorFlow ignores errors of its log lines, too; orch notices them. Everything that was written can be read."""
    done = on_disk.up(_IGNORES_ERRORS)
    run = on_disk.run_dir()
    result = json.loads((run / "result.json").read_text())
    assert done.code == result["exit_code"] == 125
    assert (result["cause"]["task"], result["cause"]["kind"]) == (None, "limit")
    assert NO_SPACE in result["cause"]["text"] and str(on_disk.disk.path) in result["cause"]["text"]
    for path in run.glob("*.json"):
        json.loads(path.read_text())
    for line in (run / "events.jsonl").read_text().splitlines():
        json.loads(line)
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]
    assert on_disk("status", "--json").document["run"]["state"] == "failed"
    logged = on_disk("logs", "--raw")
    written = sum(path.stat().st_size for path in run.glob("logs/*.log"))
    assert logged.code == 0 and len(logged.out.encode()) == written > 100_000


@pytest.mark.slow
def test_checkpoint_that_does_not_fit_is_the_tasks_failure(on_disk: OnDisk, orch: Orch) -> None:
    where = str(on_disk.disk.path / "checkpoints")
    script = orch.script("save.py", _SAVE)
    done = on_disk("up", "-n", "2", "--checkpoint-dir", where, "--", sys.executable, script)
    result = orch.result()
    assert (done.code, result["exit_code"], result["cause"]["kind"]) == (1, 1, "exited")
    assert NO_SPACE in result["first_failure"]["exception"]
    assert "The disk is full" in result["first_failure"]["advice"]
    assert (on_disk.disk.seen / "checkpoints" / "ckpt").stat().st_size > 1 << 19


def test_disk_that_is_full_before_the_run_is_refused(on_disk: OnDisk) -> None:
    on_disk.disk.fill()
    done = on_disk.up("pass")
    assert done.code == 2 and NO_SPACE in done.err and "Traceback" not in done.err
    assert [path.name for path in on_disk.disk.seen.iterdir()] == ["filler"]


@pytest.mark.slow
def test_verbs_work_again_after_prune(on_disk: OnDisk) -> None:
    on_disk.up(_FLOOD)
    run = on_disk.run_dir()
    on_disk.disk.fill()
    before = on_disk("prune", "--keep", "0", "--dry-run").out
    done = on_disk("prune", "--keep", "0")
    assert done.code == 0
    expected = before.replace("would remove", "removed").replace("would free", "freed")
    assert re.sub(r"ended \w+ ago", "", expected) == re.sub(r"ended \w+ ago", "", done.out)
    assert not run.exists()
    assert until(on_disk.disk.free) > 100_000
    assert on_disk.up("pass").code == 0
