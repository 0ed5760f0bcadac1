"""The supervisor of a run is not confused with a reused pid, another boot or another machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from orch_command import Orch
from pages import write_run
from users import ORDINARY
from waiting import lives, until

from orchestrator.core.errors import UsageError
from orchestrator.store.ownership import accept_owner, forget_accepted_owners
from orchestrator.store.runs import catalog, locks
from orchestrator.store.runs.liveness import Liveness, is_supervisor_alive, signal_supervisor, start_ticks
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.record import boot_id

_HOLDS = """
import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held")
time.sleep(600)
"""
Start = Callable[[RunPaths], subprocess.Popen[bytes]]


@pytest.fixture
def paths() -> RunPaths:
    """A run whose supervisor was killed."""
    return RunPaths(write_run(is_lost=True))


@pytest.fixture
def start_holder() -> Iterator[Start]:
    """Start a process that holds the run's lock, as its supervisor does. The lock file is removed afterwards."""
    with ExitStack() as started:

        def start(paths: RunPaths) -> subprocess.Popen[bytes]:
            words = [sys.executable, "-uISc", _HOLDS, str(paths.lock)]
            process = started.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            started.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline()
            paths.lock.unlink()
            return process

        yield start


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        yield process
        process.kill()


def change(paths: RunPaths, **fields: object) -> RunView:
    document = {**json.loads(paths.record.read_text()), **fields}
    paths.record.write_text(json.dumps(document))
    view = RunView.open(paths)
    assert view is not None
    return view


def naming(paths: RunPaths, process: subprocess.Popen[bytes]) -> RunView:
    """The run with a record that names this process as its supervisor."""
    return change(paths, supervisor_pid=process.pid, supervisor_start_ticks=start_ticks(process.pid))


def test_supervisor_process_is_recognized_without_its_lock_file(paths: RunPaths, start_holder: Start) -> None:
    paths.lock.chmod(0o644)  # others may open it
    holder = start_holder(paths)
    view = naming(paths, holder)
    assert is_supervisor_alive(view.record, paths)
    assert view.is_live
    assert signal_supervisor(view.record, paths, signal.SIGCONT)
    holder.kill()
    until(lambda: not is_supervisor_alive(view.record, paths))  # though its exit status has not been read
    assert not view.is_live
    assert not signal_supervisor(view.record, paths, signal.SIGCONT)


def test_process_that_only_a_record_names_is_not_the_supervisor(
    paths: RunPaths, other_process: subprocess.Popen[bytes], orch: Orch
) -> None:
    view = naming(paths, other_process)
    assert not view.is_live
    assert not signal_supervisor(view.record, paths, signal.SIGTERM)
    assert orch("down", "--force", paths.run_id).code == 0
    assert lives(other_process.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change an owner")
def test_record_of_another_user_names_no_process_of_root(
    paths: RunPaths, start_holder: Start, orch: Orch
) -> None:
    """Also if root uses the state of that user."""
    holder = start_holder(paths)
    naming(paths, holder)
    os.chown(paths.record, ORDINARY, ORDINARY)
    view = RunView.open(paths)
    assert view is None or not signal_supervisor(view.record, paths, signal.SIGTERM)
    orch("down", "--force", paths.run_id)
    for path in (paths.root, *paths.root.rglob("*")):
        os.chown(path, ORDINARY, ORDINARY)
    accept_owner(ORDINARY)
    try:
        view = RunView.open(paths)
        assert view is not None and not signal_supervisor(view.record, paths, signal.SIGKILL)
        os.chown(paths.root, os.geteuid(), 0)
        assert signal_supervisor(view.record, paths, signal.SIGCONT)
    finally:
        forget_accepted_owners()
    assert lives(holder.pid)


def test_reused_pid_is_not_the_supervisor(paths: RunPaths, start_holder: Start, orch: Orch) -> None:
    holder = start_holder(paths)
    ticks = start_ticks(holder.pid)
    assert ticks is not None
    right: dict[str, object] = {
        "supervisor_pid": holder.pid,
        "supervisor_start_ticks": ticks,
        "boot_id": boot_id(),
    }
    assert change(paths, **right).is_live
    for other in (
        {"supervisor_start_ticks": ticks + 1},
        {"supervisor_start_ticks": 0},
        {"boot_id": "another"},
        {"boot_id": ""},
    ):
        view = change(paths, **right | other)
        assert not view.is_live
        assert not signal_supervisor(view.record, paths, signal.SIGKILL)
    assert orch("down", paths.run_id).code == 0
    assert orch("status", paths.run_id).code == 0
    assert lives(holder.pid)


def test_last_run_of_a_live_session_is_dead(start_holder: Start) -> None:
    paths = RunPaths(write_run(code=3))
    holder = start_holder(paths)
    assert not naming(paths, holder).is_live
    paths.result.unlink()
    assert not naming(paths, holder).is_live


def test_run_of_another_boot_is_lost_and_nothing_is_ended(paths: RunPaths, orch: Orch) -> None:
    change(paths, boot_id="another")
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "ORCH_RUN_ID": paths.run_id}) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        assert orch("status", paths.run_id, "--json").document["run"]["state"] == "lost"
        assert orch("down", paths.run_id).code == 0
        assert orch("wait", paths.run_id).code == 125
        assert lives(process.pid)
        process.kill()


