"""The effect of pruning on run directories, and the files that it never changes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_making import DAY, LOG_BYTES, ended_run, live_run, names
from waiting import until

from orchestrator.core.errors import EngineError, NoSuchRun
from orchestrator.store.files import disk_bytes
from orchestrator.store.runs import catalog
from orchestrator.store.runs.locks import Lock
from orchestrator.store.runs.paths import runs_dir
from orchestrator.store.runs.prune_choice import PruneTerms
from orchestrator.store.runs.pruning import PruneReport, Scope, prune

EVERYTHING = PruneTerms(keep=0)
LEFT_WITH_CHECKPOINTS = {"run.json", "result.json", "checkpoints"}


def prune_all(
    terms: PruneTerms = EVERYTHING,
    scope: Scope | None = None,
    checkpoints: bool = False,
    dry_run: bool = False,
) -> PruneReport:
    return prune(scope or Scope(), terms, checkpoints, dry_run)


def ids(report: PruneReport) -> list[str]:
    return [each.run.id for each in report.pruned]


def test_ended_run_is_removed_and_its_size_reported() -> None:
    run = ended_run()
    before = disk_bytes(run.root)
    run.samples.write_bytes(b"x" * 200_000)
    size = disk_bytes(run.root)
    assert size >= before + 200_000
    report = prune_all()
    assert names(runs_dir()) == set()
    assert report.freed_bytes == size >= LOG_BYTES
    assert (report.left_runs, report.left_bytes) == (0, 0)


def test_young_live_and_locked_runs_stay() -> None:
    old, young = ended_run(age_s=8 * DAY), ended_run(age_s=6 * DAY)
    store = live_run(started_at=time.time() - 400 * DAY)
    before = names(store.paths.root)
    report = prune_all(PruneTerms(older_than_s=7 * DAY))
    assert ids(report) == [old.run_id]
    assert report.left_bytes == disk_bytes(young.root) + disk_bytes(store.paths.root)
    lock = Lock.acquire(young.lock)
    assert lock is not None
    prune_all(PruneTerms(older_than_s=0.0, max_bytes=0), checkpoints=True)
    assert young.events.exists() and names(store.paths.root) == before
    lock.release()
    store.close()


def test_checkpoints_stay_with_record_and_result() -> None:
    run = ended_run(checkpoint=b"w" * 9000)
    run.samples.write_bytes(b"x" * 9000)
    report = prune_all()
    assert not run.samples.exists() and names(run.root) == LEFT_WITH_CHECKPOINTS
    assert (run.checkpoints / "ckpt-1").read_bytes() == b"w" * 9000
    assert report.pruned[0].kept_checkpoints == str(run.checkpoints)
    assert report.left_bytes == disk_bytes(run.root) == report.pruned[0].run.size_bytes - report.freed_bytes
    assert prune_all().pruned == ()  # all other files are removed
    view = catalog.find_run(run.run_id, Path.cwd())
    view.refresh()
    assert not view.is_live and view.state.phase == "failed"
    (task,) = view.state.tasks.values()
    assert (task.name, task.phase, task.exit_code) == ("worker:0", "failed", 3)
    assert prune_all(checkpoints=True).freed_bytes == report.left_bytes
    assert names(runs_dir()) == set()


def test_run_in_a_log_dir_is_removed_with_its_link(tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    ended_run(log_dir=log_dir)
    kept = ended_run(log_dir=log_dir, checkpoint=b"w")
    (log_dir / "mine.txt").write_text("x")
    prune_all()
    assert names(log_dir) == {"mine.txt", kept.run_id}
    assert names(kept.root) == LEFT_WITH_CHECKPOINTS
    assert names(runs_dir()) == {kept.run_id}


def test_dangling_links_are_removed_unless_the_disk_may_be_unmounted(tmp_path: Path) -> None:
    vanished = ended_run(log_dir=tmp_path / "logs")
    (tmp_path / "logs" / "mine.txt").touch()
    below, itself = ended_run(log_dir=tmp_path / "disk" / "logs"), ended_run(log_dir=tmp_path / "mount")
    shutil.rmtree(vanished.root)
    for disk in ("disk", "mount"):
        (tmp_path / disk).rename(tmp_path / f"{disk}-unmounted")
        (tmp_path / disk).mkdir()
    prune_all()
    assert names(runs_dir()) == {below.run_id, itself.run_id}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "precious").write_text("x")
    return directory


def test_links_inside_a_run_are_removed_and_not_followed(outside: Path) -> None:
    run = ended_run()
    (run.logs / "link").symlink_to(outside)
    shutil.rmtree(run.scratch)
    run.scratch.symlink_to(outside)
    prune_all()
    assert names(runs_dir()) == set()
    assert names(outside) == {"precious"}


def test_linked_checkpoints_and_their_target_stay(outside: Path) -> None:
    run = ended_run()
    run.checkpoints.rmdir()
    run.checkpoints.symlink_to(outside)
    prune_all()
    assert names(run.root) == LEFT_WITH_CHECKPOINTS
    prune_all(checkpoints=True)
    assert names(runs_dir()) == set()
    assert names(outside) == {"precious"}


def test_copied_directory_is_not_pruned(tmp_path: Path) -> None:
    run = ended_run()
    copy = tmp_path / "copy"
    shutil.copytree(run.root, copy)
    (runs_dir() / "copy").symlink_to(copy)
    before = names(copy)
    report = prune_all()
    assert names(copy) == before
    assert any(each.problem for each in report.pruned)


def test_scope_limits_the_prune(tmp_path: Path) -> None:
    here, there, other = ended_run(), ended_run(directory="/there"), ended_run(name="other")
    report = prune_all(scope=Scope(directory=str(Path.cwd()), name="job"))
    assert ids(report) == [here.run_id]
    assert names(runs_dir()) == {there.run_id, other.run_id}
    assert report.left_runs == 0


def test_lost_run_gets_its_result_before_trimming() -> None:
    store = live_run(b"w", started_at=time.time() - 8 * DAY)
    store.close()
    then = time.time() - 8 * DAY
    os.utime(store.paths.events, (then, then))
    prune_all(PruneTerms(older_than_s=7 * DAY))
    assert names(store.paths.root) == LEFT_WITH_CHECKPOINTS
    view = catalog.find_run(store.paths.run_id, Path.cwd())
    view.refresh()
    assert view.state.phase == "lost"


def test_dry_run_reports_the_same_and_changes_nothing() -> None:
    ended_run(), ended_run(checkpoint=b"w"), live_run().close()
    before = {str(path): path.lstat().st_mtime_ns for path in runs_dir().rglob("*")}
    planned = prune_all(dry_run=True)
    assert {str(path): path.lstat().st_mtime_ns for path in runs_dir().rglob("*")} == before
    done = prune_all()
    assert ids(planned) == ids(done)
    assert planned.left_runs == done.left_runs == 1


PRUNES = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from orchestrator.store.directory import Directory
from orchestrator.store.runs.pruning import Scope, prune
from orchestrator.store.runs.prune_choice import PruneTerms
def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "die": Directory.remove_tree = die
prune(Scope(), PruneTerms(keep=0), sys.argv[1] != "die", False)
"""


