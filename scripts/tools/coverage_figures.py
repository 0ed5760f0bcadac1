"""Prints the coverage of `orchestrator` for each module; exit code 1 below the promised figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import coverage

LINES_PERCENT = 95.0
# Where a path that no test has taken would be a run that ends wrongly.
BRANCHES_PERCENT = 95.0
BRANCHES_OF = (
    "orchestrator/core/lifecycle",
    "orchestrator/core/diagnosis",
    "orchestrator/store/files.py",
    "orchestrator/store/runs/writer.py",
    "orchestrator/store/logs/writer.py",
    "orchestrator/links/agent_link.py",
    "orchestrator/supervisor/agent_reports.py",
)

# For the type checker alone.
_NOT_RUN = ["if TYPE_CHECKING:", r"assert_never\(", r"case _:\n\s+assert_never\(", r"^\s*\.\.\.$"]


def main() -> int:
    parts = Path(sys.argv[1])
    tree = Path(__file__).parents[2]
    measured = coverage.Coverage(
        data_file=str(parts / "all"),
        config_file=False,
        branch=True,
        source=[str(tree / "orchestrator")],
    )
    # "report:exclude_also" is looked at when configuration files are read, and not again.
    excluded = measured.get_option("report:exclude_lines")
    measured.set_option("report:exclude_lines", [*excluded, *_NOT_RUN])
    measured.combine([str(part) for part in parts.glob("part.*")], keep=True)
    measured.save()
    report = parts / "report.json"
    measured.json_report(outfile=str(report))
    return 0 if _tell(json.loads(report.read_text())) else 1


def _tell(report: dict[str, Any]) -> bool:
    """The table, the worst first; whether all is as promised."""
    rows = [(_lines(file["summary"]), name, file) for name, file in report["files"].items()]
    short: list[str] = []
    for lines, name, file in sorted(rows, key=lambda row: row[0], reverse=True):
        name = str(Path(name))
        branches = _branches(file["summary"])
        missing = ", ".join(_ranges(file["missing_lines"]))
        print(f"{lines:6.1f} {branches:6.1f}  {name}  {missing}")
        if name.startswith(BRANCHES_OF) and branches < BRANCHES_PERCENT:
            short.append(f"{name}: {branches:.1f} % of its branches, not {BRANCHES_PERCENT:g}")
    lines = _lines(report["totals"])
    print(f"{lines:6.1f} {_branches(report['totals']):6.1f}  all")
    if lines < LINES_PERCENT:
        short.append(f"{lines:.1f} % of the lines, not {LINES_PERCENT:g}")
    for words in short:
        print(f"coverage: {words}", file=sys.stderr)
    return not short


def _lines(summary: dict[str, Any]) -> float:
    return _percent(summary["covered_lines"], summary["num_statements"])


def _branches(summary: dict[str, Any]) -> float:
    return _percent(summary["covered_branches"], summary["num_branches"])


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 100.0


def _ranges(lines: list[int]) -> list[str]:
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]


if __name__ == "__main__":
    sys.exit(main())
