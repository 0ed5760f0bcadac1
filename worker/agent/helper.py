"""Processes forked from the agent for work that may block: its own thread must never wait."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from worker.agent.task_start import PR_SET_NAME, PR_SET_PDEATHSIG

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
# Longest wait for killed processes, which may be stuck in the kernel; the agent reaps them later. Interval of looks.
_END_S, _LOOK_S = 1.0, 0.002
_libc = ctypes.CDLL(None)

Work = Callable[[socket.socket], None]


@dataclass(frozen=True)
class Helper:
    """A helper as its agent sees it. `stream` leads to it and does not block."""

    pid: int
    stream: socket.socket

    @classmethod
    def fork(
        cls, name: str, work: Work, keep: Collection[int] = (), kind: int = socket.SOCK_STREAM
    ) -> Helper:
        """Run `work` in a new process with the other end of the stream. OSError.

        The helper is killed when the agent exits. It keeps only stderr and `keep` of the agent's descriptors: copies of
        the others would keep ports bound and streams open.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, kind)
        ours.setblocking(False)
        agent = os.getpid()
        with its:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                _run_as_helper(agent, name, its, work, keep)
        with suppress(OSError):
            os.setpgid(pid, pid)
        return cls(pid, ours)

    def end(self) -> None:
        """Kill the helper with the processes that it has started, and wait until they are gone."""
        self.stream.close()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        until = time.monotonic() + _END_S
        with suppress(ChildProcessError):
            while time.monotonic() < until:  # its children are those of the agent now
                if os.waitpid(-self.pid, os.WNOHANG)[0] == 0:
                    time.sleep(_LOOK_S)


def _run_as_helper(
    agent: int, name: str, stream: socket.socket, work: Work, keep: Collection[int]
) -> NoReturn:
    status = 1
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
        if os.getppid() == agent:  # else it exited before prctl took effect
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in _CAUGHT:
                signal.signal(number, signal.SIG_DFL)
            _close_all_but({stream.fileno(), _STDERR, *keep})
            work(stream)
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _close_all_but(kept: set[int]) -> None:
    # Not os.closerange(): where it tries each number, a limit of a billion descriptors takes minutes.
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 (numbers, not paths)
        if fd not in kept:
            with suppress(OSError):
                os.close(fd)
    for fd in (_STDIN, _STDOUT):
        if os.open(os.devnull, os.O_RDWR) != fd:
            raise OSError(f"descriptor {fd} is in use")
