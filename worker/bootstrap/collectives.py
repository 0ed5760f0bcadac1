"""A SIGTERM that finds the main thread inside a collective gets it out: the collective is aborted.

Its peers may be gone or stopped, so it would block for long, and Python's handler runs only once it is over.
"""

from __future__ import annotations

import _thread
import os

from . import stopping

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
else:
    import _signal  # signal itself imports enum

# An ordinary step is over before: what has been aborted cannot be used again by the script's last words.
PATIENCE_S = 1.0


def abort_at_stop(abort: Callable[[], None]) -> None:
    """Call `abort()`, from another thread, when a SIGTERM has not reached Python code in a second. In the main thread.

    Woken through signal.set_wakeup_fd: a script that uses it itself (asyncio's signal handlers do) has to do
    without, and so has one that makes its strategy in another thread. When the script handles SIGTERM itself,
    nothing is aborted.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        return
    awake, waker = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(waker, False)
    owned = _signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    if owned != -1:
        _signal.set_wakeup_fd(owned)
        os.close(awake)
        os.close(waker)
        return

    def watch() -> None:
        while numbers := os.read(awake, 256):
            if (
                _signal.SIGTERM in numbers
                and stopping.is_ours()
                and not stopping.was_heard_within(PATIENCE_S)
            ):
                abort()

    def forget() -> None:
        # A child's signals are not this process's.
        other = _signal.set_wakeup_fd(-1)
        if other not in (waker, -1):
            _signal.set_wakeup_fd(other)

    os.register_at_fork(after_in_child=forget)
    _thread.start_new_thread(watch, ())
