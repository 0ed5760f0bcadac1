"""Every cell of the matrix, against real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cells import Cell, run_cell
from matrix import MATRIX, REPRESENTATIVE
from matrix_table import table
from wrong import NotHere

_DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


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
    except NotHere as reason:
        pytest.skip(str(reason))


def test_the_document_holds_the_matrix_as_it_is() -> None:
    """`scripts/soak table` prints what has to stand there."""
    assert table(MATRIX) in _DOCUMENT.read_text()
