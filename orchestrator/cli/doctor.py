"""`orch doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.parameters import AsRootAnyway, Color, JsonOut, Quiet, Screen, Verbose, flag, screen_of
from orchestrator.request.settings.options import SETTINGS

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- CMD ...]",
        help="What would be started, as for `orch up`; default: any training script.",
        show_default=False,
    ),
]


def doctor(
    context: typer.Context,
    command: Words = None,
    workers: Annotated[str | None, flag(SETTINGS["workers"])] = None,
    hosts: Annotated[str | None, flag(SETTINGS["hosts"])] = None,
    engine: Annotated[str | None, flag(SETTINGS["engine"])] = None,
    interface: Annotated[str | None, flag(SETTINGS["interface"])] = None,
    remote_python: Annotated[str | None, flag(SETTINGS["remote_python"])] = None,
    ssh_command: Annotated[str | None, flag(SETTINGS["ssh_command"])] = None,
    checkpoint_dir: Annotated[str | None, flag(SETTINGS["checkpoint_dir"])] = None,
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_root_anyway: AsRootAnyway = False,
) -> int:
    """Check this machine and its TensorFlow for known problems, and say how to fix them. With --hosts: those hosts.

    Exit code: 0, or 1 with a problem. -q shows only warnings and problems. It starts no task and changes nothing.
    """
    from orchestrator.cli import words
    from orchestrator.cli.doctor_context import doctor_context, may_start_there
    from orchestrator.cli.doctor_report import doctor_document, doctor_lines
    from orchestrator.host.checks import refuse_problems, run_checks
    from orchestrator.host.checks.finding import is_healthy
    from orchestrator.host.checks.resources import check_files_with_hosts

    screen = screen_of(context, json, color, quiet, verbose, as_root_anyway)
    flags = {
        "hosts": hosts,
        "engine": engine,
        "interface": interface,
        "remote_python": remote_python,
        "ssh_command": ssh_command,
        "checkpoint_dir": checkpoint_dir,
    }
    examined, name = doctor_context(workers, command or (), os.environ, Path.cwd(), flags)
    if examined.spec.hosts and examined.settings_error is None:
        refuse_problems(examined, (check_files_with_hosts,))
        may_start = may_start_there(command or (), os.environ, Path.cwd(), flags)
        return _check_hosts(examined.spec, screen, may_start)
    findings = run_checks(examined)
    if screen.json:
        words.print_json(doctor_document(examined, name, findings))
    else:
        colour = words.colour_on(screen)
        words.print_lines(
            doctor_lines(examined, findings, words.width_of(), colour=colour, quiet=screen.quiet)
        )
    return 0 if is_healthy(findings) else 1


def _check_hosts(spec: JobSpec, screen: Screen, may_start: Callable[[str], bool]) -> int:
    """Report on the hosts of the job. This machine runs none of its tasks."""
    from orchestrator.cli import words
    from orchestrator.cli.doctor_report import finding_lines
    from orchestrator.cli.host_table import host_lines, hosts_document
    from orchestrator.host.checks.finding import is_healthy
    from orchestrator.links.supervisor_link import start_supervisor
    from orchestrator.preflight import inspect_hosts

    with start_supervisor() as supervisor:
        supervisor.prepare(spec, preloads=False)
        found = inspect_hosts(supervisor, spec, os.environ, may_start)
    if screen.json:
        words.print_json(hosts_document(found))
    else:
        width, colour = words.width_of(), words.colour_on(screen)
        table = [] if screen.quiet else [*host_lines(found.rows, width, colour=colour), ""]
        words.print_lines([*table, *finding_lines(found.findings, width, colour=colour, quiet=screen.quiet)])
    return 0 if is_healthy(found.findings) else 1
