"""What /proc shows of this process's command line and environment: exchanged for those of what it has become."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
# Fields of /proc/PID/stat, counted from 1 (man 5 proc).
_START_CODE, _END_CODE, _START_STACK, _START_DATA, _END_DATA, _START_BRK, _ARG_START = (
    26,
    27,
    28,
    45,
    46,
    47,
    48,
)
_NO_FILE = 0xFFFFFFFF
# The kernel reads what it shows from here.
_shown: list[ctypes.Array[ctypes.c_char]] = []


def show(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Make /proc/self/cmdline and /proc/self/environ these. Nobody may be using the originals any more: os.environ
    must have been written anew. A kernel that has no PR_SET_MM_MAP shows as much as the originals' place takes."""
    command = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    places = {number: int(fields[number - 3]) for number in range(_START_CODE, _ARG_START + 4)}
    if not _point_at(command, variables, places):
        _overwrite(command, variables, places)


def _point_at(command: bytes, variables: bytes, places: Mapping[int, int]) -> bool:
    library = ctypes.CDLL(None)
    library.sbrk.restype = ctypes.c_void_p
    block = ctypes.create_string_buffer(command + variables)
    start = ctypes.addressof(block)
    middle, end = start + len(command), start + len(command) + len(variables)
    # struct prctl_mm_map of linux/prctl.h; no auxiliary vector and no file: those stay.
    layout = struct.pack(
        "11QQII",
        *(places[number] for number in (_START_CODE, _END_CODE, _START_DATA, _END_DATA, _START_BRK)),
        library.sbrk(0),
        places[_START_STACK],
        start,
        middle,
        middle,
        end,
        0,
        0,
        _NO_FILE,
    )
    done = library.prctl(
        _PR_SET_MM,
        ctypes.c_ulong(_PR_SET_MM_MAP),
        layout,
        ctypes.c_ulong(len(layout)),
        ctypes.c_ulong(0),
    )
    if done != 0:
        return False
    _shown.append(block)
    return True


def _overwrite(command: bytes, variables: bytes, places: Mapping[int, int]) -> None:
    arg_start, arg_end, env_start, env_end = (places[_ARG_START + at] for at in range(4))
    for text, start, end in ((command, arg_start, arg_end), (variables, env_start, env_end)):
        room = end - start
        kept = text if len(text) <= room else text[: room - 1]
        ctypes.memmove(start, kept.ljust(room, b"\0"), room)
