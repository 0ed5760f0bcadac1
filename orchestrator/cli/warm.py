"""`orch warm`: list the processes that wait for the next run, or end them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.cli.parameters import Screen, takes_screen
from orchestrator.cli.words import colour_on, print_json, print_lines, say, width_of
from orchestrator.client.view.amounts import duration, size
from orchestrator.client.view.layout import Cell, Column, lay_out
from orchestrator.client.warm_list import WarmRow, stop_holders, warm_rows
from orchestrator.core.errors import ExitCode, UsageError
from orchestrator.core.text.clean import safe
from orchestrator.core.text.counted import counted

_STOP = "stop"
_COLUMNS = (
    Column("DIRECTORY"),
    Column("STATE"),
    Column("RUNS", rank=2, right=True),
    Column("MEMORY", rank=1, right=True),
    Column("PID", rank=3, right=True),
)


@takes_screen
def warm(
    screen: Screen,
    action: Annotated[
        str | None,
        typer.Argument(
            metavar="[stop]",
            autocompletion=lambda: [_STOP],
            help="stop: end the processes of all directories. One that has a run ends after it.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """List the processes that `orch up --warm` keeps for the next run, or end them."""
    if action not in (None, _STOP):
        raise UsageError(f"`orch warm {action}` is not known; write `orch warm` or `orch warm {_STOP}`")
    rows = warm_rows() if action is None else stop_holders()
    if screen.json:
        key = "warm" if action is None else "stopped"
        print_json({"schema_version": 1, key: [asdict(row) for row in rows]})
    elif not rows:
        say("no processes are kept warm; `orch up --warm` keeps them after a run")
    elif action is None:
        print_lines(lay_out(_COLUMNS, [_cells(row) for row in rows], width_of(), colour=colour_on(screen)))
    else:
        print_lines(_stopped(row) for row in rows)
    return ExitCode.OK


def _cells(row: WarmRow) -> list[Cell]:
    state = "has a run" if row.until is None else f"waits {duration(max(0.0, row.until - time.time()))} more"
    return [
        Cell(row.directory),
        Cell(state),
        Cell(str(row.runs)),
        Cell(size(row.memory_bytes)),
        Cell(str(row.pid)),
    ]


def _stopped(row: WarmRow) -> str:
    if row.until is None:
        return safe(f"{row.directory}: has a run, and ends after it")
    return safe(f"{row.directory}: ended {counted(row.processes, 'process', 'processes')}")
