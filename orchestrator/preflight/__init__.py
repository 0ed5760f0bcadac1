"""Checks the hosts of a run before a task is started on them: asks each one, then compares the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.core.job.spec import JobSpec
from orchestrator.engines import engine_of
from orchestrator.host.checks.finding import Finding
from orchestrator.host.headroom import many_files
from orchestrator.preflight import findings, questions, table
from orchestrator.preflight.inspection import Inspections


@dataclass(frozen=True)
class Preflight:
    """A row for each host, in the order of the hosts, and the findings about them."""

    rows: tuple[table.HostRow, ...]
    findings: tuple[Finding, ...]


def inspect_hosts(
    spec: JobSpec, environ: Mapping[str, str], may_start: Callable[[str], bool] = lambda python: True
) -> Preflight:
    """Ask all hosts of the job. Starts no task; what it leaves for a moment, it removes.

    `may_start`: whether an interpreter of the tasks may be started, to ask it for its packages."""
    plan = questions.Plan(spec, environ, may_start)
    with many_files(), Inspections(engine_of(spec), spec.hosts, plan.agent_python) as hosts:
        hosts.await_answers()
        for host, report in hosts.reports.items():
            hosts.ask(host, plan.first_question(report))
        hosts.await_answers()
        for host, question in plan.second_questions(hosts.reports).items():
            hosts.ask(host, question)
        hosts.await_answers()
        reports = tuple(hosts.reports.values())
    return Preflight(tuple(table.host_rows(plan, reports)), tuple(findings.compare(plan, reports)))
