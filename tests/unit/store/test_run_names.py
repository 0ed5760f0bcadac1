"""Locks have one holder and end with its process. The locks of run names are removed a day after their last use."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from run_records import make_run
from waiting import until

from orchestrator.core.errors import NameTaken
from orchestrator.store.runs import locks
from orchestrator.store.runs.catalog import take_name
from orchestrator.store.runs.locks import Lock, is_held, lock_name, remove_free_names
from orchestrator.store.runs.paths import names_dir, open_names

DAY = 86_400.0


def take(name: str) -> Lock:
    lock = lock_name(name)
    assert lock is not None
    return lock


def test_free_names_older_than_a_day_are_removed() -> None:
    remove_free_names(time.time())
    assert not names_dir().exists()
    for name in ("free", "young"):
        take(name).release()
    held = take("held")
    assert lock_name("held") is None
    (names_dir() / "directory").mkdir()
    (names_dir() / "link").symlink_to("free")
    for name in ("free", "held", "directory"):
        os.utime(names_dir() / name, (1, 1))
    for left in ({"young", "held", "directory", "link"}, {"young", "directory", "link"}):
        remove_free_names(time.time())
        assert {path.name for path in names_dir().iterdir()} == left
        held.release()


def test_lock_of_a_file_removed_in_between_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next process creates a new file, and two runs have the name."""
    take("job").release()
    flock, removed = locks.fcntl.flock, []

    def remove_first(fd: int, how: int) -> None:
        if not removed:
            removed.append(fd)
            (names_dir() / "job").unlink()
        flock(fd, how)

    monkeypatch.setattr(locks.fcntl, "flock", remove_first)
    mine = take("job")
    assert removed and lock_name("job") is None
    mine.release()


def test_probe_does_not_make_a_name_look_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    take("job").release()
    with open_names() as names:
        looking = Lock.share_in(names, "job")
    assert looking is not None
    monkeypatch.setattr(locks.time, "sleep", lambda _: looking.release())
    take("job").release()


def test_name_whose_lock_others_may_open_can_be_taken() -> None:
    """Another user may hold it. The new file is private."""
    first = take("job")
    assert lock_name("job") is None
    (names_dir() / "job").chmod(0o644)
    take("job").release()
    assert stat.S_IMODE((names_dir() / "job").stat().st_mode) == 0o600
    first.release()


def test_name_of_a_run_that_is_continued_may_still_be_held() -> None:
    """A submitted job may start before `orch up --detach` has closed the run."""
    store = make_run(name_lock=lock_name("job"))
    with pytest.raises(NameTaken):
        take_name("job", is_explicit=True)
    assert take_name("job", is_explicit=True, own_id=store.paths.run_id) is None
    other = make_run()
    with pytest.raises(NameTaken):
        take_name("job", is_explicit=True, own_id=store.paths.run_id)
    store.close()
    other.close()


# -- locks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def acquire(path: Path) -> Lock:
    lock = Lock.acquire(path)
    assert lock is not None
    return lock


def test_lock_has_one_holder_and_probes_do_not_see_each_other(path: Path) -> None:
    assert not is_held(path)
    first = acquire(path)
    assert is_held(path)
    assert Lock.acquire(path) is None
    first.release()
    first.release()
    with path.open() as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        assert not is_held(path)
    acquire(path).release()


def test_child_process_does_not_inherit_the_lock(path: Path) -> None:
    """Otherwise a run whose supervisor was killed would look live as long as a grandchild lives."""
    lock = acquire(path)
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
        lock.release()
        assert not is_held(path)
        child.kill()
