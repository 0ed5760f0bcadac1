"""Checks the hosts of a run before a task is started on them: asks each one, then compares the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from orchestrator.core.job.spec import JobSpec
from orchestrator.host.checks.finding import Finding
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.preflight import findings, questions, table


@dataclass(frozen=True)
class Preflight:
    """A row for each host, in the order of the hosts, and the findings about them."""

    rows: tuple[table.HostRow, ...]
    findings: tuple[Finding, ...]


def inspect_hosts(
    supervisor: SupervisorLink,
    spec: JobSpec,
    environ: Mapping[str, str],
    may_start: Callable[[str], bool] = lambda python: True,
) -> Preflight:
    """Ask the hosts of the job, which the supervisor has prepared. They remove what they create. EngineError.

    `may_start`: whether an interpreter of the tasks may be started, to ask it for its packages."""
    plan = questions.Plan(spec, environ, may_start)
    found = supervisor.host_reports()
    reports = {host.name: found[host.name] for host in spec.hosts}
    reports |= supervisor.ask_hosts(
        {host: plan.first_question(host, its.facts) for host, its in reports.items() if its.facts is not None}
    )
    for host, report in supervisor.ask_hosts(plan.second_questions(reports)).items():
        first, second = reports[host].checked, report.checked
        reports[host] = replace(
            report, checked=first and second and replace(first, read=second.read, reach=second.reach)
        )
    return Preflight(tuple(table.host_rows(plan, reports)), tuple(findings.compare(plan, reports)))
