"""Runs every cell of the matrix with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cell_run import run_cell
from cells import Cell, NotAvailable, Way
from matrix import MATRIX, table

_DOCUMENT = Path(__file__).parents[4] / "docs" / "reliability.md"


def _marks(cell: Cell) -> list[pytest.MarkDecorator]:
    long = [pytest.mark.timeout(300)] if cell.way is Way.TENSORFLOW else []
    return long if cell.gate else [*long, pytest.mark.slow]


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name, marks=_marks(cell)) for cell in MATRIX])
def test_cell(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaked_descriptors: None
) -> None:
    for name in ("tmp", "cell"):
        (tmp_path / name).mkdir()
    if cell.way is not Way.TENSORFLOW:
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    try:
        run_cell(cell, tmp_path / "cell")
    except NotAvailable as reason:
        pytest.skip(str(reason))


def test_documentation_contains_the_matrix() -> None:
    """`scripts/tools/soak table` prints the table."""
    assert table() in _DOCUMENT.read_text()
