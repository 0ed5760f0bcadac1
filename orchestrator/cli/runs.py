"""`orch status`, `ls`, `down`, `restart`, `wait` and `attach`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Color, JsonOut, Quiet, RunArgument, Verbose, screen_of


def status(
    context: typer.Context,
    run: RunArgument = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep the table on the screen; q or Ctrl-C leaves.")
    ] = False,
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Show a run: one row a task."""
    from orchestrator.cli import runs_show

    return runs_show.show_status(run, watch, screen_of(context, json, color, quiet, verbose))


def ls(
    context: typer.Context,
    everywhere: Annotated[bool, typer.Option("--all", "-a", help="Those of other directories, too.")] = False,
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """List the runs of this directory with their age and size."""
    from orchestrator.cli import runs_show

    return runs_show.show_runs(everywhere, screen_of(context, json, color, quiet, verbose))


def down(
    context: typer.Context,
    run: RunArgument = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Kill at once.")] = False,
    json: JsonOut = False,
    quiet: Quiet = False,
    color: Color = None,
    verbose: Verbose = False,
) -> int:
    """Stop a run and say what was ended. Nothing running is fine."""
    from orchestrator.cli import runs_end

    return runs_end.end_run(run, force, screen_of(context, json, color, quiet, verbose))


def restart(
    context: typer.Context,
    run: RunArgument = None,
    json: JsonOut = False,
    quiet: Quiet = False,
    color: Color = None,
    verbose: Verbose = False,
) -> int:
    """Have all tasks of a live run end and begin anew, as another attempt."""
    from orchestrator.cli import runs_end

    return runs_end.restart_run(run, screen_of(context, json, color, quiet, verbose))


def wait(
    context: typer.Context,
    run: RunArgument = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after this (exit 124).")
    ] = None,
    json: JsonOut = False,
    quiet: Quiet = False,
    color: Color = None,
    verbose: Verbose = False,
) -> int:
    """Wait for a run's end; its exit code becomes this command's."""
    from orchestrator.cli import runs_end

    return runs_end.wait_for(run, timeout, screen_of(context, json, color, quiet, verbose))


def attach(
    context: typer.Context,
    run: RunArgument = None,
    tasks: Annotated[str | None, typer.Option("--tasks", metavar="0,2", help="Whose lines to show.")] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="The time before each line.")
    ] = False,
    no_prefix: Annotated[bool, typer.Option("--no-prefix", help="Lines without `worker:0 | `.")] = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Watch a live run; q or Ctrl-C leaves, and the run goes on."""
    from orchestrator.cli import runs_attach

    screen = screen_of(context, False, color, quiet, verbose)
    return runs_attach.attach_to(run, tasks, timestamps, no_prefix, screen)
