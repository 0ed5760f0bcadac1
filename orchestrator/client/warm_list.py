"""The warm holders of this user: what `orch warm` lists and stops."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass

import psutil

from orchestrator.links.kept import LOCK, Holding, dismiss, live_places
from orchestrator.store.directory import Directory
from orchestrator.store.runs.liveness import is_own_process
from orchestrator.store.runs.locks import is_holder

# A holder that waits leaves at once, but its agent may have been stopped.
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class WarmRow:
    """A holder with its processes. `until`: Unix seconds, None during a run. `memory_bytes`: PSS."""

    directory: str
    pid: int
    since: float
    until: float | None
    runs: int
    processes: int
    memory_bytes: int


def warm_rows() -> list[WarmRow]:
    """Return a row for each holder. NotOurs, UsageError, OSError."""
    with live_places() as places:
        return [_row(holding) for _, holding in places if holding is not None]


def stop_holders(patience_s: float = _PATIENCE_S) -> list[WarmRow]:
    """End all holders: those without a run now, the others after it. Return them. NotOurs, UsageError, OSError.

    A holder that does not leave within `patience_s` is killed."""
    stopped, was_killed = [], False
    with live_places() as places:
        for place, holding in places:
            if holding is not None:
                stopped.append(_row(holding))
            dismiss(place)
        for place, holding in places:
            if holding is not None and holding.until is not None:
                was_killed |= _end(holding, place, patience_s)
    if was_killed:
        with live_places():
            pass  # removes the files of the others
    return stopped


def _end(holding: Holding, place: Directory, patience_s: float) -> bool:
    """Wait until a dismissed holder has exited. Kill one that does not react, for instance because it was stopped; its
    agent then ends the rest. A process that does not hold the lock of the place is not the holder.

    Return whether it was killed."""
    with suppress(OSError):
        pidfd = os.pidfd_open(holding.pid)
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not holding.is_live_process() or poller.poll(patience_s * 1000):
                return False
            if is_own_process(holding.pid) and is_holder(holding.pid, place.path / LOCK):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return bool(poller.poll(patience_s * 1000))
        finally:
            os.close(pidfd)
    return False


def _row(holding: Holding) -> WarmRow:
    processes = _processes(holding.pid)
    return WarmRow(
        directory=holding.directory,
        pid=holding.pid,
        since=holding.since,
        until=holding.until,
        runs=holding.runs,
        processes=len(processes),
        memory_bytes=sum(map(_pss, processes)),
    )


def _processes(pid: int) -> list[psutil.Process]:
    try:
        holder = psutil.Process(pid)
        return [holder, *holder.children(recursive=True)]
    except psutil.Error:
        return []


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0
