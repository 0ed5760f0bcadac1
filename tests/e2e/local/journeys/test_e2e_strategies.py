"""Every cell of strategy x loop trains the digits or is refused with a message, as the table in docs/ says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from orch_command import Orch

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "scripts/tools"))

from strategy_cells import CELLS, STATED_ACCURACY, Cell, run_cell  # noqa: E402

PAGE = ROOT / "docs" / "strategies" / "README.md"
# Quick enough for the gate; scripts/test --all runs the others.
QUICK = ("parameter-server-fit", "tpu-fit", "tpu-custom", "dtensor-fit")
pytestmark = pytest.mark.timeout(420)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell.name, marks=() if cell.name in QUICK else (pytest.mark.slow,))
        for cell in CELLS
    ],
)
def test_cell_trains_or_is_refused(orch: Orch, cell: Cell) -> None:
    outcome = run_cell(cell, orch.directory, orch.environ())
    (row,) = (line for line in PAGE.read_text().splitlines() if f"| `{cell.command}` |" in line)
    if outcome.accuracy is not None:
        assert outcome.accuracy >= STATED_ACCURACY, outcome.output
        assert "| trains: held-out accuracy 0.9" in row
    else:
        assert outcome.refusal, outcome.output
        assert f"| refused: {outcome.refusal} |" in row
        assert not orch.run_dirs(), "refused before anything was started"
    assert not list(orch.directory.iterdir()), "a run leaves nothing in the user's directory"
