"""The table of the preflight: a row for each host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from orchestrator.client.view.layout import BOLD, DIM, RED, Cell, Column, lay_out
from orchestrator.core.text.counted import counted
from orchestrator.core.text.sizes import format_size
from orchestrator.host.checks.finding import is_healthy
from orchestrator.preflight import Preflight
from orchestrator.preflight.table import HostRow

_COLUMNS = (
    Column("HOST"),
    Column("ADDRESS", rank=3),
    Column("PYTHON", rank=2),
    Column("TENSORFLOW"),
    Column("KERAS", rank=1),
    Column("SCRIPT"),
    Column("CHECKPOINTS"),
    Column("REACHES"),
    Column("FREE", rank=4, right=True),
)
_UNKNOWN = "-"
_BAD = ("differs", "missing")
# Hosts beyond these are counted.
_MOST_ROWS = 32


def host_lines(rows: Sequence[HostRow], width: int | None, *, colour: bool) -> list[str]:
    """The table, each line at most `width` cells wide (None: unlimited)."""
    cells = [_cells(row) for row in rows[:_MOST_ROWS]]
    lines = [line.rstrip() for line in lay_out(_COLUMNS, cells, width, colour=colour)]
    return (
        lines if len(rows) <= _MOST_ROWS else [*lines, f"and {counted(len(rows) - _MOST_ROWS, 'more host')}"]
    )


def hosts_document(found: Preflight) -> dict[str, object]:
    """The document of `orch doctor --hosts ... --json` (docs/hosts.md)."""
    return {
        "schema_version": 1,
        "healthy": is_healthy(found.findings),
        "hosts": [asdict(row) for row in found.rows],
        "findings": [asdict(finding) for finding in found.findings],
    }


def _cells(row: HostRow) -> list[Cell]:
    free = None if row.free_bytes is None else format_size(row.free_bytes)
    texts = (
        row.address,
        row.python,
        row.tensorflow,
        row.keras,
        row.script,
        row.checkpoints,
        row.reaches,
        free,
    )
    return [Cell(row.host, (BOLD,)), *map(_cell, texts)]


def _cell(text: str | None) -> Cell:
    if text is None:
        return Cell(_UNKNOWN, (DIM,))
    reached, of, expected = text.partition(" of ")
    is_bad = text in _BAD or (of and reached != expected)
    return Cell(text, (RED,) if is_bad else ())
