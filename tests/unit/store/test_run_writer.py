"""The run directory is private, is published complete, and ends once."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from making import run_result
from run_records import make_run, view_of

from orchestrator.core.diagnosis.symptoms import Uncaught
from orchestrator.core.errors import UsageError
from orchestrator.core.state.events import Noticed, Progress, StorageFailed
from orchestrator.links.control import ControlServer
from orchestrator.store.directory import Directory
from orchestrator.store.files import make_private, write_once
from orchestrator.store.logs.writer import LogStore
from orchestrator.store.runs.locks import is_held, lock_name
from orchestrator.store.runs.paths import RunPaths, names_dir, runs_dir, state_dir
from orchestrator.store.runs.task_files import read_exception, write_traceback
from orchestrator.store.runs.writer import RunStore, new_run_id


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_run_in_a_log_directory_is_linked_and_private(tmp_path: Path) -> None:
    """Modes of all files: test_nothing_is_open.py."""
    before = os.umask(0)
    try:
        make_run(log_dir=tmp_path / "some/logs").close()
    finally:
        os.umask(before)
    (link,) = (path for path in runs_dir().iterdir() if path.is_symlink())
    root = link.readlink()
    assert (root.parent, root.name) == (tmp_path / "some/logs", link.name)
    # A user who can write to a parent directory can replace the directory.
    assert {mode_of(path) for path in (root, *root.parents[:2], state_dir(), state_dir().parent)} == {0o700}


def test_existing_directory_keeps_its_mode_and_a_file_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert mode_of(tmp_path) == 0o755
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="file"):
            make_private(directory)


def test_run_and_its_name_are_locked_while_it_is_live() -> None:
    """The run is locked before it is published."""
    store = RunStore.create(new_run_id("job"), None, None)
    assert [entry for entry in runs_dir().iterdir() if not entry.name.startswith(".")] == []
    store.close()
    published = make_run(name_lock=lock_name("job"))
    assert is_held(published.paths.lock) and lock_name("job") is None
    for name in ("other", "job"):
        lock = lock_name(name)
        assert (lock is None) == (name == "job")
        if lock is not None:
            lock.release()
    published.close()
    assert not is_held(published.paths.lock) and not is_held(names_dir() / "job")


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
    path.write_text("a" * 20_000)
    seen = set()
    with subprocess.Popen([sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        for _ in range(500):
            text = path.read_text()
            seen.add((len(text), *set(text)))
        writer.kill()
    assert seen <= {(20_000, "a"), (20_000, "b")}


@pytest.mark.parametrize("number", [None, errno.EPERM, errno.EOPNOTSUPP])
def test_write_once_does_not_replace_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """Nor on vfat and some network file systems, which have no hard links."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number or 0))

    path = tmp_path / "result.json"
    if number is None:
        assert write_once(path, "the first") and not write_once(path, "the second")
    else:
        monkeypatch.setattr(os, "link", refuse)
        assert write_once(path, "the first")
        with pytest.raises(OSError, match=os.strerror(number)):
            write_once(path, "the second")
    assert path.read_text() == "the first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_failed_link_to_the_run_leaves_no_run(tmp_path: Path) -> None:
    log_dir, run_id = tmp_path / "logs", new_run_id("job")
    runs_dir().mkdir(parents=True)
    (runs_dir() / run_id).write_text("somebody else's\n")
    with pytest.raises(FileExistsError):
        make_run(run_id=run_id, log_dir=log_dir, name_lock=lock_name("job"))
    assert list(log_dir.iterdir()) == []
    assert (runs_dir() / run_id).read_text() == "somebody else's\n"
    assert not is_held(names_dir() / "job")


def test_remove_scratch_keeps_the_logs() -> None:
    store = make_run()
    store.paths.task_scratch("worker:0").mkdir()
    store.paths.task_log("worker:0").touch()
    store.remove_scratch()
    store.remove_scratch()
    store.close()
    assert not store.paths.scratch.exists() and not store.paths.control.exists()
    assert store.paths.task_log("worker:0").exists()
    assert view_of(RunPaths(store.paths.root)).record.name == "job"


