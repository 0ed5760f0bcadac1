"""SIGTERM becomes SystemExit(143) in the main thread: the script's `finally` blocks and atexit functions run."""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from types import FrameType
else:
    import _signal  # signal itself imports enum

EXIT_CODE = 128 + _signal.SIGTERM
# Between tries to raise where it can be raised.
_RETRY_S = 0.001
# Called by C++ code that turns what is raised in it into another exception: TensorFlow's errors as they are made.
_ERRORS_MODULE = "tensorflow/python/framework/errors_impl.py"
_SUBPROCESS_MODULE = "/subprocess.py"

TENSORFLOW_RUNTIME = "tensorflow.python.eager.context"
_kept: list[object] = []
# What a thread that forks had blocked before.
_masks: dict[int, set[int]] = {}

# Locked until the main thread has been told to stop.
_heard = _thread.allocate_lock()
_heard.acquire()
# This module is imported in it.
_main_thread = _thread.get_ident()
_is_put_off = False
_is_leaving = False


class Stop(SystemExit):
    """What SIGTERM raises. It notices when it ends the process, and not some `except` of the script."""

    def __del__(self) -> None:
        global _is_leaving
        # Python drops it right before it exits, when no code runs any more.
        if sys._getframe().f_back is None:
            _is_leaving = True
            if TENSORFLOW_RUNTIME in sys.modules:
                # Freeing the iterators of an interrupted `fit` can take seconds.
                _kept.append(self.__traceback__)


Stop.__name__ = Stop.__qualname__ = "SystemExit"
Stop.__module__ = "builtins"


def install() -> None:
    """Set the handler, unless SIGTERM came in ignored. One the script sets later replaces it, as it always does."""
    if _signal.getsignal(_signal.SIGTERM) != _signal.SIG_DFL:
        return
    _signal.signal(_signal.SIGTERM, _stop)
    sys.unraisablehook = _not_ignored(sys.unraisablehook)
    os.register_at_fork(before=_put_off, after_in_parent=_put_off_no_more, after_in_child=_be_as_python_is)


def is_ours() -> bool:
    """Whether SIGTERM still means what this module says, and not what the script has set."""
    return _signal.getsignal(_signal.SIGTERM) is _stop


def was_heard_within(seconds: float) -> bool:
    """Whether the main thread has run the handler of a SIGTERM, or does in this time; for another thread to ask."""
    heard = _heard.acquire(timeout=seconds)
    if heard:
        _heard.release()
    return heard


def is_put_off() -> bool:
    """Whether a SIGTERM has arrived that could not be raised yet."""
    return _is_put_off


def is_leaving() -> bool:
    """Whether the process is about to end with EXIT_CODE, nothing of the script having stopped that."""
    return _is_leaving


def raise_again() -> None:
    """Raise it now, in this thread, if the main thread has heard it: for what may not be begun any more."""
    if not _heard.locked():
        # The end of another thread is not the process's.
        raise (Stop if _thread.get_ident() == _main_thread else SystemExit)(EXIT_CODE)


def raise_stop() -> None:
    """Raise it now, in the main thread."""
    global _is_put_off
    _is_put_off = False
    if _heard.locked():
        _heard.release()
    raise Stop(EXIT_CODE)


def _stop(number: int, frame: FrameType | None) -> None:
    # Asked again, the script still gets to finish what it does at its end.
    if not _heard.locked():
        return
    if _comes_before_the_script(frame):
        os._exit(EXIT_CODE)
    if _would_be_lost(frame):
        if not _is_put_off:
            _raise_later()
        return
    raise_stop()


def _raise_later() -> None:
    global _is_put_off
    _is_put_off = True
    try:
        _thread.start_new_thread(_try_again, (_thread.get_ident(),))
    except RuntimeError:
        # Python 3.12 starts no thread when it ends, as it does: what the script does last goes on, until asked again.
        _is_put_off = False


def _not_ignored(
    hook: Callable[[sys.UnraisableHookArgs], object],
) -> Callable[[sys.UnraisableHookArgs], object]:
    """The same hook, but that a stop which Python had to ignore (in the callback of a weak reference, as imports
    make them, or in a generator that is freed) is raised again. The last words of the process are left to end."""

    def told(ignored: sys.UnraisableHookArgs) -> object:
        at_the_end = any(word in (ignored.err_msg or "") for word in ("atexit", "shutdown"))
        if not isinstance(ignored.exc_value, Stop) or at_the_end:
            return hook(ignored)
        _heard.acquire(blocking=False)
        _raise_later()
        return None

    return told


def _comes_before_the_script(frame: FrameType | None) -> bool:
    """Whether Python itself still imports `site`: what is raised there is a fatal error to it, and exit code 1."""
    in_site = False
    while frame is not None:
        in_site = in_site or frame.f_globals.get("__name__") == "site"
        if frame.f_back is None:
            return in_site and frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        frame = frame.f_back
    return False


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an exception raised here would reach no script (Python ignores those of `__del__`), or would leave a
    child that was just started to nobody."""
    while frame is not None:
        code = frame.f_code
        if (
            code.co_name == "__del__"
            or (code.co_name == "__init__" and code.co_filename.endswith(_ERRORS_MODULE))
            or (code.co_name == "_execute_child" and code.co_filename.endswith(_SUBPROCESS_MODULE))
        ):
            return True
        frame = frame.f_back
    return False


def _try_again(main_thread: int) -> None:
    """Until it has been raised: a signal that comes right before a call that blocks does not interrupt it."""
    global _is_put_off
    while True:
        time.sleep(_RETRY_S)
        is_the_scripts = not is_ours()
        if not _is_put_off:
            return
        _signal.pthread_kill(main_thread, _signal.SIGTERM)
        if is_the_scripts:
            _is_put_off = False
            return


def _put_off() -> None:
    """Before a fork: a SIGTERM for the child must not find it with the handler of its parent."""
    _masks[_thread.get_ident()] = _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))


def _put_off_no_more() -> None:
    mask = _masks.pop(_thread.get_ident(), None)
    if mask is not None and _signal.SIGTERM not in mask:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGTERM,))


def _be_as_python_is() -> None:
    """A child forked by the script (multiprocessing does) dies of SIGTERM, as `Process.terminate` counts on."""
    if is_ours():
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
    _put_off_no_more()
