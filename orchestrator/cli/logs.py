"""`orch logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.completion import log_words
from orchestrator.cli.options import Color, JsonOut, Quiet, Verbose, screen_of


def logs(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [TASK...]",
            autocompletion=log_words,
            help="A run (default: this directory's newest), and whose lines: worker:0, chief, or 0.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last N lines.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 5m (ago), or an ISO time.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to then.")] = None,
    grep: Annotated[str | None, typer.Option("--grep", metavar="RE", help="Only lines that match.")] = None,
    invert: Annotated[bool, typer.Option("--invert", help="Only lines that do not match --grep.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Only lines of the run's Nth attempt.")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="The time before each line.")
    ] = False,
    no_prefix: Annotated[bool, typer.Option("--no-prefix", help="Lines without `worker:0 | `.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The very bytes that the tasks wrote.")] = False,
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Print a run's logs, merged in the order in which the lines arrived; live or long after."""
    from orchestrator.cli.logs_show import LogRequest, show_logs

    request = LogRequest(
        words=tuple(words or ()),
        follow=follow,
        tail=tail,
        since=since,
        until=until,
        grep=grep,
        invert=invert,
        attempt=attempt,
        timestamps=timestamps,
        no_prefix=no_prefix,
        raw=raw,
    )
    return show_logs(request, screen_of(context, json, color, quiet, verbose))
