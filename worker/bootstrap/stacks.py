"""Crashes print Python's stacks, and a signal writes the stacks of all threads to a file of the run."""

from __future__ import annotations

import faulthandler
import os
import sys

from .exceptions import make_private_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal

    from .telling import ProgressPipe
else:
    import _signal  # signal itself imports enum

# Its default is to be ignored, so that it harms nobody who does not listen: a program that this process becomes by
# exec, say. Scripts take SIGUSR1 and SIGUSR2 for themselves, and those kill who has no handler.
STACKS_SIGNAL = _signal.SIGURG
_PR_SET_PTRACER = 0x59616D61
# Above what a script opens: its own descriptors get the numbers they would have had.
_FIRST_DESCRIPTOR = 200


def print_crashes() -> None:
    """On a fatal signal such as SIGSEGV the stacks go to stderr, unless the user has arranged for it already."""
    if not faulthandler.is_enabled() and sys.stderr is not None:
        faulthandler.enable()


def listen(path: str, pipe: ProgressPipe) -> None:
    """From now on STACKS_SIGNAL appends all stacks to `path`; the pipe is told, also when the script takes the signal.

    It is written by C code that needs no lock of Python's: a process that hangs in one answers too. A handler that
    is set by C code other than faulthandler's goes unnoticed.
    """
    if _signal.getsignal(STACKS_SIGNAL) != _signal.SIG_DFL:
        return
    faulthandler.register(STACKS_SIGNAL, file=_open(path), all_threads=True, chain=False)
    _notice_claims(pipe)
    pipe.stacks(int(STACKS_SIGNAL))


def allow(tracer: int) -> None:
    """Let that process and its descendants look into this one (Yama, kernel.yama.ptrace_scope=1, asks for it).

    py-spy is the agent's child as this process is, and no ancestor of it. A kernel without Yama needs no leave."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(tracer), 0, 0, 0)


def _open(path: str) -> int:
    import fcntl

    make_private_directory(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    except OSError:
        return os.dup(fd)  # the limit on open files is lower than that
    finally:
        os.close(fd)


def _notice_claims(pipe: ProgressPipe) -> None:
    """Both ways to set a handler from Python lead through these names of C modules."""
    set_handler, register = _signal.signal, faulthandler.register

    def signal(signalnum, handler, /):  # type: ignore[no-untyped-def]
        previous = set_handler(signalnum, handler)
        if signalnum == STACKS_SIGNAL:
            pipe.stacks(None)
        return previous

    def claimed_register(signum, *args, **kwargs):  # type: ignore[no-untyped-def]
        if signum == STACKS_SIGNAL:
            pipe.stacks(None)
        return register(signum, *args, **kwargs)

    for replacement, original in ((signal, set_handler), (claimed_register, register)):
        replacement.__name__ = original.__name__
        replacement.__qualname__ = original.__qualname__
        replacement.__doc__ = original.__doc__
    _signal.signal = signal
    faulthandler.register = claimed_register
