"""Turns a process forked from the preloader into what the agent would have started: its child, with its things only."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import process_memory

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_PROGRESS = "ORCH_PROGRESS_FD"
# Between a process's end and its children's having another parent.
_PARENT_LOOK_S = 0.0002


def report(agent: socket.socket, agent_pid: int, between: int) -> None:
    """Become the agent's child, leader of a session of its own, and wait for the agent's word to begin.

    `between` is the pid of the process that forked this one. It may have ended, and the agent too."""
    while os.getppid() == between:
        time.sleep(_PARENT_LOOK_S)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent_pid:  # it died before the line above could see it
        os._exit(1)
    os.setsid()
    own = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(agent, [b"{}"], [own])
        word = agent.recv(16)
    except OSError:
        word = b""
    os.close(own)
    if not word:
        os._exit(1)  # a stop was quicker


def dress(argv: Sequence[str], env: Mapping[str, str], log: int, progress: int) -> None:
    """Its environment, names and output. Every other descriptor has been closed; so is `log` then."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.set_inheritable(progress, True)
    os.environ.clear()
    os.environ.update(env)
    os.environ[_PROGRESS] = str(progress)
    # The run's id first: should there be no room for all, that is what a run's leftovers are found by.
    process_memory.show(
        argv, {name: os.environ[name] for name in ("ORCH_RUN_ID",) if name in env} | dict(env)
    )
    _renew(sys.modules)


def _renew(modules: Mapping[str, Any]) -> None:
    """What libraries keep of the process that has imported them; Python itself sees to its own random numbers."""
    if numpy_random := modules.get("numpy.random"):
        numpy_random.seed()
    if process := modules.get("multiprocessing.process"):
        # What siblings shared would let them into each other's managers and connections.
        process.current_process().authkey = os.urandom(32)
    main_thread = getattr(modules.get("threading"), "main_thread", object)()
    if hasattr(main_thread, "_set_native_id"):
        main_thread._set_native_id()
    logging = modules.get("logging")
    began = getattr(logging, "_startTime", None)
    if logging is not None and began is not None:
        # In nanoseconds from Python 3.13 on.
        logging._startTime = time.time_ns() if isinstance(began, int) else time.time()


def adjust_oom_score(more: int) -> int:
    """Make this process the likelier victim when memory runs out; the score it had."""
    before = int(_OOM_SCORE.read_text())
    set_oom_score(min(1000, before + more))
    return before


def set_oom_score(score: int) -> None:
    try:
        _OOM_SCORE.write_text(str(score))
    except OSError:
        return
