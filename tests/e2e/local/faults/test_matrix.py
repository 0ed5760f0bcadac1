"""Runs every cell of the matrix with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cell_failure import NotAvailable
from cells import Cell, run_cell
from matrix import MATRIX, REPRESENTATIVE
from matrix_table import table

_DOCUMENT = Path(__file__).parents[4] / "docs" / "reliability.md"


def _marks(cell: Cell) -> list[pytest.MarkDecorator]:
    return [] if cell.name in REPRESENTATIVE else [pytest.mark.slow]


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name, marks=_marks(cell)) for cell in MATRIX])
def test_cell(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    directory = tmp_path / "cell"
    directory.mkdir()
    try:
        run_cell(cell, directory)
    except NotAvailable as reason:
        pytest.skip(str(reason))


def test_documentation_contains_the_matrix() -> None:
    """`scripts/tools/soak table` prints the table."""
    assert table(MATRIX) in _DOCUMENT.read_text()
