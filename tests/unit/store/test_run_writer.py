"""The run directory is private, is published complete, and ends once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_records import make_run, one_task, view_of

from orchestrator.core.errors import UsageError
from orchestrator.core.state.events import Noticed, Progress, StorageFailed
from orchestrator.core.state.result import RunResult
from orchestrator.links.control import ControlServer
from orchestrator.store.directory import Directory
from orchestrator.store.files import make_private
from orchestrator.store.runs.locks import is_held, lock_name
from orchestrator.store.runs.paths import RunPaths, runs_dir, state_dir
from orchestrator.store.runs.writer import RunStore, new_run_id

RESULT = RunResult(
    run_id="x",
    outcome="succeeded",
    exit_code=0,
    attempts=1,
    cause=None,
    first_failure=None,
    detection_s=None,
    teardown_s=0.1,
    tasks=(),
)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="umask-{:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode)
        for path in [root, *root.rglob("*")]
        if not path.is_symlink()
    }


def test_files_are_private_with_any_umask(umask: None, tmp_path: Path) -> None:
    store = make_run(name_lock=lock_name("job"))
    for event in one_task(1.0):
        store.append(event)
    store.write_sample(at=1.0, mono=1.0, tasks={"worker:0": {"cpu_percent": 1.0}})
    store.write_result(RESULT)
    server = ControlServer(store.directory, "control")
    found = modes(state_dir())
    server.close()
    store.close()
    run = f"runs/{store.paths.run_id}"
    documents = ("run.json", "events.jsonl", "sample.json", "samples.jsonl", "result.json", "lock")
    assert {f"{run}/{name}" for name in documents} <= set(found)
    below = ("logs", "scratch", "checkpoints", "exceptions", "stacks")
    directories = {".", "runs", "names", run, *(f"{run}/{name}" for name in below)}
    assert {name for name, mode in found.items() if mode == 0o700} == directories
    assert {mode for name, mode in found.items() if name not in directories} == {0o600}
    # A user who can write to a parent directory can replace the directory.
    assert stat.S_IMODE(state_dir().parent.stat().st_mode) == 0o700


def test_run_in_a_log_dir_is_linked(umask: None, tmp_path: Path) -> None:
    log_dir = tmp_path / "some" / "logs"
    store = make_run(log_dir=log_dir)
    assert store.paths.root.parent == log_dir
    pointer = runs_dir() / store.paths.run_id
    assert pointer.readlink() == store.paths.root
    made = (log_dir, log_dir.parent, store.paths.root)
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
    store.close()


def test_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="file"):
            make_private(directory)


def test_run_is_locked_before_it_is_published() -> None:
    store = RunStore.create(new_run_id("job"), None, None)
    assert [entry for entry in runs_dir().iterdir() if not entry.name.startswith(".")] == []
    store.close()
    published = make_run()
    assert is_held(published.paths.lock)
    published.close()
    assert not is_held(published.paths.lock)


def test_name_is_locked_while_its_run_is_live() -> None:
    store = make_run(name_lock=lock_name("job"))
    assert lock_name("job") is None
    other = lock_name("other")
    assert other is not None
    other.release()
    store.close()
    again = lock_name("job")
    assert again is not None
    again.release()


WRITES = """
import os, sys
from pathlib import Path
from orchestrator.store.directory import Directory
path = Path(sys.argv[1])
directory = Directory.at(path.parent)
print(flush=True)
while True:
    for letter in "ab":
        directory.write_atomically(path.name, letter * 20_000)
"""


def test_atomic_write_leaves_the_old_or_the_new_document(tmp_path: Path) -> None:
    path = tmp_path / "document"
    with Directory.at(tmp_path) as directory:
        directory.write_atomically(path.name, "a" * 20_000)
    seen = set()
    with subprocess.Popen([sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        for _ in range(500):
            text = path.read_text()
            seen.add((len(text), *set(text)))
        writer.kill()
    assert seen <= {(20_000, "a"), (20_000, "b")}


def test_remove_scratch_keeps_the_logs() -> None:
    store = make_run()
    store.paths.task_scratch("worker:0").mkdir()
    store.paths.task_log("worker:0").touch()
    store.remove_scratch()
    store.remove_scratch()
    store.close()
    assert not store.paths.scratch.exists()
    assert store.paths.task_log("worker:0").exists()
    assert not store.paths.control.exists()
    assert view_of(RunPaths(store.paths.root)).record.name == "job"


def test_another_supervisor_continues_a_run() -> None:
    first = make_run()
    first.append(StorageFailed(at=0, mono=1.0, reason="one"))
    first.end_task(1.0, "worker:0", 1, Progress(step=1), None)
    server = ControlServer(first.directory, "control")
    first.close()
    server.close()
    (first.paths.root / "control").touch()  # as after SIGKILL
    store = RunStore.adopt(first.paths.root, None)
    store.take_over(store.record.model_copy(update={"host": "n1", "started_mono": 0.0}))
    ControlServer(store.directory, "control").close()
    store.append(Noticed(at=0, mono=2.0, text="two"))
    store.end_task(2.0, "worker:0", 2, Progress(step=2), None)
    view = view_of(store.paths)
    view.refresh()
    assert (view.is_live, view.record.host, view.record.id) == (True, "n1", first.paths.run_id)
    assert (view.state.storage_error, view.state.notices) == ("one", ("two",))
    store.write_result(RESULT.model_copy(update={"run_id": first.paths.run_id}))
    store.close()
    history = view.history()
    assert (history["attempt"], history["time"]) == ([1, 2], [0.0, 2.0])
    assert view.result() is not None


def test_a_run_with_a_supervisor_or_a_result_is_not_continued() -> None:
    store = make_run()
    with pytest.raises(UsageError, match="its supervisor is live"):
        RunStore.adopt(store.paths.root, None)
    store.write_result(RESULT)
    store.close()
    with pytest.raises(UsageError, match="has ended"):
        RunStore.adopt(store.paths.root, None)
    assert not is_held(store.paths.lock)
    with pytest.raises(UsageError, match="not the directory of a run"):
        RunStore.adopt(runs_dir(), None)


def test_a_run_that_is_about_to_be_released_is_continued() -> None:
    """A submitted job may start before `orch up --detach` has closed the run."""
    store = make_run()
    release = threading.Timer(0.2, store.close)
    release.start()
    RunStore.adopt(store.paths.root, None, patience_s=60).close()
    release.join()
