"""All runs of this user as rows, read again when a browser asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from orchestrator.client.run_rows import run_row
from orchestrator.core.errors import NoSuchRun
from orchestrator.core.text.clean import one_line, safe
from orchestrator.store.runs.catalog import NewerRun, survey
from orchestrator.store.runs.paths import open_runs
from orchestrator.store.runs.reader import RunView

# Runs in the list, the newest first. `orch ls --all` has all.
MOST_RUNS = 1000
# Browsers that ask within this time get the same rows.
_FRESH_S = 0.5
_LONGEST_COMMAND = 1000

Row = dict[str, Any]


class RunList:
    """The rows of the runs. Its methods may be called from several threads.

    `shown` returns the reader of a run that browsers show. Others do not read its events a second time."""

    def __init__(self, shown: Callable[[str], RunView | None] = lambda run_id: None) -> None:
        self.shown = shown
        self._lock = threading.Lock()
        self._views: dict[str, RunView] = {}
        # The rows of runs that have ended do not change.
        self._ended: dict[str, Row] = {}
        self._rows: list[Row] = []
        self._skipped: tuple[str, ...] = ()
        self._made_mono = float("-inf")

    def document(self) -> dict[str, Any]:
        """Return the rows, the newest run first, and why other entries of the state directory are not among them."""
        with self._lock:
            if time.monotonic() - self._made_mono > _FRESH_S:
                self._refresh()
                self._made_mono = time.monotonic()
            return {
                "schema_version": 1,
                "runs": self._rows,
                "skipped": [safe(text) for text in self._skipped],
            }

    def view(self, run_id: str) -> RunView:
        """Return a new reader of a run. An id is never a path: only those of the state directory count.

        NoSuchRun, NewerFormat.
        """
        there = survey()
        for view in there.runs:
            if view.record.id == run_id:
                return view
        for newer in there.newer:
            if newer.record.id == run_id:
                raise newer.error
        raise NoSuchRun(f"there is no run {run_id}; it may have been removed")

    def _refresh(self) -> None:
        names = _names()
        for known in (self._views, self._ended):
            for run_id in known.keys() - names:
                del known[run_id]
        there = survey(skip=frozenset((*self._views, *self._ended)))
        self._skipped = there.skipped
        self._views |= {view.record.id: view for view in there.runs}
        rows = [_newer_row(newer) for newer in there.newer]
        for run_id, view in list(self._views.items()):
            shown = self.shown(run_id)
            row = _row(shown or view, is_fresh=shown is not None)
            if row["live"]:
                rows.append(row)
                self._views[run_id] = shown or view
            else:
                self._ended[run_id] = row
                del self._views[run_id]
        rows += self._ended.values()
        rows.sort(key=lambda row: (row["started_at"], row["id"]), reverse=True)
        self._rows = rows[:MOST_RUNS]


def _names() -> frozenset[str]:
    """Return the names of the entries of the state directory; none if it does not exist."""
    try:
        with open_runs() as runs:
            return frozenset(runs.entries())
    except FileNotFoundError:
        return frozenset()


def _row(view: RunView, *, is_fresh: bool) -> Row:
    live = view.is_live
    row = run_row(view, is_fresh=is_fresh)
    return {
        "id": row.id,
        "name": safe(row.name),
        "state": row.state,
        "live": live,
        "command": one_line(row.command)[:_LONGEST_COMMAND],
        "directory": safe(row.directory),
        "started_at": view.record.started_at,
        "uptime_s": row.took_s if live else None,
        "took_s": None if live else row.took_s,
        "loss": row.loss,
        "bad_loss": row.bad_loss,
        "tasks": row.tasks,
        "exit_code": row.exit_code,
        "problem": None,
    }


def _newer_row(newer: NewerRun) -> Row:
    """A run that a later orch wrote: its files are not read."""
    unknown = dict.fromkeys(("uptime_s", "took_s", "loss", "bad_loss", "tasks", "exit_code"))
    return {
        "id": newer.record.id,
        "name": safe(newer.record.name),
        "state": "unknown",
        "live": newer.is_live,
        "command": "",
        "directory": safe(newer.record.directory),
        "started_at": newer.record.started_at,
        **unknown,
        "problem": str(newer.error),
    }
