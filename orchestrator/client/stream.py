"""`Cluster(stream=True)`: shows the lines of a live run in the standard output of the process that started it."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from orchestrator.client.api import Run
from orchestrator.client.follow import Follower
from orchestrator.client.run_thread import RunThread
from orchestrator.client.view.cell import CellView, TextOutput, shows_colour
from orchestrator.client.view.log_line import LineStyle
from orchestrator.store.runs.liveness import Liveness
from orchestrator.store.runs.reader import RunView

# Shortest pause between two steps, so that a flood leaves time for the caller's own threads.
_LEAST_PAUSE_S = 0.01


def show_lines(run: Run) -> None:
    """Begin to show the lines of the run. Run.wait() and Run.down() return when all of them are shown."""
    # Another view than that of `run`, since of two readers of a view only one gets each event.
    view, stream = RunView.open(run.view.paths, run.view.record.id), sys.stdout
    if view is not None and stream is not None:
        RunThread(view, lambda thread: _show(view, stream, thread), what="lines", verb="logs")


def _show(run: RunView, stream: TextIO, thread: RunThread) -> None:
    style = LineStyle(colour=shows_colour(stream, os.environ))
    view = CellView(TextOutput(stream, os.environ), style)
    follower = Follower(run, view, None)
    try:
        with run.keep_open():
            while run.liveness is not Liveness.DEAD and not thread.is_ending.is_set():
                thread.is_ending.wait(max(_LEAST_PAUSE_S, follower.step()))
            follower.refresh()
            while not thread.is_abandoned and follower.show_rest():
                pass
            view.finish()
    finally:
        follower.close()
