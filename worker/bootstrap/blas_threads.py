"""Keeps numpy's OpenBLAS to one thread while it is preloaded, and gives it its threads in the task."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "OPENBLAS_NUM_THREADS"
# In the order in which OpenBLAS asks them.
_VARIABLES = (_VARIABLE, "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "_64", "")
)


@contextmanager
def one() -> Iterator[None]:
    """An OpenBLAS loaded within starts no threads: a process that has some cannot be forked safely."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE)
        else:
            os.environ[_VARIABLE] = before


def restore() -> None:
    """As many threads as it would have started by itself, in this process and its environment."""
    wanted = _wanted()
    if wanted == 1:
        return
    for path in _loaded():
        library = ctypes.CDLL(path)
        setter = next((getattr(library, name) for name in _SETTERS if hasattr(library, name)), None)
        if setter is not None:
            setter(ctypes.c_int(wanted))


def _wanted() -> int:
    cores = len(os.sched_getaffinity(0))
    for name in _VARIABLES:
        text = os.environ.get(name, "").strip()
        if text.isdecimal() and int(text) > 0:
            return min(int(text), cores)
    return cores


def _loaded() -> list[str]:
    maps = Path("/proc/self/maps").read_bytes()
    return sorted({os.fsdecode(path) for path in re.findall(rb"(/[^\n]*openblas[^\n/]*\.so[^\n/]*)\n", maps)})
