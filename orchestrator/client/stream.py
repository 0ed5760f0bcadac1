"""`Cluster(stream=True)`: shows the lines of a live run in the standard output of the process that started it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from contextvars import copy_context
from typing import TextIO

from orchestrator.client.api import Run
from orchestrator.client.follow import Follower
from orchestrator.client.view.cell import CellView, TextOutput, shows_colour
from orchestrator.client.view.log_line import LineStyle
from orchestrator.core.text.clean import safe
from orchestrator.store.runs.liveness import Liveness
from orchestrator.store.runs.reader import RunView

# Shortest pause between two steps, so that a flood leaves time for the caller's own threads.
_LEAST_PAUSE_S = 0.01


def show_lines(run: Run) -> None:
    """Begin to show the lines of the run. Run.wait() and Run.down() return when all of them are shown."""
    view = RunView.open(run.view.paths, run.view.record.id)
    if view is not None and sys.stdout is not None:
        run.until_shown(_LineStream(view, sys.stdout).finish)


class _LineStream:
    """A thread that shows the lines of one run. It ends with the run, at finish(), or before the interpreter exits.

    It has its own view: of two that call RunView.refresh(), only one gets each event.
    """

    def __init__(self, run: RunView, stream: TextIO) -> None:
        self._run = run
        self._stream = stream
        self._owner_pid = os.getpid()
        self._is_ending = threading.Event()
        self._is_abandoned = False
        self._error: Exception | None = None
        # A notebook finds the cell of a line by the context of the thread that writes it.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._show,), name=f"lines of {run.record.id}", daemon=True
        )
        self._thread.start()
        atexit.register(self._abandon)

    def finish(self) -> None:
        """Show the remaining lines of the ended run. Warn if the stream did not take all lines."""
        if os.getpid() != self._owner_pid:
            return  # a forked process does not have the thread
        self._is_ending.set()
        self._thread.join()
        atexit.unregister(self._abandon)
        if self._error is not None:
            text = safe(
                f"not all lines of {self._run.record.id} were shown: {self._error}; `orch logs` shows them"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _abandon(self) -> None:
        """Let the thread end: after the exit of the interpreter, it would not find the stream."""
        self._is_abandoned = True
        if os.getpid() == self._owner_pid:
            self._is_ending.set()
            self._thread.join()

    def _show(self) -> None:
        style = LineStyle(colour=shows_colour(self._stream, os.environ))
        view = CellView(TextOutput(self._stream, os.environ), style)
        follower = Follower(self._run, view, None)
        try:
            with self._run.keep_open():
                while self._run.liveness is not Liveness.DEAD and not self._is_ending.is_set():
                    self._is_ending.wait(max(_LEAST_PAUSE_S, follower.step()))
                follower.refresh()
                while not self._is_abandoned and follower.show_rest():
                    pass
                view.finish()
        except Exception as error:  # whatever the caller's stream raises
            self._error = error
        finally:
            follower.close()
