"""Runs the cells of strategy x loop, or the cases of numbers, and writes the outcomes into the docs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(_TESTS / "keras"), str(_TESTS / "support")]

from case_runs import Figures, differing_values, measure  # noqa: E402
from number_table import row, table  # noqa: E402
from strategy_cells import CELLS, STATED_ACCURACY, Outcome, run_cell  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "strategies" / "README.md"
NUMBERS_PAGE = DOCS / "keras.md"
BEGIN, END = "<!-- written by scripts/tools/cells -->", "<!-- up to here -->"
NUMBERS_BEGIN = "<!-- written by scripts/tools/cells numbers -->"
HEAD = ("| strategy | loop | Keras | command | on this machine |", "|---|---|---|---|---|")


def main(strategies: list[str]) -> int:
    """Return 0 if every cell trains to the stated accuracy or is refused."""
    unknown = set(strategies) - {cell.strategy for cell in CELLS}
    if unknown:
        print(f"cells: no such strategy: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [cell for cell in CELLS if not strategies or cell.strategy in strategies]
    with tempfile.TemporaryDirectory(prefix="cells-") as directory:
        environ = {**os.environ, "XDG_STATE_HOME": directory}
        outcomes = []
        for cell in chosen:
            outcomes.append(run_cell(cell, Path(directory), environ))
            print(outcomes[-1].row, flush=True)
    replace_table(PAGE, BEGIN, lambda old: with_outcomes(old, outcomes))
    is_as_stated = [each.refusal or (each.accuracy or 0) >= STATED_ACCURACY for each in outcomes]
    return 0 if all(is_as_stated) else 1


def compare_numbers(cases: list[str]) -> int:
    """Compare the cases, or all; return 0 if every difference is explained."""
    with tempfile.TemporaryDirectory(prefix="cells-") as name:
        directory = Path(name)
        found: list[Figures] = []
        for figures in measure(directory, ";".join(cases) or "all", {**os.environ, "XDG_STATE_HOME": name}):
            found.append(figures)
            print(row([figures]), flush=True)
            if cases or not figures.is_explained:
                print(*differing_values(directory, figures), sep="\n", flush=True)
    if not cases:
        replace_table(NUMBERS_PAGE, NUMBERS_BEGIN, lambda _: table(found))
    return 0 if all(figures.is_explained for figures in found) else 1


def with_outcomes(old: str, outcomes: list[Outcome]) -> str:
    """Replace the rows of the cells that were run; the others stay, in the order of the cells."""
    rows = {outcome.cell: outcome.row for outcome in outcomes}
    for cell in CELLS:
        for line in old.splitlines():
            if f"| `{cell.command}` |" in line:
                rows.setdefault(cell, line)
    return "\n".join([*HEAD, *(rows[cell] for cell in CELLS if cell in rows)])


def replace_table(page: Path, begin: str, new: Callable[[str], str]) -> None:
    """Replace what stands between two lines of a page. `new` returns it from what stands there."""
    before, _, rest = page.read_text().partition(begin)
    old, _, after = rest.partition(END)
    page.write_text(f"{before}{begin}\n{new(old)}\n{END}{after}")


if __name__ == "__main__":
    numbers = sys.argv[1:2] == ["numbers"]
    sys.exit(compare_numbers(sys.argv[2:]) if numbers else main(sys.argv[1:]))
