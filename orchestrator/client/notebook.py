"""A run in a notebook: a picture, which is updated while the run is live. IPython is used only where it runs."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

from orchestrator.client.page.document import RunPage
from orchestrator.client.page.figures import run_html
from orchestrator.client.run_thread import RunThread
from orchestrator.core.errors import NoSuchRun
from orchestrator.core.text.clean import safe
from orchestrator.store.runs.liveness import Liveness
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView

# Shortest time between two pictures. Drawing them may use 1/50 of a core.
_INTERVAL_S = 1.0
_COST_SHARE = 50
# Interval of checks whether the run has ended.
_LOOK_S = 0.25
# By process, too: a forked one does not have the thread.
_pictures: dict[tuple[int, Path], _LivePicture] = {}


def picture(run_dir: Path, run_id: str) -> str:
    """Return a run as HTML."""
    return _draw(_open(run_dir, run_id))


def show_live(run_dir: Path, run_id: str) -> bool:
    """Show a live run in the notebook and update it until its end. False if it has ended or no notebook runs."""
    display = _display_of_notebook()
    if display is None:
        return False
    shown = _pictures.get((os.getpid(), run_dir))
    if shown is None:
        page = _open(run_dir, run_id)
        if not page.view.is_live:
            return False
        shown = _pictures.setdefault((os.getpid(), run_dir), _LivePicture(page, display))
    shown.show()
    return True


class _LivePicture:
    """All pictures of a run have the same display id, so one thread updates them."""

    def __init__(self, page: RunPage, display: Any) -> None:
        self._page = page
        self._display = display
        self._display_id = f"orch-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._thread: RunThread | None = None

    def show(self) -> None:
        """Show another picture. The first one starts the thread."""
        with self._lock:
            self._publish(update=False)
            if self._thread is None:
                run = self._page.view
                self._thread = RunThread(
                    run, self._update_until_end, what="curves", verb="report", last=self._update
                )

    def _update_until_end(self, thread: RunThread) -> None:
        view, due = self._page.view, time.monotonic() + _INTERVAL_S
        try:
            with view.keep_open():
                while view.liveness is not Liveness.DEAD and not thread.is_ending.wait(_LOOK_S):
                    if time.monotonic() < due:
                        continue
                    began = time.thread_time()
                    self._update()
                    cost_s = time.thread_time() - began
                    due = time.monotonic() + max(_INTERVAL_S, cost_s * _COST_SHARE)
            if not thread.is_ending.is_set():
                self._update()
        finally:
            _pictures.pop((os.getpid(), view.paths.root), None)

    def _update(self) -> None:
        with self._lock:
            self._publish(update=True)

    def _publish(self, *, update: bool) -> None:
        html = _draw(self._page)
        text = safe(f"<Run {self._page.view.record.id}: {self._page.view.state.phase}>")
        bundle = {"text/html": html, "text/plain": text}
        self._display(bundle, raw=True, display_id=self._display_id, update=update)


def _open(run_dir: Path, run_id: str) -> RunPage:
    # RunPage needs all events, so it gets a new view.
    view = RunView.open(RunPaths(run_dir), run_id)
    if view is None:
        raise NoSuchRun(f"{run_id}: its directory {run_dir} was removed")
    return RunPage(view)


def _draw(page: RunPage) -> str:
    page.refresh()
    return run_html(page.document())


def _display_of_notebook() -> Any:
    """Return IPython's display() in the kernel of a notebook, else None: a terminal cannot update what it shows."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    return display
