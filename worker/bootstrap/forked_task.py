"""Turns a process forked from the preloader into the agent's task: its parent, output, environment, names, program."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import terminal
from .messages import DESCRIPTORS, PROGRESS_FD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


def take_over(
    argv: Sequence[str], env: Mapping[str, str], log: int, progress: int, descriptors: Mapping[str, int]
) -> None:
    """Take over the task's environment, names and output. `log` is closed; other descriptors than these are not open.
    `descriptors` are those of the run's client, by name."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    descriptors = _connected(descriptors)
    for fd in (progress, *descriptors.values()):
        os.set_inheritable(fd, True)
    os.environ.clear()
    os.environ.update(env)
    os.environ[PROGRESS_FD] = str(progress)
    if descriptors:
        os.environ[DESCRIPTORS] = json.dumps(descriptors)
    # The run first, in case the room is too small for all: orch finds leftover processes by these two.
    run = {name: env[name] for name in ("ORCH_RUN_ID", "ORCH_RUN_DIR") if name in env}
    show_in_proc(argv, run | dict(env))
    _renew(sys.modules)


def _connected(descriptors: Mapping[str, int]) -> Mapping[str, int]:
    """Connect this process to its terminal, if it has one; return the other descriptors."""
    if terminal.TERMINAL not in descriptors:
        return descriptors
    held = descriptors[terminal.TERMINAL]
    opened = terminal.open_again(held)
    terminal.take_control(opened)
    terminal.connect(opened)
    os.close(opened)
    os.close(held)
    return {name: fd for name, fd in descriptors.items() if name != terminal.TERMINAL}


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


# -- the program
#
# Python stores the program of its command line in its configuration (PyConfig, CPython's Include/cpython/initconfig.h)
# and reads it there after the start. A forked task replaces it before that, so Python itself runs the program, and
# `__main__`, sys.path[0], tracebacks, exit codes, packages, zip files and encodings are as if the interpreter had been
# started with it. The fields are found by their contents, not by an offset: the preloader is started with a file name
# that no other string of the process equals.

_WORD = ctypes.sizeof(ctypes.c_void_p)
_WIDE = ctypes.sizeof(ctypes.c_wchar)
# PyConfig takes some 450 bytes in 3.11 to 3.13.
_CONFIG_BYTES = 1024


class NoSuchProgram(Exception):
    """The command line names no program that can be run from here; the text says why."""


@dataclass(frozen=True)
class Program:
    """A command line after the interpreter's options: a file (or directory, or zip file), a module or a command."""

    argv: tuple[str, ...]  # sys.argv before the script starts
    cwd: str
    file: str | None = None
    module: str | None = None
    command: str | None = None

    @property
    def first_path(self) -> str:
        """sys.path[0] as Python will compute it, options such as -P apart."""
        if self.file is None:
            return self.cwd
        if Path(self.file).is_dir() or _is_zip(self.file):
            return self.file
        return str(Path(self.file).resolve().parent)


def parse(words: Sequence[str], cwd: str) -> Program:
    """Parse the words after the interpreter and its options, for a run in `cwd`; NoSuchProgram if it reads stdin."""
    first = words[0] if words else "-"
    if (option := first[:2]) in ("-m", "-c"):
        value, rest = first[2:], words[1:]
        if not value:
            if not rest:
                raise NoSuchProgram(f"nothing follows {option}")
            value, rest = rest[0], rest[1:]
        if option == "-m":
            return Program((option, *rest), cwd, module=value)
        return Program((option, *rest), cwd, command=value + "\n")  # Python adds the newline too
    if first.startswith("-"):
        raise NoSuchProgram(f"its command line has {first!r} where a program is expected")
    return Program(tuple(words), cwd, file=first if first.startswith("/") else f"{cwd}/{first}")


def _is_zip(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


class ProgramSlot:
    """The fields of this interpreter's configuration that name the program.
    AttributeError or LookupError (with the reason) if this Python stores them differently."""

    def __init__(self, placeholder: str) -> None:
        api = ctypes.pythonapi
        get_config = api._Py_GetConfig
        get_config.restype = ctypes.c_void_p
        self._allocate = api.PyMem_RawMalloc
        self._allocate.restype = ctypes.c_void_p
        self._allocate.argtypes = (ctypes.c_size_t,)
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            self._find(memory.fileno(), get_config(), placeholder)

    def _find(self, memory: int, config: int, placeholder: str) -> None:
        wanted = _wide(placeholder)
        words = _words(memory, config, _CONFIG_BYTES)
        files = [at for at, word in enumerate(words) if _read(memory, word, len(wanted)) == wanted]
        lists = [
            at
            for at, word in enumerate(words[:-1])
            if word == 1
            and any(
                _read(memory, item, len(wanted)) == wanted for item in _words(memory, words[at + 1], _WORD)
            )
        ]
        # The fields for -c, -m and the file are adjacent, and only the file is set.
        if len(files) != 1 or len(lists) != 1 or words[files[0] - 2 : files[0]] != [0, 0]:
            raise LookupError("this Python does not store the name of its program in the expected place")
        self._file = config + files[0] * _WORD
        self._argv = config + lists[0] * _WORD

    def fill(self, program: Program, command: Sequence[str]) -> None:
        """Let Python run `program` after its start. `command` is the whole command line."""
        for at, text in ((-2, program.command), (-1, program.module), (0, program.file)):
            ctypes.c_void_p.from_address(self._file + at * _WORD).value = (
                None if text is None else self._copy(text)
            )
        items = self._allocate(_WORD * len(program.argv))
        (ctypes.c_void_p * len(program.argv)).from_address(items)[:] = [self._copy(a) for a in program.argv]
        ctypes.c_void_p.from_address(self._argv + _WORD).value = items
        ctypes.c_ssize_t.from_address(self._argv).value = len(program.argv)
        sys.argv[:] = program.argv
        sys.orig_argv[:] = command

    def _copy(self, text: str) -> int:
        """Copy the text to memory that Python can free. The former text is not freed."""
        data = _wide(text)
        address = int(self._allocate(len(data)))
        ctypes.memmove(address, data, len(data))
        return address


def _wide(text: str) -> bytes:
    return bytes(ctypes.create_unicode_buffer(text, len(text) + 1))


def _words(memory: int, address: int, size: int) -> list[int]:
    data = _read(memory, address, size)
    return [int.from_bytes(data[at : at + _WORD], sys.byteorder) for at in range(0, len(data), _WORD)]


def _read(memory: int, address: int, size: int) -> bytes:
    """Read up to `size` bytes, fewer at the end of a mapping; none if the number is not an address."""
    if not 4096 <= address < 1 << 56:
        return b""
    try:
        return os.pread(memory, size, address)
    except OSError:
        return b""
