"""One task as a process: started in a session of its own, straight into its log file, dying with its agent."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.processes import read_stat

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
COMMAND_NOT_FOUND, COMMAND_NOT_RUNNABLE = 127, 126  # as shells have it
_libc = ctypes.CDLL(None, use_errno=True)


class StartFailed(Exception):
    """The process could not be made; `exit_code` is what a shell would give."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Command:
    """What to run. `env` is a delta over this process's environment; `log` is appended to."""

    argv: list[str]
    env: Mapping[str, str]
    cwd: str
    log: str


@dataclass
class TaskProcess:
    """A started task: its leader's pid (also its process group and session), a pidfd, and its progress pipe."""

    name: str
    pid: int
    pidfd: int
    start_ticks: int
    port: int | None
    serves: bool
    progress_fd: int
    started_mono: float
    progress_rest: bytes = b""
    is_ready: bool = False

    def signal_group(self, number: int) -> None:
        """To the whole group. Safe while the leader has not been reaped: until then its pid is nobody else's."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def reap(self) -> tuple[int | None, int | None] | None:
        """(exit code, signal) of the leader, one of them None; None when it has not exited."""
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
        if info is None:
            return None
        if info.si_code == os.CLD_EXITED:
            return info.si_status, None
        return None, info.si_status

    def close(self) -> None:
        for fd in (self.pidfd, self.progress_fd):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.progress_fd = -1


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's. Lasts until it exits."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start(name: str, command: Command, port: int | None, serves: bool) -> TaskProcess:
    """Start the task; StartFailed with the reason if there is no such command, directory or permission."""
    log = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    progress_out, progress_in = os.pipe2(os.O_CLOEXEC)
    try:
        env = {**os.environ, **command.env, "ORCH_PROGRESS_FD": str(progress_in)}
        process = _spawn(command, env, log, progress_in)
    except BaseException:
        os.close(progress_out)
        raise
    finally:
        os.close(log)
        os.close(progress_in)
    os.set_blocking(progress_out, False)
    # From here on this agent reaps by pid; Popen must neither wait nor warn.
    process.returncode = 0
    stat = read_stat(process.pid)
    return TaskProcess(
        name=name,
        pid=process.pid,
        pidfd=os.pidfd_open(process.pid),
        start_ticks=stat.start_ticks if stat else 0,
        port=port,
        serves=serves,
        progress_fd=progress_out,
        started_mono=time.monotonic(),
        is_ready=not serves,
    )


def _spawn(command: Command, env: dict[str, str], log: int, progress: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=command.cwd,
            env=env,
            start_new_session=True,
            pass_fds=(progress,),
            preexec_fn=_die_with(os.getpid()),
        )
    except FileNotFoundError as error:
        missing = command.cwd if not Path(command.cwd).is_dir() else command.argv[0]
        raise StartFailed(f"{missing}: no such file or directory", COMMAND_NOT_FOUND) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.ENOEXEC:
            reason += " (a script needs a first line such as #!/usr/bin/env python3)"
        raise StartFailed(f"{command.argv[0]}: {reason}", COMMAND_NOT_RUNNABLE) from error


def _die_with(agent: int) -> Callable[[], None]:
    """For the child, between fork and exec: the kernel kills it when the agent's (only) thread ends."""
    limits = _original_limits

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != agent:  # it died before the line above could see it
            os._exit(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    return prepare


_original_limits = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_file_limit() -> None:
    """Room for three descriptors a task here; the tasks themselves keep the limit the user has."""
    hard = _original_limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
