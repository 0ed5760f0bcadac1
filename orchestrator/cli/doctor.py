"""`orch doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.parameters import AsRootAnyway, Color, JsonOut, Quiet, Verbose, flag, screen_of
from orchestrator.request.settings.options import SETTINGS

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
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_root_anyway: AsRootAnyway = False,
) -> int:
    """Check this machine and its TensorFlow for known problems, and say how to fix them.

    Exit code: 0, or 1 with a problem. -q shows only warnings and problems. It starts no task and changes nothing.
    """
    from orchestrator.cli import words
    from orchestrator.cli.doctor_context import doctor_context
    from orchestrator.cli.doctor_report import doctor_document, doctor_lines
    from orchestrator.host.checks import run_checks
    from orchestrator.host.checks.finding import is_healthy

    screen = screen_of(context, json, color, quiet, verbose, as_root_anyway)
    examined, name = doctor_context(workers, command or (), os.environ, Path.cwd())
    findings = run_checks(examined)
    if screen.json:
        words.print_json(doctor_document(examined, name, findings))
    else:
        colour = words.colour_on(screen)
        words.print_lines(
            doctor_lines(examined, findings, words.width_of(), colour=colour, quiet=screen.quiet)
        )
    return 0 if is_healthy(findings) else 1
