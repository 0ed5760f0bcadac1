"""The parent of an agent on another host: when the agent is gone, it ends what is left and removes the directory.

It is the program that ssh or srun runs. The end of its stdout says that this host is empty.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from worker.agent.processes import (
    DIRECTORY_VARIABLE,
    STOPPED,
    Delivery,
    ProcessStat,
    all_processes,
    descendants,
    read_stat,
    send_signal,
)
from worker.agent.stage1 import PREFIX, bases, is_own_directory
from worker.agent.task_start import PR_SET_NAME, PR_SET_PDEATHSIG, become_subreaper

# In the directory: the messages of the agent itself.
LOG = "agent.log"
# In the directory: pid and start_ticks of the agent and of its guard, a line each.
_PROCESSES = "processes"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# After this time, a directory without the file of its processes belongs to a start that was interrupted.
_START_S = 600.0
# Longest time for an earlier agent to leave, and for a guard to end what is left.
_LEAVE_S, _PATIENCE_S = 10.0, 5.0
_ROUND_S = 0.02
# Rounds without a process before there is certainly none: a process has no visible environment during exec.
_EMPTY_ROUNDS = 2
# The end of the agent's log is printed. It is empty unless something went wrong.
_LOG_END_BYTES = 2048
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_libc = ctypes.CDLL(None, use_errno=True)


def serve(directory: Path, link_timeout_s: float, ready: Callable[[], None]) -> None:
    """Run an agent on stdin and stdout in this directory. Call `ready` before it, return when nothing is left of it.

    First, end what earlier starts have left on this host: an agent of the same run, and all that have lost their guard.
    """
    # The lock is free when guard and agent are gone. Programs that clean up /tmp leave a locked directory alone.
    fcntl.flock(os.open(directory, _DIRECTORY), fcntl.LOCK_EX)
    for other in _others(directory):
        is_earlier = other.name.rpartition("-")[0] == directory.name.rpartition("-")[0]
        if _is_left(other) or (is_earlier and _end_agent(other)):
            end_all(str(other), None)
    os.chdir("/")
    become_subreaper()
    _libc.prctl(PR_SET_NAME, b"orch-guard", 0, 0, 0)
    ready()
    guard = os.getpid()
    agent = os.fork()
    if agent == 0:
        _become_agent(directory, link_timeout_s, guard)
    # Slurm sends SIGTERM to this program alone when the step will end, which the agent reports. Otherwise these signals
    # may be sent to all processes of a user: the agent ends on them.
    is_step = "SLURM_STEP_ID" in os.environ
    for number in _EXIT_SIGNALS:
        signal.signal(number, lambda number, _: os.kill(agent, number) if is_step else None)
    try:
        lines = (f"{stat.pid} {stat.start_ticks}\n" for stat in map(read_stat, (agent, guard)) if stat)
        (directory / _PROCESSES).write_text("".join(lines))
        _wait(agent, link_timeout_s)
        with suppress(OSError):
            os.write(_STDERR, (directory / LOG).read_bytes()[-_LOG_END_BYTES:])
    finally:
        for number in _EXIT_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        end_all(str(directory), guard)


def _become_agent(directory: Path, link_timeout_s: float, guard: int) -> None:
    """Run the agent on copies of stdin and stdout, so that nothing else can write to its stream."""
    try:
        os.setsid()
        # On SIGHUP the agent ends its tasks, which takes a while.
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
        _libc.prctl(PR_SET_NAME, b"orch-agent", 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)
        source, sink = os.dup(_STDIN), os.dup(_STDOUT)
        log = os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for fd, place in ((os.open(os.devnull, os.O_RDONLY), _STDIN), (log, _STDOUT), (log, _STDERR)):
            os.dup2(fd, place)
        from worker.agent import agent
        from worker.agent.host import HostStream

        agent.serve(partial(HostStream, directory, source, sink, link_timeout_s))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _wait(agent: int, link_timeout_s: float) -> None:
    """Wait for the end of the agent. Kill one that stays stopped by a signal: it cannot end its tasks in time."""
    kill_at: float | None = None  # while it is stopped
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED if kill_at is None else os.WUNTRACED | os.WNOHANG)
        if pid == agent:
            if not os.WIFSTOPPED(status):
                return
            kill_at = time.monotonic() + link_timeout_s
        elif pid == 0 and kill_at is not None:
            stat = read_stat(agent)
            if stat is None or stat.state not in STOPPED:
                kill_at = None
            elif time.monotonic() >= kill_at:
                os.kill(agent, signal.SIGKILL)
                kill_at = None
            else:
                time.sleep(_ROUND_S)


def _others(directory: Path) -> Iterator[Path]:
    """The directories of this user's other agents on this host."""
    for base in bases():
        for other in Path(base).glob(f"{PREFIX}*"):
            if other != directory and is_own_directory(str(other)):
                yield other


def _is_left(directory: Path) -> bool:
    """Whether the agent of this directory and its guard are gone. False while the agent is starting."""
    try:
        lock = os.open(directory, _DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return (directory / _PROCESSES).exists() or time.time() - directory.stat().st_mtime > _START_S
    except OSError:
        return False
    finally:
        os.close(lock)


def _end_agent(directory: Path) -> bool:
    """End the agent of this directory. Return whether it and its guard are gone."""
    for number, patience_s in ((signal.SIGHUP, _LEAVE_S), (signal.SIGKILL, _PATIENCE_S)):
        try:
            lines = (directory / _PROCESSES).read_text().splitlines()
            processes = [(int(pid), int(start_ticks)) for pid, start_ticks in map(str.split, lines)]
        except (OSError, ValueError):  # it is being written, or was on a full disk
            return False
        for pid, start_ticks in processes:
            stat = read_stat(pid)
            if stat is not None and stat.start_ticks == start_ticks:
                send_signal(stat, number)
                send_signal(stat, signal.SIGCONT)  # it may have been stopped
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not directory.exists() or _is_left(directory):
                return True
            time.sleep(_ROUND_S)
    return False


def end_all(directory: str, root: int | None) -> None:
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
    """Whether a process of this user has the variable in its environment."""
    try:
        process = Path(f"/proc/{pid}")
        is_ours = process.stat().st_uid == os.geteuid()
        return is_ours and mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _reap() -> None:
    """Read the exits of children that this process has inherited."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
