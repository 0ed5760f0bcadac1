"""The row of each host in the table of the preflight (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.preflight.answers import HostReport
from orchestrator.preflight.findings import REACHED, interpreters_of
from orchestrator.preflight.questions import Plan


@dataclass(frozen=True)
class HostRow:
    """None: not known, because the host did not answer; or not asked, because the job does not need it.

    `script`: "same", "differs" or "missing". `checkpoints`: "shared" or "own". `reaches`: of how many hosts it
    reaches how many, as "2 of 2". `free_bytes`: in its temporary directory.
    """

    host: str
    address: str | None = None
    python: str | None = None
    tensorflow: str | None = None
    keras: str | None = None
    script: str | None = None
    checkpoints: str | None = None
    reaches: str | None = None
    free_bytes: int | None = None


def host_rows(plan: Plan, reports: Sequence[HostReport]) -> list[HostRow]:
    return [_row(plan, report) for report in reports]


def _row(plan: Plan, report: HostReport) -> HostRow:
    if report.identity is None:
        return HostRow(report.host.name)
    found = next(iter(interpreters_of(plan, report).values()), None)
    return HostRow(
        report.host.name,
        plan.address_of(report),
        report.identity.version_text if found is None else found.version or None,
        None if found is None else found.tensorflow,
        None if found is None else found.keras,
        _script(plan, report),
        _checkpoints(report),
        _reaches(plan, report),
        next(iter(report.answers.free.values()), None),
    )


def _script(plan: Plan, report: HostReport) -> str | None:
    hashes = [(report.answers.hash.get(str(path)), expected) for path, expected in plan.programs.items()]
    found = [(answer.sha256, expected) for answer, expected in hashes if answer is not None]
    if not found:
        return None
    if any(sha256 is None for sha256, _ in found):
        return "missing"
    return "same" if all(sha256 == expected for sha256, expected in found) else "differs"


def _checkpoints(report: HostReport) -> str | None:
    if (seen := report.answers.read) is None:
        return None
    return "shared" if seen.found else "own"


def _reaches(plan: Plan, report: HostReport) -> str | None:
    outcomes = report.answers.reach
    targets = plan.targets.get(report.host.name, [])
    if not targets or not outcomes:
        return None
    return f"{sum(outcome in REACHED for outcome in outcomes)} of {len(targets)}"
