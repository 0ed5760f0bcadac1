"""Turns a process forked from the preloader into the agent's task: its parent, output, environment and names."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .messages import PROGRESS_FD

_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_MAP = 1, 35, 14
_OOM_SCORE = Path("/proc/self/oom_score_adj")
# Seconds between checks whether the agent has become the parent.
_PARENT_CHECK_S = 0.0002


def report_to_agent(agent: socket.socket, agent_pid: int, between: int) -> None:
    """Become the agent's child and a session leader, then wait until the agent allows the task to start.
    `between` is the pid of the process that forked this one. It may have exited, and so may the agent."""
    while os.getppid() == between:
        time.sleep(_PARENT_CHECK_S)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent_pid:  # it died before prctl took effect
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
        os._exit(1)  # the run was stopped in the meantime


def take_over(argv: Sequence[str], env: Mapping[str, str], log: int, progress: int) -> None:
    """Take over the task's environment, names and output. `log` is closed; no other descriptor is open."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.set_inheritable(progress, True)
    os.environ.clear()
    os.environ.update(env)
    os.environ[PROGRESS_FD] = str(progress)
    # The run first, in case the room is too small for all: orch finds leftover processes by these two.
    run = {name: env[name] for name in ("ORCH_RUN_ID", "ORCH_RUN_DIR") if name in env}
    show_in_proc(argv, run | dict(env))
    _renew(sys.modules)


def _renew(modules: Mapping[str, Any]) -> None:
    """Renew what libraries store of the process that imported them. Python renews its own random numbers."""
    if numpy_random := modules.get("numpy.random"):
        numpy_random.seed()
    if process := modules.get("multiprocessing.process"):
        # With a shared key, sibling tasks could connect to each other's managers.
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
    """Raise this process's score for the kernel's OOM killer; return the former score."""
    before = int(_OOM_SCORE.read_text())
    set_oom_score(min(1000, before + more))
    return before


def set_oom_score(score: int) -> None:
    try:
        _OOM_SCORE.write_text(str(score))
    except OSError:
        return


# -- what /proc shows

# Fields of /proc/PID/stat, counted from 1 (man 5 proc). The four from ARG_START on are adjacent.
_START_CODE, _END_CODE, _START_STACK, _START_DATA, _END_DATA, _START_BRK = 26, 27, 28, 45, 46, 47
_ARG_START = 48
_NO_FILE = 0xFFFFFFFF
# Kept alive: the kernel reads the command line and environment from here.
_shown: list[ctypes.Array[ctypes.c_char]] = []


def show_in_proc(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace the contents of /proc/self/cmdline and /proc/self/environ. os.environ must have been replaced before.
    A kernel without PR_SET_MM_MAP shows as much as fits in the place of the originals."""
    command = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    addresses = {number: int(fields[number - 3]) for number in range(_START_CODE, _ARG_START + 4)}
    if not _point_at(command, variables, addresses):
        _overwrite(command, variables, addresses)


def _point_at(command: bytes, variables: bytes, addresses: Mapping[int, int]) -> bool:
    library = ctypes.CDLL(None)
    library.sbrk.restype = ctypes.c_void_p
    block = ctypes.create_string_buffer(command + variables)
    start = ctypes.addressof(block)
    middle, end = start + len(command), start + len(command) + len(variables)
    # struct prctl_mm_map of linux/prctl.h, without auxiliary vector and file: those stay.
    layout = struct.pack(
        "11QQII",
        *(addresses[number] for number in (_START_CODE, _END_CODE, _START_DATA, _END_DATA, _START_BRK)),
        library.sbrk(0),
        addresses[_START_STACK],
        start,
        middle,
        middle,
        end,
        0,
        0,
        _NO_FILE,
    )
    size, unused = ctypes.c_ulong(len(layout)), ctypes.c_ulong(0)
    if library.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), layout, size, unused) != 0:
        return False
    _shown.append(block)
    return True


def _overwrite(command: bytes, variables: bytes, addresses: Mapping[int, int]) -> None:
    arg_start, arg_end, env_start, env_end = (addresses[_ARG_START + at] for at in range(4))
    for text, start, end in ((command, arg_start, arg_end), (variables, env_start, env_end)):
        room = end - start
        kept = text if len(text) <= room else text[: room - 1]
        ctypes.memmove(start, kept.ljust(room, b"\0"), room)
