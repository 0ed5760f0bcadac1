"""End the processes that a run left behind, and find those that this user may not end."""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from orchestrator.store.runs.liveness import is_own_process, start_ticks, uids_of
from orchestrator.store.runs.paths import RunPaths
from worker.wire.facts import LeftProcess

# Interval and total time of the rounds in which processes are killed.
_ROUND_S = 0.02
_PATIENCE_S = 2.0
# A longer command line is cut.
_MOST_LETTERS = 200


@dataclass(frozen=True)
class Swept:
    """The number of processes that were ended, and those that were not: they run under another user."""

    ended: int = 0
    left: tuple[LeftProcess, ...] = ()


def end_leftovers(paths: RunPaths, ancestor_pid: int | None = None) -> Swept:
    """SIGKILL all processes of a run and all descendants of the process `ancestor_pid`.

    Used when the agent, which knows the processes, is gone. Never kills the caller or its ancestors.
    """
    ended: set[tuple[int, float]] = set()
    refused: list[psutil.Process] = []
    deadline = time.monotonic() + _PATIENCE_S
    looked_again = False
    while time.monotonic() < deadline:
        left = _leftovers(paths, ancestor_pid)
        killed = [process for process in left if _kill(process, paths, left[process])]
        refused = [process for process in left if process not in killed]
        if not killed and looked_again:
            break
        # A process has no visible environment during exec, so an empty list is checked a second time.
        looked_again = not killed
        ended |= {(process.pid, process.create_time()) for process in killed}
        if killed:
            psutil.wait_procs(killed, timeout=_ROUND_S)
        else:
            time.sleep(_ROUND_S)
        if ancestor_pid == os.getpid():
            _reap_children()
    found = (describe(process.pid) for process in refused)
    return Swept(len(ended), tuple(each for each in found if each is not None))


def _kill(process: psutil.Process, paths: RunPaths, is_below: bool) -> bool:
    """Kill this process, never another one with the same pid. False if that is not possible or not allowed."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # is_running() compares the start time: the pid may belong to a new process.
        if not process.is_running():
            return False
        # An environment is copied by sudo and the like, and any user can write one. A descendant is certain.
        if not is_below and not (is_own_process(process.pid) and _is_of_run(process, paths)):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)
    return True


def _leftovers(paths: RunPaths, ancestor_pid: int | None) -> dict[psutil.Process, bool]:
    """Return {process: whether it is a descendant of `ancestor_pid`}."""
    processes = {process.pid: process for process in psutil.process_iter()}
    # psutil's parents() and children() fail where /proc hides processes of other users (hidepid).
    parents = {pid: _parent(process) for pid, process in processes.items()}
    spared = {os.getpid(), *_ancestors(os.getpid(), parents)}
    found = {}
    for pid, process in processes.items():
        is_below = ancestor_pid in _ancestors(pid, parents)
        if pid not in spared and (is_below or _is_of_run(process, paths)) and not _has_exited(process):
            found[process] = is_below
    return found


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def _ancestors(pid: int, parents: Mapping[int, int | None]) -> list[int]:
    """Return the visible ancestors of a process, the nearest first."""
    found: list[int] = []
    parent = parents.get(pid)
    # The list is not a snapshot: a reused pid could close a cycle.
    while parent and parent not in found:
        found.append(parent)
        parent = parents.get(parent)
    return found


def _is_of_run(process: psutil.Process, paths: RunPaths) -> bool:
    """True if the environment names this run and its directory: another state directory may contain the same id."""
    try:
        environ = process.environ()
    except (psutil.Error, OSError):
        return False
    if environ.get("ORCH_RUN_ID") != paths.run_id:
        return False
    return os.path.realpath(environ.get("ORCH_RUN_DIR", "")) == os.path.realpath(paths.root)


def _has_exited(process: psutil.Process) -> bool:
    """True if the process is a zombie or has vanished."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _reap_children() -> None:
    """Reap orphans that this process inherited as a subreaper."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def processes_left(known: Iterable[LeftProcess], sessions: Mapping[int, int]) -> tuple[LeftProcess, ...]:
    """Return the processes that are left of those known, and those of other users in the sessions of the tasks.

    `sessions`: {pid of a task: its start ticks}. Only valid in the boot in which the tasks ran.
    """
    found = {each.pid: each for each in known if start_ticks(each.pid) == each.start_ticks}
    for pid in psutil.pids():
        session = _session(pid)
        if session not in sessions or is_own_process(pid):
            continue
        # A leader with another start time, or a member older than the task: the pid was reused.
        is_reused = start_ticks(session) not in (None, sessions[session])
        process = None if is_reused else describe(pid)
        if process is not None and process.start_ticks >= sessions[session]:
            found[pid] = process
    return tuple(found[pid] for pid in sorted(found))


def describe(pid: int) -> LeftProcess | None:
    """Return the process for a message; None if it has exited."""
    others, ticks = uids_of(pid) - {os.geteuid()}, start_ticks(pid)
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return None
    if ticks is None:
        return None
    user = _user_name(max(others, default=os.geteuid()))
    return LeftProcess(pid=pid, start_ticks=ticks, user=user, command=command[:_MOST_LETTERS])


def _session(pid: int) -> int:
    """Return the id of the process's session, the pid of its first leader; 0 if the process has exited."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
