"""Stacks of all threads: a crash prints them, and a signal writes them to a file of the run."""

from __future__ import annotations

import faulthandler
import os
import sys

from .exceptions import open_to_append

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal

    from .messages import ProgressPipe
else:
    import _signal  # signal itself imports enum

# SIGURG is ignored by default, so it is harmless to a program without a handler, such as one started by exec. SIGUSR1
# and SIGUSR2 would kill it, and scripts use them.
STACKS_SIGNAL = _signal.SIGURG
_PR_SET_PTRACER = 0x59616D61
# Lowest descriptor of the stacks file: above those of a script, which get the numbers they have without orch.
_FIRST_DESCRIPTOR = 200


def print_crashes() -> None:
    """Print the stacks to stderr on a fatal signal such as SIGSEGV, unless the user has enabled that already."""
    if not faulthandler.is_enabled() and sys.stderr is not None:
        faulthandler.enable()


def listen(path: str, pipe: ProgressPipe, run_directory: list[int] | None = None) -> None:
    """Append all stacks to `path` on STACKS_SIGNAL. The pipe reports that, and when the script takes the signal.
    C code writes them without Python's lock, so a hanging process answers too. Handlers of C code are not detected."""
    if _signal.getsignal(STACKS_SIGNAL) != _signal.SIG_DFL:
        return
    faulthandler.register(STACKS_SIGNAL, file=_open(path, run_directory), all_threads=True, chain=False)
    _detect_other_handlers(pipe)
    pipe.stacks(int(STACKS_SIGNAL))


def allow(tracer: int) -> None:
    """Allow the process `tracer` and its descendants to trace this one.
    With Yama (kernel.yama.ptrace_scope=1) only an ancestor may do that without permission, and py-spy is a sibling."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(tracer), 0, 0, 0)


def _open(path: str, run_directory: list[int] | None) -> int:
    import fcntl

    fd = open_to_append(path, run_directory)
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    except OSError:
        return os.dup(fd)  # the limit on open files is below _FIRST_DESCRIPTOR
    finally:
        os.close(fd)


def _detect_other_handlers(pipe: ProgressPipe) -> None:
    """Wrap the two functions of C modules by which Python code can set a handler."""
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
