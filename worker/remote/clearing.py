"""Ends what an agent has left on this host, and removes its directory."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from worker.agent.processes import (
    DIRECTORY_VARIABLE,
    Delivery,
    ProcessStat,
    all_processes,
    descendants,
    send_signal,
)

_ROUND_S = 0.02
_PATIENCE_S = 5.0
# Rounds without a process before there is certainly none: a process has no visible environment during exec.
_EMPTY_ROUNDS = 2


def clear_up(directory: str, root: int | None) -> None:
    """Kill all processes below `root` and all that are marked with this directory, then remove it."""
    deadline = time.monotonic() + _PATIENCE_S
    empty = 0
    while empty < _EMPTY_ROUNDS and time.monotonic() < deadline:
        deliveries = [send_signal(stat, signal.SIGKILL) for stat in _left(directory, root)]
        empty = 0 if Delivery.SENT in deliveries else empty + 1
        _reap()
        time.sleep(_ROUND_S)
    shutil.rmtree(directory, ignore_errors=True)


def _left(directory: str, root: int | None) -> Iterator[ProcessStat]:
    processes = all_processes()
    below = set() if root is None else {stat.pid for stat in descendants(root, processes)}
    mark = f"{DIRECTORY_VARIABLE}={directory}".encode()
    for stat in processes.values():
        if stat.pid != os.getpid() and not stat.is_gone and (stat.pid in below or _is_marked(stat.pid, mark)):
            yield stat


def _is_marked(pid: int, mark: bytes) -> bool:
    """Whether this user's process has the variable in its environment."""
    try:
        process = Path(f"/proc/{pid}")
        return process.stat().st_uid == os.geteuid() and mark in (process / "environ").read_bytes().split(
            b"\0"
        )
    except OSError:
        return False


def _reap() -> None:
    """Read the exits of children that this process has inherited."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
