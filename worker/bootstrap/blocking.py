"""Calls of TensorFlow's that block, made so that signals reach the script while they do.

Python runs signal handlers in the main thread only, between two instructions. Inside a call that waits in C++
there are none, so the call is made in a thread of its own while the caller waits for it in Python. And
TensorFlow sets a C handler for SIGTERM in the middle of such a call: it is taken away again.
"""

from __future__ import annotations

import _thread
import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")
else:
    import _signal  # signal itself imports enum

# How long TensorFlow's own handler may stay in place while a call blocks, seconds: it comes once, 10 to 40 ms after
# the call's start, so the looks are close together until it has come, or for so many of them.
_LOOK_CLOSELY_S = 0.001
_CLOSE_LOOKS = 1000
_LOOK_S = 0.02
_SIGACTION_BYTES = 256  # more than sizeof(struct sigaction) on any machine
# What it begins with. The rest cannot be compared: of the mask, the C library leaves most as it finds it.
_HANDLER_BYTES = ctypes.sizeof(ctypes.c_void_p)
_libc = ctypes.CDLL(None, use_errno=True)


class KeptHandler:
    """SIGTERM's handler as it is now in the kernel, to be put back when a library has replaced it."""

    def __init__(self) -> None:
        self._action = self._current()

    def put_back(self) -> bool:
        """From whatever thread; whether it had been replaced."""
        if self._current()[:_HANDLER_BYTES] == self._action[:_HANDLER_BYTES]:
            return False
        _libc.sigaction(int(_signal.SIGTERM), ctypes.create_string_buffer(self._action), None)
        return True

    @staticmethod
    def _current() -> bytes:
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        _libc.sigaction(int(_signal.SIGTERM), None, action)
        return action.raw


def interruptibly(call: Callable[[], T], put_back: Callable[[], None] = lambda: None) -> T:
    """What `call()` returns or raises; signals are served meanwhile, and what their handlers raise ends the wait.
    `put_back()` is called when SIGTERM's handler had been replaced and is back: one in between is lost.

    `call` must not hold Python's global interpreter lock while it blocks. When the wait ends early, its thread stays
    behind in it and does not keep the process from ending.
    """
    handler = KeptHandler()
    done = _thread.allocate_lock()
    done.acquire()
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    try:
        _thread.start_new_thread(body, ())
    except RuntimeError:  # no more threads, or the interpreter ends: as without us
        try:
            return call()
        finally:
            handler.put_back()
    close_looks = _CLOSE_LOOKS
    while not done.acquire(timeout=_LOOK_CLOSELY_S if close_looks else _LOOK_S):
        close_looks = max(0, close_looks - 1)
        if handler.put_back():
            close_looks = 0
            put_back()
    if handler.put_back():
        put_back()
    if errors:
        raise errors.pop()
    return results.pop()


def keep_for_ever(thing: object) -> None:
    """Not even the interpreter's end frees it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def keeping_the_handler(call: Callable[[object, bytes], None]) -> Callable[[object, bytes], None]:
    """The same call, after which SIGTERM means what it meant before; during it no signal is served."""

    def kept(first: object, second: bytes) -> None:
        handler = KeptHandler()
        try:
            call(first, second)
        finally:
            handler.put_back()

    return kept


class CFunctions:
    """The C functions behind Python bindings that keep the global interpreter lock while they block.

    `library` is the path of one that is loaded already. OSError or AttributeError if they are not there.
    """

    def __init__(self, library: str) -> None:
        loaded = ctypes.CDLL(library)
        self._enable_collective_ops = loaded.TFE_EnableCollectiveOps
        self._enable_collective_ops.argtypes = (
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )
        self._enable_collective_ops.restype = None
        self._new_status = loaded.TF_NewStatus
        self._new_status.restype = ctypes.c_void_p
        self._code = loaded.TF_GetCode
        self._code.argtypes = (ctypes.c_void_p,)
        self._message = loaded.TF_Message
        self._message.argtypes, self._message.restype = (ctypes.c_void_p,), ctypes.c_char_p
        self._delete_status = loaded.TF_DeleteStatus
        self._delete_status.argtypes, self._delete_status.restype = (ctypes.c_void_p,), None
        self._pointer = ctypes.pythonapi.PyCapsule_GetPointer
        self._pointer.argtypes, self._pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p

    def address(self, context: object) -> int:
        """Where the context lies that this capsule holds; ValueError if it holds none."""
        return int(self._pointer(context, None))

    def enable_collective_ops(self, context: int, server_def: bytes) -> tuple[int, str]:
        """Wait for the cluster without the lock; TensorFlow's error code and message, (0, "") when it is there.
        `context` is its address, and must live as long."""
        status = self._new_status()
        try:
            self._enable_collective_ops(context, server_def, len(server_def), status)
            return self._code(status), self._message(status).decode(errors="replace")
        finally:
            self._delete_status(status)
