"""--pdb: opens pdb in the user's terminal when an exception ends the task, before the process exits."""

from __future__ import annotations

import atexit
import os
import sys
import time

from . import exceptions, terminal
from .messages import DESCRIPTORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .messages import ProgressPipe

# Seconds between attempts to get the terminal while another task has it.
_RETRY_S = 0.05
_FAILED = "post_mortem"


class PostMortem:
    """The first task of a run that fails gets the terminal. The others wait until they are stopped."""

    def __init__(self, pipe: ProgressPipe) -> None:
        import json

        self._held = int(json.loads(os.environ.get(DESCRIPTORS, "{}"))[terminal.POST_MORTEM])
        os.set_inheritable(self._held, False)
        self._pipe = pipe
        self._owner = os.getpid()
        self._is_done = False

    def install(self) -> None:
        """Open pdb after the exception was stored and printed; at the exit, if the script has replaced the hook."""
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            previous(kind, value, trace)
            self._open(value)

        def at_exit() -> None:
            value = exceptions.exception_of_process()
            if value is not None:
                self._open(value)

        sys.excepthook = excepthook
        # Registered first, so that it is called when the script's functions are done.
        atexit.register(at_exit)

    def _open(self, value: BaseException) -> None:
        # Only the leader of a session can get a terminal. A child of the task is none.
        if self._is_done or os.getpid() != self._owner or os.getsid(0) != self._owner:
            return
        if not isinstance(value, Exception):
            return
        self._is_done = True
        opened = self._wait_for_terminal()
        if opened is None:
            return
        self._pipe.report(debugger={"state": _FAILED}, at_once=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        kept = [os.dup(number) for number in (0, 1, 2)]
        streams = sys.stdin, sys.stdout, sys.stderr
        terminal.connect(opened)
        os.close(opened)
        try:
            # The script's own may be buffered, or not be terminals.
            sys.stdin = open(0, closefd=False)
            sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
            _debug(value)
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
            for number, copy in enumerate(kept):
                os.dup2(copy, number)
                os.close(copy)

    def _wait_for_terminal(self) -> int | None:
        """Return the terminal; None if the user has closed it."""
        while True:
            try:
                opened = terminal.open_again(self._held)
            except OSError:
                return None
            if terminal.take_control(opened):
                return opened
            os.close(opened)
            time.sleep(_RETRY_S)


def _debug(value: BaseException) -> None:
    pdb = exceptions.library_module("pdb")
    traceback = exceptions.library_module("traceback")
    print("".join(traceback.format_exception_only(value)), end="")
    # From Python 3.13 on, it also knows the exceptions that led to this one.
    pdb.post_mortem(value if sys.version_info >= (3, 13) else value.__traceback__)
