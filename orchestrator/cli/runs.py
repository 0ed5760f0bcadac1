"""`orch status`, `orch ls` and `orch history`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.parameters import Everywhere, RunArgument, Screen, takes_screen
from orchestrator.cli.selection import find_run, sweep
from orchestrator.cli.words import colour_on, json_text, print_json, print_lines, say, width_of
from orchestrator.client import api
from orchestrator.client.run_rows import run_row
from orchestrator.client.view.tables import run_lines, status_lines
from orchestrator.core.errors import ExitCode, UsageError
from orchestrator.core.text.clean import safe
from orchestrator.store.files import disk_bytes

_WATCH_S = 1.0
_HOME, _ERASE_REST_OF_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_LEAVE_KEYS = frozenset("qQ\x03\x04")


@takes_screen
def status(
    screen: Screen,
    run: RunArgument = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep the table on the screen; q or Ctrl-C leaves.")
    ] = False,
) -> int:
    """Show a run: one row a task."""
    found = find_run(run)
    if watch and not screen.json and sys.stdout.isatty():
        return _watch(found, screen)
    document = found.status()
    for remark in found.view.remarks():
        say(f"{found.id}: {remark}")
    if screen.json:
        print_json(document.model_dump(mode="json"))
    else:
        print_lines(status_lines(document, width_of(), colour=colour_on(screen)))
    return ExitCode.OK


def _watch(run: api.Run, screen: Screen) -> int:
    """Redraw the table until the run ends or the user leaves."""
    # Imported only here, so that a plain `orch status` starts quickly.
    from orchestrator.cli.keys import pressed_keys
    from orchestrator.links.signal_inbox import SignalInbox

    with SignalInbox((signal.SIGINT, signal.SIGTERM)) as inbox, pressed_keys() as keys:
        sys.stdout.write(_HOME + _ERASE_BELOW)
        while True:
            lines = status_lines(run.status(), width_of(), colour=colour_on(screen))
            height = os.get_terminal_size(sys.stdout.fileno()).lines
            # Each line is erased alone: tmux would copy a whole erased screen into its history.
            rows = "".join(f"{line}{_ERASE_REST_OF_LINE}\n" for line in lines[: max(1, height - 1)])
            sys.stdout.write(_HOME + rows + _ERASE_BELOW)
            sys.stdout.flush()
            if run.view.state.phase.is_end:
                return ExitCode.OK
            inbox.wait(_WATCH_S, *keys.descriptors)
            if inbox.take() or _LEAVE_KEYS & set(keys.read()):
                return ExitCode.OK


@takes_screen
def ls(
    screen: Screen,
    everywhere: Everywhere = False,
) -> int:
    """List the runs of this directory: exit code, duration, last loss, age, size and command."""
    survey = sweep()
    here = str(Path.cwd())
    rows = [
        run_row(view, disk_bytes(view.paths.root))
        for view in reversed(survey.runs)
        if everywhere or view.record.directory == here
    ]
    for newer in survey.newer:
        if everywhere or newer.record.directory in ("", here):
            say(f"{'live: ' if newer.is_live else ''}{newer.error}")
    if screen.json:
        print_json({"schema_version": 1, "runs": [asdict(row) for row in rows]})
    elif rows:
        print_lines(run_lines(rows, width_of(), colour=colour_on(screen)))
    else:
        say("no runs here; `orch ls --all` lists those of other directories")
    return ExitCode.OK


@takes_screen
def history(
    screen: Screen,
    run: RunArgument = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print one row a line. This is the default.")] = False,
) -> int:
    """Print a run's progress, CPU and memory over time."""
    if csv and screen.json:
        raise UsageError("--csv and --json contradict each other; leave one of them out")
    found = find_run(run)
    columns = found.history()
    if not columns["time"]:
        say(f"{found.id}: has no history: no task has reported or was measured, or an older orch ran it")
    if screen.json:
        print_lines([json_text({"schema_version": 1, "run": found.id, "columns": columns})])
    else:
        print_lines(_csv_lines(columns))
    return ExitCode.OK


def _csv_lines(columns: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """Yield the columns as RFC 4180 defines CSV. The names of metrics and phases are a task's own text."""
    from csv import writer
    from io import StringIO

    for row in (columns, *zip(*columns.values(), strict=True)):
        line = StringIO()
        writer(line, lineterminator="").writerow(
            [safe(value) if isinstance(value, str) else value for value in row]
        )
        yield line.getvalue()
