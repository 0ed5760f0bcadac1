"""The table of the soak: runs, and failures of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cell_failure import Kind
from soak_pool import Finding, Totals, machine_load, today


def report(
    title: str,
    at_once: int,
    many: int,
    findings: Sequence[Finding],
    wall_s: float,
    totals: Totals,
    root: Path,
) -> None:
    """To stdout; what was wrong is named below it."""
    counts = Counter(finding.kind for finding in findings)
    print(f"\nsoak: {today()}, {title}, at most {at_once} at once; {machine_load()}")
    print(f"  {'runs':<48}{many:>6}")
    print(f"  {'minutes':<48}{wall_s / 60:>6.1f}")
    print(f"  {'CPU seconds a run':<48}{totals.cpu_s / max(many, 1):>6.2f}")
    for kind in Kind:
        is_seen = kind is not Kind.SHARED_MEMORY or totals.shared_memory_seen
        print(f"  {kind:<48}{counts[kind] if is_seen else 'not seen':>6}")
    for text in totals.not_tried:
        print(f"  not tried: {text}")
    if findings:
        print(f"what was wrong is kept in {root}:")
    for finding in findings:
        print(f"  {finding.directory.name}  {finding.name}: {finding.text.splitlines()[0][:160]}")