def test_run_of_another_machine_is_left_alone(paths: RunPaths, orch: Orch) -> None:
    view = change(paths, boot_id="another", host="elsewhere")
    assert not view.is_live and not view.can_be_swept and not view.can_be_closed and not view.can_be_removed
    assert orch("down", paths.run_id).code == 0
    assert not paths.result.exists()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_process_decides_where_locks_do_not_work(
    paths: RunPaths, no_locks: None, start_holder: Start, tmp_path: Path
) -> None:
    """A run is refused there."""
    assert locks.probe(paths.lock) is locks.Held.UNKNOWN
    assert change(paths).liveness is Liveness.DEAD
    assert naming(paths, start_holder(paths)).liveness is Liveness.LIVE
    with pytest.raises(UsageError, match="cannot be locked"):
        locks.Lock.acquire(tmp_path / "lock")


def test_run_of_unknown_liveness_is_reported_and_left_alone(
    paths: RunPaths, no_locks: None, cold_orch: Orch
) -> None:
    assert change(paths, boot_id="another", host="elsewhere").liveness is Liveness.UNKNOWN
    for verb, code in (("status", 0), ("wait", 125), ("down", 125)):
        done = cold_orch(verb, paths.run_id)
        assert done.code == code and "is unknown" in done.err
        assert "elsewhere" in done.err or verb == "status"
    assert not paths.result.exists()


@pytest.mark.parametrize("lock", ["replaced", "gone", "a directory"])
def test_liveness_of_a_newer_run_follows_the_same_rules(
    lock: str, paths: RunPaths, start_holder: Start
) -> None:
    holder = start_holder(paths)
    naming(paths, holder)
    paths.record.write_text(paths.record.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    if lock == "replaced":
        paths.lock.touch()
    if lock == "a directory":
        paths.lock.mkdir()
    (newer,) = catalog.survey().newer
    assert newer.is_live
    assert newer.checkpoint_dir == json.loads(paths.record.read_text())["checkpoint_dir"]
    paths.result.write_text("{}")  # the supervisor of a session is still live
    assert not catalog.survey().newer[0].is_live
    paths.result.unlink()
    holder.kill()
    until(lambda: not catalog.survey().newer[0].is_live)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change an owner")
def test_run_of_another_user_is_skipped_and_named(paths: RunPaths) -> None:
    assert [run.record.id for run in catalog.all_runs()] == [paths.run_id]
    os.chown(paths.root, ORDINARY, ORDINARY)
    found = catalog.survey()
    assert found.runs == []
    assert [f"{paths.root}: belongs to the user {ORDINARY}" in text for text in found.skipped] == [True]


def test_open_view_sees_the_end_of_a_run_whose_directory_is_removed(paths: RunPaths) -> None:
    lock = locks.Lock.acquire(paths.lock)
    assert lock is not None
    view = RunView.open(paths)
    assert view is not None
    with view.keep_open():
        paths.root.rename(paths.root.with_name("elsewhere"))
        assert view.is_live
        view.refresh()
        assert view.state.tasks
        lock.release()
        assert not view.is_live


def test_lock_that_others_may_open_does_not_make_a_run_live(paths: RunPaths, orch: Orch) -> None:
    """After `chmod -R a+rX`, another user can hold it. The supervisor's process decides then."""
    with paths.lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        view = RunView.open(paths)
        assert view is not None and view.is_live
        subprocess.run(["chmod", "-R", "a+rX", str(runs_dir().parent)], check=True)
        assert not view.is_live
        assert orch("down", paths.run_id).code == 0
        assert paths.result.exists()
