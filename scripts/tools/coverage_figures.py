"""Prints the coverage of `orchestrator` for each module; exit code 1 below the promised figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import coverage

LINES_PERCENT = 95.0
# Modules in which an untested path could end a run wrongly.
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
    parts, tree = Path(sys.argv[1]), Path(__file__).parents[2]
    measured = coverage.Coverage(
        data_file=str(parts / "all"), config_file=False, branch=True, source=[str(tree / "orchestrator")]
    )
    # "report:exclude_also" is looked at when configuration files are read, and not again.
    excluded = measured.get_option("report:exclude_lines")
    measured.set_option("report:exclude_lines", [*excluded, *_NOT_RUN])
    measured.combine([str(part) for part in parts.glob("part.*")], keep=True)
    measured.save()
    measured.report(show_missing=True, sort="-cover")
    measured.json_report(outfile=str(parts / "report.json"))
    report = json.loads((parts / "report.json").read_text())
    short = [
        f"{percent:.1f} % of the branches of {name}, not {BRANCHES_PERCENT:g}"
        for name, file in report["files"].items()
        if name.startswith(BRANCHES_OF)
        and (percent := file["summary"]["percent_branches_covered"]) < BRANCHES_PERCENT
    ]
    lines = report["totals"]["percent_statements_covered"]
    if lines < LINES_PERCENT:
        short.append(f"{lines:.1f} % of the lines, not {LINES_PERCENT:g}")
    for words in short:
        print(f"coverage: {words}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
