"""`orch stacks`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.completion import log_words
from orchestrator.cli.options import Color, JsonOut, Quiet, Verbose, screen_of


def stacks(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [TASK...]",
            autocompletion=log_words,
            help="A run (default: this directory's newest), and whose stacks: worker:0, chief, or 0.",
            show_default=False,
        ),
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="C and C++ frames, too: by py-spy, which pauses the task.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="All threads, whole, as they were written down.")
    ] = False,
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Show what each task is doing now; of an ended run what was recorded last."""
    from orchestrator.cli.stacks_show import StackRequest, show_stacks

    request = StackRequest(words=tuple(words or ()), native=native, full=full)
    return show_stacks(request, screen_of(context, json, color, quiet, verbose))
