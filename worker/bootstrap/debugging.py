"""Debuggers in a task. A task reads from /dev/null, so a bare `breakpoint()` ends it with advice."""

from __future__ import annotations

import _thread
import os
import sys

from .messages import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PDB_CHOICE = "PYTHONBREAKPOINT"
# The main thread imports this module.
_main_thread = _thread.get_ident()


def advise() -> None:
    """Let `breakpoint()` end the task with one line of advice, unless the task has input or another debugger."""
    original = sys.breakpointhook

    def breakpointhook(*arguments: Any, **named: Any) -> Any:
        if os.environ.get(_PDB_CHOICE) or _has_input():
            return original(*arguments, **named)
        frame = sys._getframe(1)
        log(
            f"breakpoint() at {frame.f_code.co_filename}:{frame.f_lineno}: a task has no terminal to debug in;"
            " --env PYTHONBREAKPOINT=0 ignores breakpoints"
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
