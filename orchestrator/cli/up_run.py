"""`orch up` from its flags to its exit code: request, start, follow, report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator import api, settings
from orchestrator.api import Run
from orchestrator.cli import words
from orchestrator.cli.options import Screen
from orchestrator.errors import ExitCode, RunEnded
from orchestrator.foreground import follow_to_end
from orchestrator.request import UpRequest, WaitFor
from orchestrator.result import RunResult
from orchestrator.view.choice import ColorChoice, open_view, wants_colour
from orchestrator.view.output import Output
from orchestrator.view.plain import LineStyle
from orchestrator.view.report import end_lines

_STDOUT, _STDERR = 1, 2


def run_up(flags: Mapping[str, object], screen: Screen) -> int:
    request = settings.load(flags, os.environ, Path.cwd())
    _say_notices(request, screen)
    if request.display.detach or request.display.wait is not None:
        return _detached(request, screen)
    result = _in_the_foreground(request, screen)
    _report(result, screen)
    return result.exit_code


def _say_notices(request: UpRequest, screen: Screen) -> None:
    if not screen.quiet:
        for notice in request.notices:
            words.say(notice)
    for run_id, count in api.tidy():
        words.say(f"ended {count} process{'es' if count > 1 else ''} that the lost run {run_id} had left")


def _in_the_foreground(request: UpRequest, screen: Screen) -> RunResult:
    supervised, run = api.start(request, detached=False)
    try:
        if screen.verbose and not screen.quiet:
            words.say(f"{run.id} in {run.dir}")
        shown = request.display.tasks
        tasks = None if shown is None else frozenset(str(task) for task in shown)
        # With --json, stdout carries one document, the result: the lines go where orch's words go.
        out = Output(_STDERR if screen.json else _STDOUT)
        follow_to_end(supervised, run.view, _view(request, screen, out), tasks)
    finally:
        supervised.close()
    return api.result_of(run.view)


def _view(request: UpRequest, screen: Screen, out: Output):  # type: ignore[no-untyped-def]
    display = request.display
    choice = ColorChoice(display.color.value)
    style = LineStyle(
        prefix=not display.no_prefix,
        timestamps=display.timestamps,
        colour=wants_colour(choice, out.fileno(), os.environ),
    )
    return open_view(out, Output(_STDERR), style, os.environ, footer=not screen.quiet)


def _report(result: RunResult, screen: Screen) -> None:
    """The last thing on the screen; of a success in one line, of a quiet one nothing."""
    if screen.json:
        words.print_json(result.model_dump(mode="json"))
    if screen.quiet and result.succeeded:
        return
    for line in end_lines(result, words.stderr_width(), colour=words.colour_on_stderr(screen)):
        words.say_line(line)


def _detached(request: UpRequest, screen: Screen) -> int:
    supervised, run = api.start(request, detached=True)
    supervised.close()
    if screen.json:
        words.print_json(run.status().model_dump(mode="json"))
    elif not screen.quiet:
        words.print_lines([run.id])
    if request.display.wait is None:
        return ExitCode.OK
    return _wait(run, request.display.wait, screen)


def _wait(run: Run, until: WaitFor, screen: Screen) -> int:
    """Ctrl-C ends the waiting, not the run."""
    try:
        if until is WaitFor.READY:
            run.wait_ready()
        else:
            run.wait()
    except RunEnded as ended:
        _report(ended.result, screen)
        return int(ended.exit_code)
    return ExitCode.OK
