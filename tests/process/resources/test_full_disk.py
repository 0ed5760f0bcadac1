"""A disk that is full: what the store still writes, and what `orch` says. Faults at each moment are in the matrix."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from orch_command import Finished, Orch
from small_disk import NoDisk, SmallDisk
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

def publish_without_room():
    fresh = RunStore.create(new_run_id("third"), None, None)
    fill()
    fresh.publish(RunRecord(id="x", name="third", directory="/", started_at=1.0, started_mono=1.0, boot_id="x",
        supervisor_pid=1, supervisor_start_ticks=1, checkpoint_dir="/", versions={{}}, spec={{"x": "x" * 100_000}}))

def refused(make):
    try: make()
    except OSError as error: return os.strerror(error.errno)

store, other = make_run(), make_run("other")
failures = []
notice(0)
fill()
failed = [refused(lambda: make_run("second"))]
make_room()
failed.append(refused(publish_without_room))
runs = sorted(path.name for path in store.paths.root.parent.iterdir())
fill()
for n in range(1, 60): notice(n)
make_room()
notice(60)
other.write_sample(1.0, 1.0, {{"worker:0": {{"cpu_percent": 1.0}}}})
fill()
other.write_sample(2.0, 2.0, {{f"worker:{{n}}": {{"cpu_percent": 1.0}} for n in range(500)}})
failures.append(other.take_failure())
for n in range(61, 160): notice(n)
store.write_result(RunResult(run_id="x", outcome="failed", exit_code=125, attempts=1, cause=None, first_failure=None,
                             detection_s=None, teardown_s=None, tasks=()))
for each in (store, other): each.close()
roots = [str(each.paths.root) for each in (store, other)]
print(json.dumps([failed, runs, failures, store.result_is_written, roots]))
"""
_IGNORES_ERRORS = """
import time
while True:
    try: print('x' * 90, flush=True)
    except OSError: time.sleep(0.01)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 2 MiB that only the commands started on it can see."""
    try:
        with SmallDisk(tmp_path / "disk", 2 << 20) as small:
            yield small
    except NoDisk as reason:
        pytest.skip(str(reason))


def test_store_on_a_full_disk(disk: SmallDisk) -> None:
    """Events wait for space and keep their order, and the result is written into the reserved space. A run that does
    not fit leaves nothing: neither if no file can be created, nor if only the reserved space could."""
    program = _PROGRAM.format(path=sys.path, disk=str(disk.path))
    argv = [*disk.before(disk.path.parent), sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    refused, runs, failures, is_written, roots = json.loads(done.stdout)
    run, other = (disk.seen / Path(root).relative_to(disk.path) for root in roots)
    assert (refused, runs, is_written) == ([NO_SPACE, NO_SPACE], [run.name, other.name], True)
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    assert [event["mono"] for event in events if event["type"] == "noticed"] == [*range(160)]
    # The failure is reported once.
    lacking = (f"{roots[0]}/events.jsonl", f"{roots[1]}/sample.json")
    assert [*filter(None, failures)] == [f"{file}: {NO_SPACE}" for file in lacking]
    assert json.loads((run / "result.json").read_text())["exit_code"] == 125
    assert json.loads((other / "sample.json").read_text())["at"] == 1.0
    assert not [*run.glob(".*"), *other.glob(".*")]


def test_full_disk_is_found_by_writing(disk: SmallDisk, tmp_path: Path) -> None:
    assert full_disk([str(disk.seen), str(tmp_path), "/nowhere"]) is None
    disk.fill()
    assert full_disk([str(tmp_path), str(disk.seen)]) == f"{disk.seen}: {NO_SPACE}"
    assert [path.name for path in disk.seen.iterdir()] == ["filler"]


@pytest.fixture
def on_disk(orch: Orch, disk: SmallDisk) -> Iterator[Callable[..., Finished]]:
    """`orch` with the small disk mounted, which has the directories of runs: `up` starts two tasks."""

    def run(verb: str, *words: str) -> Finished:
        if verb == "up":
            words = ("-n", "2", "--log-dir", str(disk.path), "-q", "--", sys.executable, "-ISc", *words)
        return orch.start(verb, *words, before=disk.before(orch.directory)).finish()

    yield run
    # Other processes cannot follow these links.
    for pointer in (orch.state / "orch" / "runs").glob("*"):
        if pointer.is_symlink():
            pointer.unlink()


def test_run_ends_even_if_the_task_ignores_write_errors(
    on_disk: Callable[..., Finished], disk: SmallDisk
) -> None:
    """TensorFlow ignores errors of its log lines, too; orch notices them. Everything that was written can be read, and
    can be removed from the full disk."""
    done = on_disk("up", _IGNORES_ERRORS)
    (run,) = (path.parent for path in disk.seen.glob("*/run.json"))
    result = json.loads((run / "result.json").read_text())
    assert done.code == result["exit_code"] == 125
    assert (result["cause"]["task"], result["cause"]["kind"]) == (None, "limit")
    assert NO_SPACE in result["cause"]["text"] and str(disk.path) in result["cause"]["text"]
    for line in (run / "events.jsonl").read_text().splitlines():
        json.loads(line)
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]
    logged = on_disk("logs", "--raw")
    written = sum(path.stat().st_size for path in run.glob("logs/*.log"))
    assert logged.code == 0 and len(logged.out.encode()) == written > 100_000
    disk.fill()
    assert on_disk("prune", "--keep", "0").code == 0 and not run.exists()
    assert until(disk.free) > 100_000


def test_disk_that_is_full_before_the_run_is_refused(
    on_disk: Callable[..., Finished], disk: SmallDisk
) -> None:
    disk.fill()
    done = on_disk("up", "pass")
    assert done.code == 2 and NO_SPACE in done.err and "Traceback" not in done.err
    assert [path.name for path in disk.seen.iterdir()] == ["filler"]
