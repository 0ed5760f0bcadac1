"""Makes SIGTERM and SIGINT end this process at once, also while TensorFlow blocks.

TensorFlow replaces SIGTERM's handler when the strategy is built and then waits for its peers with Python's
global interpreter lock held: no Python code, in whatever thread, can answer a signal there. So the C library
does: both signals are blocked in every thread and read from a signalfd by glibc's asynchronous I/O, whose
completion calls _exit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from typing import Any

FATAL = (signal.SIGTERM, signal.SIGINT)
SIGSET_BYTES = 128  # sizeof(sigset_t)
SIGINFO_BYTES = 128  # sizeof(struct signalfd_siginfo)
SFD_CLOEXEC = os.O_CLOEXEC
SIGEV_THREAD = 2


class _SigEvent(ctypes.Structure):
    """struct sigevent of glibc on 64-bit Linux: 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_char * 32),
    )


class _AioControlBlock(ctypes.Structure):
    """struct aiocb of glibc on 64-bit Linux; `private` is more than the rest of it takes."""

    _fields_ = (
        ("descriptor", ctypes.c_int),
        ("opcode", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("event", _SigEvent),
        ("private", ctypes.c_char * 128),
    )


# The C library writes into these until the process ends.
_armed: list[tuple[_AioControlBlock, ctypes.Array[ctypes.c_char]]] = []
_by_number: dict[int, _AioControlBlock] = {}


def end_on_signals() -> None:
    """From now on SIGTERM ends the process with code 143 and SIGINT with 130; OSError if that cannot be.

    Call it in the main thread before any other thread is started: threads inherit the blocked signals. So do
    child processes, which a fork leaves without anything that reads them. What is written must be safe
    against being cut off anywhere: files are written beside and renamed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, FATAL)
    for number in FATAL:
        _arm(number)


def hand_over_signal(number: signal.Signals) -> None:
    """From now on the next such signal calls the handler that Python has for it, instead of ending the process.

    The C library's own thread raises it in itself, where nothing is blocked. Python calls its handler in the main
    thread as soon as that runs Python code; it interrupts no call that blocks. Every later one is lost, until
    `end_on_signal_again`.
    """
    library = ctypes.CDLL(None)
    # glibc looks at these as the read completes.
    _complete_by(_by_number[number], library["raise"], number)


def end_on_signal_again(number: signal.Signals) -> None:
    """Take back `hand_over_signal`: the next such signal ends the process, also if one has been handed over."""
    library = ctypes.CDLL(None)
    block = _by_number[number]
    if _asynchronous_io(library).aio_error(ctypes.byref(block)) == errno.EINPROGRESS:
        _complete_by(block, library._exit, 128 + number)
    else:
        _arm(number)


def _complete_by(block: _AioControlBlock, function: Any, argument: int) -> None:
    block.event.value = argument
    block.event.function = ctypes.cast(function, ctypes.c_void_p).value


def _arm(number: signal.Signals) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    mask = (ctypes.c_uint64 * (SIGSET_BYTES // 8))()
    mask[0] = 1 << (number - 1)
    descriptor = library.signalfd(-1, mask, SFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "signalfd failed")
    buffer = ctypes.create_string_buffer(SIGINFO_BYTES)
    block = _AioControlBlock(descriptor=descriptor, buffer=ctypes.addressof(buffer), size=SIGINFO_BYTES)
    block.event.notify = SIGEV_THREAD
    _complete_by(block, library._exit, 128 + number)
    if _asynchronous_io(library).aio_read(ctypes.byref(block)) != 0:
        raise OSError(ctypes.get_errno(), "aio_read failed")
    _armed.append((block, buffer))
    _by_number[number] = block


def _asynchronous_io(library: ctypes.CDLL) -> ctypes.CDLL:
    """Where aio_read is: in the C library since glibc 2.34, in librt before."""
    return library if hasattr(library, "aio_read") else ctypes.CDLL("librt.so.1", use_errno=True)