def test_closing_twice_does_not_close_another_descriptor() -> None:
    """Other files can have the same descriptor numbers when close() is called a second time."""
    store = make_run()
    store.close()
    others = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(8)]
    store.close()
    for fd in others:
        os.close(fd)


# -- another supervisor


def test_supervisor_takes_over_a_run() -> None:
    first = make_run()
    first.append(StorageFailed(at=0, mono=1.0, reason="one"))
    server = ControlServer(first.directory, "control")
    first.close()
    server.close()
    (first.paths.root / "control").touch()  # as after SIGKILL
    store = RunStore.adopt(first.paths.root, None)
    store.take_over(store.record.model_copy(update={"host": "n1", "started_mono": 0.0}))
    ControlServer(store.directory, "control").close()
    store.append(Noticed(at=0, mono=2.0, text="two"))
    store.end_task(2.0, "worker:0", 1, Progress(step=2), None)
    view = view_of(store.paths)
    view.refresh()
    assert (view.is_live, view.record.host, view.record.id) == (True, "n1", first.paths.run_id)
    assert (view.state.storage_error, view.state.notices) == ("one", ("two",))
    store.write_result(run_result(run_id=first.paths.run_id))
    store.close()
    history = view.history()
    assert (history["attempt"], history["time"]) == ([1], [2.0])
    assert view.result() is not None


def test_run_is_taken_over_without_a_change_of_files_that_it_has_links_to(tmp_path: Path) -> None:
    """A prepared run may have hard links to any file of this user."""
    prepared = make_run()
    prepared.close()
    paths = prepared.paths
    precious = tmp_path / "precious"
    precious.write_text("precious\nand more")
    for place in (paths.reserve, paths.events, paths.logs / "index"):
        place.unlink(missing_ok=True)
        place.hardlink_to(precious)
    with closing(RunStore.adopt(paths.root, None)) as store:
        LogStore(store.directory.sub(paths.logs.name)).close()
        store.append(Noticed(at=0, mono=2.0, text="two"))
    assert precious.read_text() == "precious\nand more"


def test_run_with_a_supervisor_or_a_result_is_not_continued() -> None:
    store = make_run()
    with pytest.raises(UsageError, match="its supervisor is live"):
        RunStore.adopt(store.paths.root, None)
    # A submitted job may start before `orch up --detach` has closed the run.
    release = threading.Timer(0.2, store.close)
    release.start()
    with closing(RunStore.adopt(store.paths.root, None, patience_s=60)) as adopted:
        adopted.write_result(run_result())
    release.join()
    with pytest.raises(UsageError, match="has ended"):
        RunStore.adopt(store.paths.root, None)
    assert not is_held(store.paths.lock)
    with pytest.raises(UsageError, match="not the directory of a run"):
        RunStore.adopt(runs_dir(), None)


# -- the exceptions that tasks write

EXCEPTION = {
    "type": "builtins.ValueError",
    "message": "boom\nand more",
    "text": "Traceback ...",
    "at": "train.py:7",
}


def exception_in(path: Path) -> Uncaught | None:
    with Directory.at(path.parent) as run:
        return read_exception(run, path)


def test_exception_is_read_and_its_traceback_is_written(tmp_path: Path) -> None:
    path, readable = tmp_path / "worker-0.json", tmp_path / "readable"
    path.write_text(json.dumps(EXCEPTION | {"new": 1}))
    uncaught = exception_in(path)
    assert uncaught is not None
    assert (uncaught.line, uncaught.text) == ("ValueError: boom", "Traceback ...")
    with Directory.at(tmp_path) as run:
        assert write_traceback(uncaught, run, readable)
        assert not write_traceback(uncaught, run, tmp_path / "nowhere" / "readable")
    assert readable.read_text() == "Traceback ...\n" and mode_of(readable) == 0o600
    path.write_text(json.dumps(EXCEPTION | {"message": "caf\udce9"}))
    uncaught = exception_in(path)
    assert uncaught is not None and uncaught.line == "ValueError: caf?"
