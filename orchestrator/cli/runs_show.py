"""What `orch status` and `orch ls` print."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from orchestrator import api
from orchestrator.cli import words
from orchestrator.cli.keys import pressed_keys
from orchestrator.cli.options import Screen
from orchestrator.cli.sweep import sweep
from orchestrator.links.signal_inbox import SignalInbox
from orchestrator.runs import catalog
from orchestrator.runs.reader import RunView
from orchestrator.view.tables import RunRow, run_lines, status_lines

_WATCH_S = 1.0
_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_LEAVE_KEYS = frozenset("qQ\x03\x04")


def show_status(wanted: str | None, watch: bool, screen: Screen) -> int:
    sweep()
    run = api.find(wanted)
    if watch and not screen.json and sys.stdout.isatty():
        return _watch(run, screen)
    status = run.status()
    if screen.json:
        words.print_json(status.model_dump(mode="json"))
    else:
        words.print_lines(status_lines(status, words.stdout_width(), colour=words.colour_on_stdout(screen)))
    return 0


def _watch(run: api.Run, screen: Screen) -> int:
    """Redraw the table until the run ends or the user leaves."""
    with SignalInbox((signal.SIGINT, signal.SIGTERM)) as inbox, pressed_keys() as keys:
        while True:
            status = run.status()
            lines = status_lines(status, words.stdout_width(), colour=words.colour_on_stdout(screen))
            height = os.get_terminal_size(sys.stdout.fileno()).lines
            sys.stdout.write(_HOME_AND_CLEAR + "\n".join(lines[: max(1, height - 1)]) + "\n")
            sys.stdout.flush()
            if run.view.state.phase.is_end:
                return 0
            inbox.wait(_WATCH_S, *keys.descriptors)
            if inbox.take() or _LEAVE_KEYS & set(keys.read()):
                return 0


def show_runs(everywhere: bool, screen: Screen) -> int:
    sweep()
    views = [view for view in catalog.all_runs() if everywhere or view.record.directory == str(Path.cwd())]
    rows = [_row(view) for view in reversed(views)]
    if screen.json:
        words.print_json({"schema_version": 1, "runs": [_document(row) for row in rows]})
    elif rows:
        words.print_lines(run_lines(rows, words.stdout_width(), colour=words.colour_on_stdout(screen)))
    else:
        words.say("no runs here; `orch ls --all` lists those of other directories")
    return 0


def _row(view: RunView) -> RunRow:
    took: float | None
    result = view.result()
    if result is not None:
        state, tasks = str(result.outcome), len(result.tasks)
        took = max(0.0, view.paths.result.stat().st_mtime - view.record.started_at)
    else:
        view.refresh()
        state, tasks = str(view.state.phase), len(view.state.tasks)
        took = max(0.0, view.now_mono() - view.record.started_mono) if view.is_live else None
    age = max(0.0, time.time() - view.record.started_at)
    return RunRow(
        id=view.record.id,
        name=view.record.name,
        state=state,
        tasks=tasks,
        age_s=age,
        took_s=took,
        size_bytes=_size(view.paths.root),
        directory=view.record.directory,
    )


def _size(root: Path) -> int:
    """Bytes that the files of the run take on disk; what vanishes meanwhile counts for nothing."""
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(directory) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def _document(row: RunRow) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "tasks": row.tasks,
        "age_s": round(row.age_s, 3),
        "took_s": None if row.took_s is None else round(row.took_s, 3),
        "size_bytes": row.size_bytes,
        "directory": row.directory,
    }
