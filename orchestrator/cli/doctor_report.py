"""The report of `orch doctor`: findings in columns, or a JSON document (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from orchestrator.client.view.layout import BOLD, DIM, GREEN, RED, YELLOW, Cell, Column, fit, lay_out
from orchestrator.core.text.counted import counted
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, Level, is_healthy
from orchestrator.host.checks.software import runs_python
from orchestrator.host.headroom import free_memory
from orchestrator.host.installed import Interpreter
from orchestrator.host.strategies import StrategyRow, Works, strategies

_GAP = "  "
# Narrower than this many columns the text is not wrapped.
_NARROWEST = 30
_COLOURS: dict[Level | Works, tuple[str, ...]] = {
    Level.OK: (GREEN,),
    Level.NOTE: (DIM,),
    Level.WARNING: (YELLOW,),
    Level.PROBLEM: (BOLD, RED),
    Works.YES: (GREEN,),
    Works.FIXED: (GREEN,),
    Works.NO: (RED,),
    Works.UNTRIED: (YELLOW,),
}
_STRATEGY_COLUMNS = (Column("STRATEGY"), Column("WAY"), Column("KERAS"), Column("WORKS"), Column("", rank=1))


def strategy_rows(context: Context) -> tuple[StrategyRow, ...]:
    """Empty without TensorFlow, and for a program that is not Python."""
    python = context.python
    if python is None or not runs_python(context.spec) or python.tensorflow is None:
        return ()
    return strategies(python.keras, python.tf_keras, is_tested=python.tensorflow_warning is None)


def doctor_lines(
    context: Context, findings: Sequence[Finding], width: int | None, *, colour: bool, quiet: bool
) -> list[str]:
    """The findings wrapped to `width` columns (None: not wrapped), the strategies, and the count of problems.

    `quiet` leaves only warnings and problems.
    """
    lines = finding_lines(findings, width, colour=colour, quiet=quiet)
    rows = () if quiet else strategy_rows(context)
    if not rows:
        return lines
    *found, count = lines
    return [*found, *_strategy_lines(rows, width, colour=colour), "", count]


def finding_lines(findings: Sequence[Finding], width: int | None, *, colour: bool, quiet: bool) -> list[str]:
    """The findings and their count, as in doctor_lines()."""
    shown = [finding for finding in findings if not quiet or _is_bad(finding)]
    topic_width = max((len(finding.topic) for finding in shown), default=0)
    lines = [line for finding in shown for line in _finding_lines(finding, topic_width, width, colour=colour)]
    if quiet:
        return lines
    return [*lines, "", fit([Cell(count_text(findings), (BOLD,))], None, colour=colour)]


def doctor_document(context: Context, command: str | None, findings: Sequence[Finding]) -> dict[str, object]:
    """The document of `orch doctor --json` (docs/doctor.md). `command` None: any training script."""
    spec, python = context.spec, context.python or Interpreter("")
    return {
        "schema_version": 1,
        "healthy": is_healthy(findings),
        "workers": spec.workers,
        "tasks": context.task_count,
        "roles": dict(spec.roles),
        "command": command,
        "python": {"path": python.path, "version": python.version or None, "packages": dict(python.versions)},
        "usable_cores": spec.cores.usable,
        "free_memory_bytes": free_memory(context.proc, context.cgroups).size,
        "findings": [asdict(finding) for finding in findings],
        "strategies": [
            {name: value or None for name, value in asdict(row).items()} for row in strategy_rows(context)
        ],
    }


def count_text(findings: Sequence[Finding]) -> str:
    """`1 problem, 2 warnings`"""
    levels = [finding.level for finding in findings]
    counts = [counted(levels.count(each), each) for each in (Level.PROBLEM, Level.WARNING) if each in levels]
    return ", ".join(counts) or "no problems, no warnings"


def _is_bad(finding: Finding) -> bool:
    return finding.level in (Level.WARNING, Level.PROBLEM)


def _finding_lines(finding: Finding, topic_width: int, width: int | None, *, colour: bool) -> list[str]:
    head = [
        Cell(f"{finding.level:<7}", _COLOURS[finding.level]),
        Cell(f"{_GAP}{finding.topic:<{topic_width}}{_GAP}", (BOLD,) if _is_bad(finding) else ()),
    ]
    margin = sum(len(cell.text) for cell in head)
    room = None if width is None or width - margin < _NARROWEST else width - margin
    text = _wrapped(finding.text if finding.where is None else f"{finding.text}  ({finding.where})", room)
    if finding.fix is not None:
        text += _wrapped(f"fix: {finding.fix}", room)
    below = [Cell(" " * margin)]
    return [
        fit([*(below if number else head), Cell(line)], None, colour=colour)
        for number, line in enumerate(text)
    ]


def _wrapped(text: str, room: int | None) -> list[str]:
    if room is None:
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [text]


def _strategy_lines(rows: Sequence[StrategyRow], width: int | None, *, colour: bool) -> list[str]:
    cells = [
        [
            *map(Cell, (row.strategy, row.way, row.keras)),
            Cell(row.works, _COLOURS[row.works]),
            Cell(row.why, (DIM,)),
        ]
        for row in rows
    ]
    return [line.rstrip() for line in lay_out(_STRATEGY_COLUMNS, cells, width, colour=colour)]
