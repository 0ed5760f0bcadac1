"""Locks have one holder, end with its process, and are not affected by probes."""

from __future__ import annotations

import fcntl
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


def test_lock_of_a_killed_process_is_free(path: Path) -> None:
    argv = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert is_held(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not is_held(path)


def test_child_process_does_not_inherit_the_lock(path: Path) -> None:
    """Otherwise a run whose supervisor was killed would look live as long as a grandchild lives."""
    lock = acquire(path)
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
        lock.release()
        assert not is_held(path)
        child.kill()


def test_lock_file_is_private_and_a_link_is_not_followed(path: Path) -> None:
    for umask in (0o000, 0o022, 0o077):
        before = os.umask(umask)
        try:
            lock = acquire(path)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        lock.release()
        path.unlink()
    path.symlink_to("elsewhere")
    with pytest.raises(OSError, match="lock"):
        Lock.acquire(path)
    assert not path.with_name("elsewhere").exists()
