"""Finds the processes that a test has left."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Set
from pathlib import Path

import psutil
from forks import ForkServer
from kept import Kept
from lasting import LASTING

# Processes that are exiting may take this long on a busy machine: an unused supervisor first finishes its imports.
_LAST_EXITS_S = 60.0
_LOOK_S = 0.01


def end_leftovers(state_dir: Path, before: Set[int]) -> None:
    """Wait for the processes of the tests with this state directory, then kill them. AssertionError if there were any.

    `before`: processes that may stay.
    """
    left = [process for process in processes_of(state_dir) if process.pid not in before]
    deadline = time.monotonic() + _LAST_EXITS_S
    # The process that adopts an orphan may not reap it, so a zombie counts as gone.
    while left and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=_LOOK_S)
        left = [process for process in left if _lives(process)]
    named = [_description(process) for process in left]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not named, f"left behind: {named}"


def processes_of(state_dir: Path) -> list[psutil.Process]:
    """The processes with this state directory, and those below this process, but for those that last."""
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
        below, above = pid, parents[pid]
        while above in parents and above != os.getpid():
            below, above = above, parents[above]
        # Kept.check() checks the children of the kept supervisor.
        if above == os.getpid() and below not in {*LASTING, *ForkServer.pids, Kept.pid}:
            yield pid


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _running(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
    return process if _lives(process) else None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _description(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.cmdline()}"
    except psutil.Error:
        return str(process.pid)
