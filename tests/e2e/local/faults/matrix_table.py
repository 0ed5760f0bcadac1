"""The matrix as a Markdown table: one row for each fault, with its moments and how the run ends."""

from __future__ import annotations

from collections.abc import Iterable

from cells import Cell


def table(cells: Iterable[Cell]) -> str:
    """Faults in the order of the matrix; moments with the same end share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        rows.setdefault((cell.fault, str(cell.ends)), []).append(str(cell.moment))
    lines = ["| fault | at | how the run ends |", "|---|---|---|"]
    lines += [f"| {fault} | {', '.join(moments)} | {ends} |" for (fault, ends), moments in rows.items()]
    return "\n".join(lines)
