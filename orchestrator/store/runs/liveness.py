"""Decide whether a run is live, by its lock and by the process of its supervisor."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState
from orchestrator.store.ownership import accepted_owner, is_own_user
from orchestrator.store.runs.event_file import EventTail
from orchestrator.store.runs.locks import Held, is_holder
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.record import RunRecord, boot_id

# States and flag of a process that is exiting, in /proc/PID/stat (man 5 proc, linux/sched.h).
_EXITED_STATES = (b"Z", b"X", b"x")
_STOPPED_STATES = (b"T", b"t")
_PF_EXITING = 0x4


class Liveness(Enum):
    """Whether the supervisor of a run is alive."""

    LIVE = "live"
    DEAD = "dead"
    UNKNOWN = "unknown"  # its lock cannot be probed, and its process belongs to another machine or boot


def liveness_of(
    record: RunRecord, paths: RunPaths, held: Held, is_original: bool, has_recorded_end: Callable[[], bool]
) -> Liveness:
    """Judge a run by its record and the state of its lock. A copied directory (not `is_original`) has no process.

    `has_recorded_end` is called only when needed: the supervisor of a session outlives each of its runs.
    """
    if held is Held.YES:
        return Liveness.LIVE
    if record.job is not None and is_original and not has_recorded_end():
        return _liveness_in_job(record, record.job, held)
    if is_of_another_boot(record):
        return Liveness.DEAD
    if is_original and is_supervisor_alive(record, paths) and not has_recorded_end():
        return Liveness.LIVE
    is_local = is_of_this_boot(record) and is_of_this_host(record)
    if held is Held.UNKNOWN and not is_local and not has_recorded_end():
        return Liveness.UNKNOWN
    return Liveness.DEAD


def _liveness_in_job(record: RunRecord, job: str, held: Held) -> Liveness:
    """Judge a run whose lock is free: it waits for its job, or is on a file system that does not share locks."""
    from orchestrator.store.runs.slurm_jobs import JobPhase, job_status

    match job_status(job, record.cluster, record.job_mark).phase:
        case JobPhase.UNKNOWN:
            return Liveness.UNKNOWN
        case JobPhase.ENDED:
            return Liveness.DEAD
        case JobPhase.RUNNING:
            # Its supervisor was here, and would hold the lock.
            was_here = record.supervisor_pid > 1 and is_of_this_host(record) and is_of_this_boot(record)
            return Liveness.DEAD if was_here and held is Held.NO else Liveness.LIVE
    return Liveness.LIVE


def has_end_event(paths: RunPaths) -> bool:
    """True if the run's events contain its end."""
    state = RunState()
    for event in EventTail(paths.events).read():
        try:
            state = apply(state, event)
        except (KeyError, ValueError):
            continue
    return state.phase.is_end


def is_of_this_host(record: RunRecord) -> bool:
    """True if the run was started on this machine, as far as its record shows."""
    return record.host in ("", platform.node())


def is_of_this_boot(record: RunRecord) -> bool:
    """True if the machine has not restarted since. Only then are the record's pids and monotonic times valid."""
    return bool(record.boot_id) and record.boot_id == boot_id()


def is_of_another_boot(record: RunRecord) -> bool:
    """True if the run was started on this machine before its last restart. Then no process of the run can exist."""
    current = boot_id()
    return is_of_this_host(record) and bool(record.boot_id) and bool(current) and record.boot_id != current


def is_supervisor_alive(record: RunRecord, paths: RunPaths) -> bool:
    with _supervisor_pidfd(record, paths) as pidfd:
        return pidfd is not None


def signal_supervisor(record: RunRecord, paths: RunPaths, number: signal.Signals) -> bool:
    """Send a signal to the supervisor of a run. False if that process does not exist any more."""
    with _supervisor_pidfd(record, paths) as pidfd:
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


@contextmanager
def _supervisor_pidfd(record: RunRecord, paths: RunPaths) -> Iterator[int | None]:
    """Yield a pidfd of the supervisor. It is opened before the check, so that the checked process is signalled."""
    if record.supervisor_pid <= 1 or not record.supervisor_start_ticks or not is_of_this_boot(record):
        yield None
        return
    try:
        pidfd = os.pidfd_open(record.supervisor_pid)
    except OSError:
        yield None
        return
    try:
        yield pidfd if _is_supervisor(record, paths) else None
    finally:
        os.close(pidfd)


def _is_supervisor(record: RunRecord, paths: RunPaths) -> bool:
    """True if the process that the record names is this user's and holds the lock of this run.

    A record alone proves nothing: it can name any process with its start time. If root uses the state of another user
    (--as-root-anyway), that user's records count for that user's processes only.
    """
    pid = record.supervisor_pid
    # Another process can have the same pid, but not the same start time.
    return (
        start_ticks(pid) == record.supervisor_start_ticks
        and is_own_process(pid)
        and (accepted_owner() is None or uids_of(pid) == {_owner_of(paths)})
        and is_holder(pid, paths.lock)
    )


def _owner_of(paths: RunPaths) -> int | None:
    try:
        return paths.root.lstat().st_uid
    except OSError:
        return None


def is_own_process(pid: int) -> bool:
    """True if all user ids of the process are this user's, or those of one whose state is accepted."""
    uids = uids_of(pid)
    return bool(uids) and all(map(is_own_user, uids))


def uids_of(pid: int) -> set[int]:
    """Return the real, effective and saved user id of a process; an empty set if it has exited or is hidden."""
    try:
        status = (Path("/proc") / str(pid) / "status").read_bytes()
    except OSError:
        return set()
    line = next((line for line in status.splitlines() if line.startswith(b"Uid:")), b"")
    return {int(uid) for uid in line.split()[1:4]}


def is_stopped(pid: int) -> bool:
    """True if a signal such as SIGSTOP has stopped the process."""
    try:
        stat = (Path("/proc") / str(pid) / "stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] in _STOPPED_STATES


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot. None if it has exited or is exiting."""
    try:
        stat = (Path("/proc") / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The command name, in parentheses, can contain any character.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in _EXITED_STATES or int(fields[6]) & _PF_EXITING:
        return None
    return int(fields[19])
