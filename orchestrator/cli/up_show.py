"""Shows the run of `orch up` until its end. Imported after the start of the run, to start it sooner."""

from __future__ import annotations

import os
from contextlib import nullcontext

from orchestrator.cli.keys import pressed_keys
from orchestrator.cli.parameters import Screen
from orchestrator.client.api import Run
from orchestrator.client.foreground import follow_to_end
from orchestrator.client.view.output import Output, wants_colour
from orchestrator.client.view.plain import LineStyle
from orchestrator.client.view.terminal import TerminalView, View, open_view
from orchestrator.links.signal_inbox import SignalInbox
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.request.settings.request import DisplayOptions

_STDOUT, _STDERR = 1, 2


def show_to_end(
    supervisor: SupervisorLink, run: Run, display: DisplayOptions, screen: Screen, inbox: SignalInbox
) -> None:
    """Show the run until the supervisor has exited and all lines are shown. Signals in `inbox` are stop orders."""
    tasks = None if display.tasks is None else frozenset(str(task) for task in display.tasks)
    # With --json, stdout has only one document, the result; the lines go to stderr.
    view = _view(display, screen, Output(_STDERR if screen.json else _STDOUT))
    verbose = screen.verbose and not screen.quiet
    if verbose:
        view.say(f"orch: {run.id} in {run.dir}")
    # Echoed keys would damage the footer. Unread keys stay for the shell.
    with pressed_keys() if isinstance(view, TerminalView) else nullcontext():
        follow_to_end(supervisor, run.view, view, tasks, inbox, verbose)


def _view(display: DisplayOptions, screen: Screen, out: Output) -> View:
    style = LineStyle(
        prefix=not display.no_prefix,
        timestamps=display.timestamps,
        colour=wants_colour(display.color, out.fileno(), os.environ),
    )
    return open_view(out, Output(_STDERR), style, os.environ, footer=not screen.quiet)
