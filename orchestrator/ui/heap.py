"""Settings of glibc that keep the server small, although it reads runs in several threads."""

from __future__ import annotations

import ctypes

# mallopt(3): the number of heaps, and the bytes from which memory is returned as soon as it is free.
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
_LARGE_BYTES = 128 << 10
_LIBC = ctypes.CDLL(None)


def use_one_heap() -> None:
    """Let all threads share a heap, and keep documents of a MB out of it. Separate heaps would each keep what the
    largest read of a thread has needed; glibc would put the documents into the heap after the first one."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_ARENA_MAX, 1)
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def return_free_memory() -> None:
    """Return what is free to the system. It takes milliseconds."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
