"""A run's own files on a full disk: nothing raises, and nothing is lost that can be kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from orch_command import Orch
from small_disk import SmallDisk
from waiting import until, until_gone

from worker.agent.resource_failures import full_disk

# Runs with the small disk mounted, and fills and empties it between the calls of the store.
PROGRAM = """
import json, os, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
os.environ["XDG_STATE_HOME"] = {disk!r}
from run_records import make_run, one_task
from orchestrator.core.state import events
from orchestrator.core.state.result import RunResult
from orchestrator.store.logs.writer import LogStore

def fill():
    with open({disk!r} + "/filler", "wb", buffering=0) as filler:
        try:
            while True: filler.write(b"x" * 4096)
        except OSError: pass

def notice(n):
    store.append(events.Noticed(at=float(n), mono=float(n), text="x" * 500 + str(n)))

RESULT = RunResult(run_id="x", outcome="failed", exit_code=125, attempts=1, cause=None, first_failure=None,
                   detection_s=None, teardown_s=None, tasks=())
store = make_run()
told = []
{steps}
print(json.dumps({{"told": told, "written": store.result_is_written, "root": str(store.paths.root)}}))
"""


def on_disk(disk: SmallDisk, steps: str) -> tuple[dict[str, Any], Path]:
    """Return the program's output and the run's directory by a path that this process can use."""
    path = sys.path
    program = PROGRAM.format(path=path, disk=str(disk.path), steps=steps)
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
    answer, run = on_disk(
        disk,
        """
for n in range(3): notice(n)
fill()
for n in range(3, 60): notice(n); told.append(store.take_failure())
os.unlink(os.environ["XDG_STATE_HOME"] + "/filler")
notice(60)
store.close()
""",
    )
    assert numbers(run) == list(range(61))
    (reason,) = [reason for reason in answer["told"] if reason]  # once
    assert reason == f"{answer['root']}/events.jsonl: No space left on device"


def test_result_is_written_into_the_reserved_space(disk: SmallDisk) -> None:
    answer, run = on_disk(
        disk,
        """
fill()
for n in range(100): notice(n)
store.write_result(RESULT)
store.close()
""",
    )
    assert answer["written"]
    assert json.loads((run / "result.json").read_text())["exit_code"] == 125
    assert numbers(run) == list(range(100))
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_result_that_cannot_be_written_is_reported_as_not_written(disk: SmallDisk) -> None:
    answer, run = on_disk(
        disk,
        """
import shutil
shutil.rmtree(store.paths.root)
store.write_result(RESULT)
store.close()
""",
    )
    assert answer["written"] is False
    assert not run.exists()


def test_sample_that_cannot_be_written_is_reported_and_leaves_no_temporary_file(disk: SmallDisk) -> None:
    answer, run = on_disk(
        disk,
        """
store.write_sample(1.0, 1.0, {"worker:0": {"cpu_percent": 1.0}})
fill()
store.write_sample(2.0, 2.0, {f"worker:{n}": {"cpu_percent": 1.0} for n in range(500)})
told.append(store.take_failure())
store.close()
""",
    )
    assert answer["told"] == [f"{answer['root']}/sample.json: No space left on device"]
    assert json.loads((run / "sample.json").read_text())["at"] == 1.0
    assert not [path.name for path in run.iterdir() if path.name.startswith(".sample")]


def test_index_reports_a_full_disk_once_and_continues_later(disk: SmallDisk) -> None:
    answer, run = on_disk(
        disk,
        """
logs = LogStore(store.directory.sub("logs"))
log = store.paths.task_log("worker:0")
logs.add("worker:0", 1, log.name)
with log.open("ab", buffering=0) as out:
    for n in range(400):
        if n == 50:
            os.posix_fallocate(out.fileno(), 0, 100_000); os.ftruncate(out.fileno(), 50)
            fill()
        try: out.write(b"x\\n")
        except OSError: pass
        logs.poll(float(n)); told.append(logs.take_failure())
os.unlink(os.environ["XDG_STATE_HOME"] + "/filler")
logs.poll(1000.0)
logs.close()
store.close()
""",
    )
    assert [reason for reason in answer["told"] if reason] in (
        [],
        [f"{answer['root']}/logs/index: No space left on device"],
    )
    records = (run / "logs" / "index").read_text().splitlines()
    assert all(len(record.split()) == 5 for record in records)
    last = records[-1].split()
    assert int(last[3]) + int(last[4]) == (run / "logs" / "worker-0.log").stat().st_size


def test_run_that_does_not_fit_leaves_nothing(disk: SmallDisk) -> None:
    """Neither if no file can be created, nor if only the reserved space could."""
    answer, run = on_disk(
        disk,
        """
from orchestrator.store.runs.record import RunRecord
from orchestrator.store.runs.writer import RunStore, new_run_id

def publish_without_room():
    fresh = RunStore.create(new_run_id("third"), None, None)
    fill()
    fresh.publish(RunRecord(id="x", name="third", directory="/", started_at=1.0, started_mono=1.0, boot_id="x",
        supervisor_pid=1, supervisor_start_ticks=1, checkpoint_dir="/", versions={}, spec={"x": "x" * 100_000}))

def refused(make):
    try: make()
    except OSError as error: told.append(os.strerror(error.errno))

fill()
refused(lambda: make_run("second"))
os.unlink(os.environ["XDG_STATE_HOME"] + "/filler")
refused(publish_without_room)
told += sorted(path.name for path in store.paths.root.parent.iterdir())
store.close()
""",
    )
    assert answer["told"] == ["No space left on device", "No space left on device", run.name]


def test_full_disk_is_found_by_writing(disk: SmallDisk, tmp_path: Path) -> None:
    assert full_disk([str(disk.seen), str(tmp_path), "/nowhere"]) is None
    disk.fill()
    assert full_disk([str(tmp_path), str(disk.seen)]) == f"{disk.seen}: No space left on device"
    assert [path.name for path in disk.seen.iterdir()] == ["filler"]


def test_run_whose_directory_was_removed_ends_with_a_message(orch: Orch) -> None:
    sleeper = orch.script("sleeper.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    up = orch.start("up", "-n", "2", "--", sys.executable, "-I", "-S", sleeper)
    up.until_out("up", 2)
    pids = until(orch.pids)
    run = orch.run_dir()

    def is_gone() -> bool:
        # The run may write into it at the same time.
        shutil.rmtree(run, ignore_errors=True)
        return not run.exists()

    until(is_gone)
    done = up.finish()
    assert done.code == 125
    assert "was moved or removed" in done.err
    assert "Traceback" not in done.err
    until_gone(*pids)
