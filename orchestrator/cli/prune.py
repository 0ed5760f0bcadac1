"""`orch prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Color, JsonOut, Quiet, Verbose, screen_of


def prune(
    context: typer.Context,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Runs that ended longer ago than this (7d, 12h)."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", metavar="SIZE", help="The oldest, until the others take no more than this (5GB)."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=0,
            help="Spare the N newest of each name in each directory; without the other two: remove all others.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only runs of that name.")
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all", "-a", help="Those of other directories, too.")] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Remove their checkpoints, too; else these are kept.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Remove ended runs by age, count or size. Live ones and checkpoints stay."""
    from orchestrator.cli import prune_show

    request = prune_show.PruneRequest(
        older_than=older_than,
        max_size=max_size,
        keep=keep,
        name=name,
        everywhere=everywhere,
        checkpoints=checkpoints,
        dry_run=dry_run,
    )
    return prune_show.prune_runs(request, screen_of(context, json, color, quiet, verbose))
