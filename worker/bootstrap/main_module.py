"""Chooses the program that this interpreter, still in its start-up, is going to run as __main__.

Python keeps the program named on its command line in its configuration (PyConfig, CPython's Include/cpython/
initconfig.h) and looks there once the start-up is over. A forked task is still in it: exchanged there, the program
is run by Python itself, and everything about it (`__main__`, sys.path[0], tracebacks, exit codes, packages, zip
files, encodings) is as if this interpreter had been called with it. The fields are found by what they hold,
not by an offset: the preloader is started with a file name that no other string of the process has.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_WORD = ctypes.sizeof(ctypes.c_void_p)
_WIDE = ctypes.sizeof(ctypes.c_wchar)
# PyConfig takes some 450 bytes in 3.11 to 3.13.
_CONFIG_BYTES = 1024


class NoSuchProgram(Exception):
    """These words are not of a form that can be run from here; the text says why."""


@dataclass(frozen=True)
class Program:
    """What follows the interpreter's options: exactly one of a file (or directory, or zip file), module or command."""

    argv: tuple[str, ...]  # sys.argv as it is at first
    cwd: str
    file: str | None = None
    module: str | None = None
    command: str | None = None

    @property
    def first_path(self) -> str:
        """sys.path[0] as Python will compute it (-P and the like apart)."""
        if self.file is None:
            return self.cwd
        if Path(self.file).is_dir() or _is_zip(self.file):
            return self.file
        return str(Path(self.file).resolve().parent)


def parse(words: Sequence[str], cwd: str) -> Program:
    """The words after the interpreter and its options, run in `cwd`; NoSuchProgram if it would read stdin."""
    first = words[0] if words else "-"
    if first[:2] in ("-m", "-c"):
        kind, value, rest = _with_value(words)
        if kind == "-m":
            return Program((kind, *rest), cwd, module=value)
        return Program((kind, *rest), cwd, command=value + "\n")  # the newline is Python's own doing
    if first.startswith("-"):
        raise NoSuchProgram(f"its command line has {first!r} where a program is expected")
    return Program(tuple(words), cwd, file=first if first.startswith("/") else f"{cwd}/{first}")


def _with_value(words: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    first = words[0]
    if first[2:]:
        return first[:2], first[2:], words[1:]
    if len(words) < 2:
        raise NoSuchProgram(f"nothing follows {first}")
    return first, words[1], words[2:]


def _is_zip(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


class ProgramSlot:
    """The fields of this interpreter's configuration that say what to run; AttributeError or LookupError (with the
    reason) when this Python keeps them otherwise."""

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
        # -c, -m and the file stand side by side, and only the file was given.
        if len(files) != 1 or len(lists) != 1 or words[files[0] - 2 : files[0]] != [0, 0]:
            raise LookupError("this Python does not keep the name of its program where it is looked for")
        self._file = config + files[0] * _WORD
        self._argv = config + lists[0] * _WORD

    def fill(self, program: Program, command: Sequence[str]) -> None:
        """Run `program` when the start-up is over; `command` is the whole command line."""
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
        """The text where Python can free it; what stood there before is left to the process's end."""
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
    """What stands there, up to the end of what can be read; nothing for a number that is no address."""
    if not 4096 <= address < 1 << 56:
        return b""
    try:
        return os.pread(memory, size, address)
    except OSError:
        return b""