def start_prune(how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PRUNES, how], stderr=subprocess.PIPE)


@pytest.mark.parametrize("checkpoint", [b"", b"w"], ids=["whole", "trimmed in a log directory"])
def test_killed_prune_leaves_no_partial_run_and_is_finished_by_the_next(
    tmp_path: Path, checkpoint: bytes
) -> None:
    run = ended_run(checkpoint=checkpoint, log_dir=tmp_path / "logs" if checkpoint else None)
    with start_prune("die") as killed:
        assert killed.wait(60) == -signal.SIGKILL
    if checkpoint:
        view = catalog.find_run(run.run_id, Path.cwd())
        view.refresh()
        assert view.state.phase == "failed"
    else:
        with pytest.raises(NoSuchRun):
            catalog.find_run(run.run_id, Path.cwd())
    prune_all()
    assert names(run.root) == (LEFT_WITH_CHECKPOINTS if checkpoint else set())
    assert {name for name in names(run.root.parent) if name.startswith(".")} == set()
    assert names(runs_dir()) == ({run.run_id} if checkpoint else set())


def test_concurrent_prunes_do_not_conflict() -> None:
    for number in range(12):
        ended_run(checkpoint=b"w" if number % 2 else b"")
    both = [start_prune("all") for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    until(lambda: prune_all(checkpoints=True).left_runs == 0)
    assert names(runs_dir()) == set()


@pytest.mark.parametrize(("mode", "remedy"), [(0o700, "wait for its end"), (0o755, "chmod 700 ")])
def test_prune_does_not_wait_forever_for_the_lock(mode: int, remedy: str) -> None:
    run = ended_run()
    runs_dir().chmod(mode)
    fd = os.open(runs_dir(), os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(
            EngineError, match=f"has held its lock for 0 s, so nothing was removed; .*{remedy}"
        ):
            prune(Scope(), EVERYTHING, False, False, patience_s=0)
    finally:
        os.close(fd)
    assert run.root.exists()
    assert ids(prune_all()) == [run.run_id]
