"""The row of each host in the table of the preflight (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.links.client_link import HostReport
from orchestrator.preflight.findings import REACHED, interpreters_of
from orchestrator.preflight.questions import Plan
from worker.wire.checks import Checked


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


def host_rows(plan: Plan, reports: Mapping[str, HostReport]) -> list[HostRow]:
    return [_row(plan, host, report) for host, report in reports.items()]


def _row(plan: Plan, host: str, report: HostReport) -> HostRow:
    facts, checked = report.facts, report.checked
    if facts is None:
        return HostRow(host)
    found = None if checked is None else next(iter(interpreters_of(plan, checked).values()), None)
    return HostRow(
        host,
        plan.address_of(facts),
        facts.python if found is None else found.version or None,
        None if found is None else found.tensorflow,
        None if found is None else found.keras,
        None if checked is None else _script(plan, checked),
        None if checked is None else _checkpoints(checked),
        None if checked is None else _reaches(plan, host, checked),
        None if checked is None else checked.free_bytes,
    )


def _script(plan: Plan, checked: Checked) -> str | None:
    pairs = [
        (each.value, expected) for each, expected in zip(checked.hash, plan.programs.values(), strict=False)
    ]
    if not pairs:
        return None
    if any(value is None for value, _ in pairs):
        return "missing"
    return "same" if all(value == expected for value, expected in pairs) else "differs"


def _checkpoints(checked: Checked) -> str | None:
    if checked.read is None:
        return None
    return "own" if checked.read.value is None else "shared"


def _reaches(plan: Plan, host: str, checked: Checked) -> str | None:
    targets = plan.targets.get(host, [])
    if not targets or not checked.reach:
        return None
    return f"{sum(outcome in REACHED for outcome in checked.reach)} of {len(targets)}"
