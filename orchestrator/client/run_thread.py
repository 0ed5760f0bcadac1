"""Threads that show a run while it is live. Run.wait() and Run.down() return when all is shown."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path

from orchestrator.core.text.clean import safe
from orchestrator.store.runs.reader import RunView

_of_run: dict[Path, list[RunThread]] = {}


class RunThread:
    """A thread that calls `show` with itself. `last`: what finish() calls when the thread has ended.

    `is_ending` is set when `show` must return: the run has ended, or the interpreter exits (`is_abandoned`). `what` is
    shown and the `verb` that shows it are words for the warning about a failure.
    """

    def __init__(
        self,
        run: RunView,
        show: Callable[[RunThread], object],
        *,
        what: str,
        verb: str,
        last: Callable[[], object] = lambda: None,
    ) -> None:
        self.is_ending = threading.Event()
        self.is_abandoned = False
        self._run_id, self._what, self._verb = run.record.id, what, verb
        self._do, self._last = show, last
        self._owner_pid = os.getpid()
        self._error: Exception | None = None
        # A notebook finds the cell of an output by the context of the thread that writes it.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._show,), name=f"{what} of {self._run_id}", daemon=True
        )
        self._thread.start()
        atexit.register(self._abandon)
        _of_run.setdefault(run.paths.root, []).append(self)

    def finish(self) -> None:
        """Wait until the rest of the ended run is shown. Warn if not all of it was."""
        if os.getpid() != self._owner_pid:
            return  # a forked process does not have the thread
        self.is_ending.set()
        self._thread.join()
        atexit.unregister(self._abandon)
        if self._error is None:
            self._try(self._last)
        if self._error is not None:
            said = f"not all {self._what} of {self._run_id} were shown: {self._error}"
            warnings.warn(safe(f"{said}; `orch {self._verb}` shows them"), RuntimeWarning, stacklevel=4)

    def _abandon(self) -> None:
        """Let the thread end: after the exit of the interpreter, it would not find the stream."""
        self.is_abandoned = True
        if os.getpid() == self._owner_pid:
            self.is_ending.set()
            self._thread.join()

    def _show(self) -> None:
        self._try(lambda: self._do(self))

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:  # whatever the caller's stream raises
            self._error = error


def finish_showing(run_dir: Path) -> None:
    """End the threads that show this run, which has ended."""
    for thread in _of_run.pop(run_dir, []):
        thread.finish()
