"""Every test: a state directory of its own, none of orch's variables, and no process left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

# A busy machine is no finding.
hypothesis.settings.register_profile("without_a_clock", deadline=None)
hypothesis.settings.load_profile("without_a_clock")

# What has been told to end may take this long on a busy machine; what has not never ends.
_LAST_EXITS_S = 10.0


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of this test are kept; the variable also marks all its processes."""
    for name in list(os.environ):
        if name.startswith("ORCH_") or name in ("TF_CONFIG", "TF_GRPC_REUSE_PORT", "PORTSERVER_ADDRESS"):
            monkeypatch.delenv(name)
    directory = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    return directory


@pytest.fixture(autouse=True)
def nothing_left(state_dir: Path) -> Iterator[None]:
    """Fails a test that leaves a process: below this one, or anywhere with the test's state directory."""
    before = {process.pid for process in _of_this_test(state_dir)}
    yield
    left = [process for process in _of_this_test(state_dir) if process.pid not in before]
    _, left = psutil.wait_procs(left, timeout=_LAST_EXITS_S if left else 0)
    told = [_description(process) for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not told, f"left behind: {told}"


@pytest.fixture
def no_leaked_descriptors() -> Iterator[None]:
    """Fails a test that leaves a descriptor open in this process."""
    before = _descriptors()
    yield
    gc.collect()
    left = {fd: what for fd, what in _descriptors().items() if before.get(fd) != what}
    assert not left, f"left open: {left}"


def _of_this_test(state_dir: Path) -> list[psutil.Process]:
    mark = os.fsencode(f"XDG_STATE_HOME={state_dir}\0")
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = {pid for pid in pids if _has_mark(pid, mark)} | set(_children(pids))
    return [process for pid in found - {os.getpid()} if (process := _running(pid)) is not None]


def _children(pids: set[int]) -> Iterator[int]:
    parents = {}
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        parents[pid] = int(stat.rpartition(b")")[2].split()[1])
    for pid in parents:
        above = parents[pid]
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            yield pid


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _running(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def _description(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.cmdline()}"
    except psutil.Error:
        return str(process.pid)


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found[fd.name] = str(fd.readlink())
        except OSError:
            continue  # the listing's own
    return found
