"""Locks have one holder, end with its process, and are not affected by probes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from orchestrator.store.runs.locks import Lock, is_held

HOLDS = """
import sys
from pathlib import Path
from orchestrator.store.runs.locks import Lock
lock = Lock.acquire(Path(sys.argv[1]))
print("held" if lock else "not", flush=True)
sys.stdin.read()
"""


def test_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    first = Lock.acquire(path)
    assert first is not None
    assert is_held(path)
    assert Lock.acquire(path) is None
    first.release()
    first.release()
    assert not is_held(path)
    second = Lock.acquire(path)
    assert second is not None
    second.release()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_held(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not is_held(path)


def test_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """Otherwise a run whose supervisor was killed would look live as long as a grandchild lives."""
    path = tmp_path / "lock"
    lock = Lock.acquire(path)
    assert lock is not None
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
        lock.release()
        assert not is_held(path)
        child.kill()


def test_probes_do_not_see_each_other(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    path.touch()
    with path.open() as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        assert not is_held(path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_lock_file_is_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        lock = Lock.acquire(tmp_path / "lock")
    finally:
        os.umask(before)
    assert lock is not None
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    lock.release()


def test_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock"):
        Lock.acquire(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()
