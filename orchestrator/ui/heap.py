"""Settings of glibc that keep the server small, although it reads runs in several threads."""

from __future__ import annotations

import ctypes

# mallopt(3): the number of heaps.
_M_ARENA_MAX = -8
_LIBC = ctypes.CDLL(None)


def use_one_heap() -> None:
    """Let all threads share a heap. Separate heaps would each keep what the largest read of a thread has needed."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Return what is free to the system. It takes milliseconds."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
