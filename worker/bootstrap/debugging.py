"""Debuggers in a task: debugpy, and advice for a `breakpoint()` that has no terminal."""

from __future__ import annotations

import _thread
import os
import sys
import time

from .messages import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .messages import ProgressPipe

_ADDRESS = "127.0.0.1"
# Seconds between two looks whether the debugger's client has come or gone.
_LOOK_S = 0.2
# debugpy warns that it cannot stop in Python's own frozen modules.
_NO_WARNING = "PYDEVD_DISABLE_FILE_VALIDATION"
_PDB_CHOICE = "PYTHONBREAKPOINT"
# The main thread imports this module.
_main_thread = _thread.get_ident()


def advise(task: str) -> None:
    """Let `breakpoint()` end the task with one line of advice, unless the task has input or another debugger."""
    if os.environ.get(_PDB_CHOICE) or _has_input():
        return  # a hook in between would be the frame that debuggers show
    original = sys.breakpointhook

    def breakpointhook(*arguments: Any, **named: Any) -> Any:
        frame = sys._getframe(1)
        if os.environ.get(_PDB_CHOICE):
            return original(*arguments, **named)
        if _has_input():
            import pdb

            pdb.Pdb().set_trace(frame)
            return None
        log(
            f"breakpoint() at {frame.f_code.co_filename}:{frame.f_lineno}: a task has no terminal to debug in;"
            f" --interactive {task} gives it yours, --debug {task} lets VS Code attach, --env PYTHONBREAKPOINT=0"
            " ignores breakpoints"
        )
        if _thread.get_ident() != _main_thread:
            return original(*arguments, **named)  # an exit of this thread would not end the task
        raise SystemExit(1)

    sys.breakpointhook = breakpointhook


def _has_input() -> bool:
    """Whether the script has replaced the task's standard input."""
    try:
        return sys.stdin is not None and os.fstat(sys.stdin.fileno()).st_rdev != os.stat(os.devnull).st_rdev  # noqa: PTH116
    except (OSError, ValueError, AttributeError):
        return True  # closed, or an object of the script


# -- debugpy


def listen(pipe: ProgressPipe, port: int, waits: bool) -> None:
    """Listen for a debugger's client at `port` or, if that is in use, at another one. With `waits`, return when the
    client is there. The pipe reports both, and when the client leaves."""
    import threading

    debugpy = _import_debugpy()
    try:
        found = debugpy.listen((_ADDRESS, port))[1]
    except RuntimeError:
        found = debugpy.listen((_ADDRESS, 0))[1]
    _report(pipe, "waiting" if waits else "listening", found)
    watcher = threading.Thread(target=_watch, args=(pipe, found, debugpy), daemon=True)
    # As debugpy marks its own threads: it neither lists nor stops them.
    watcher.pydev_do_not_trace = watcher.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    watcher.start()
    if waits:
        debugpy.wait_for_client()


def _import_debugpy() -> Any:
    """Import debugpy without its warning, and without the variables that it sets."""
    before = dict(os.environ)
    os.environ.setdefault(_NO_WARNING, "1")
    try:
        import debugpy

        # This imports all of it. Each child process would need another client.
        debugpy.configure(subProcess=False)
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
    return debugpy


def _watch(pipe: ProgressPipe, port: int, debugpy: Any) -> None:
    was_attached = False
    while True:
        time.sleep(_LOOK_S)
        is_attached = debugpy.is_client_connected()
        if is_attached != was_attached:
            _report(pipe, "attached" if is_attached else "listening", port)
            was_attached = is_attached


def _report(pipe: ProgressPipe, state: str, port: int) -> None:
    pipe.report(debugger={"state": state, "port": port}, at_once=True)
