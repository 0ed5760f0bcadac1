"""`orch up` and `orch config`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.early import supervisor_of_up
from orchestrator.cli.parameters import Screen, screen_of, takes_options
from orchestrator.request.settings.declaration import Part
from orchestrator.request.settings.options import COMMAND, SETTINGS

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar=COMMAND.metavar, help=COMMAND.help, show_default=False),
]


@takes_options(*Part)
def up(context: typer.Context, command: Words = None, **given: Any) -> int:
    """Start a cluster and follow it to its end.

    Most options can also be set in orch.toml (workers = 4), in pyproject.toml ([tool.orch]), or in the environment
    (ORCH_WORKERS=4). Ctrl-C stops the run, a second one kills it. Exit code: 0, the first failing
    task's own, or 130, 143, 124, 125.
    """
    screen = screen_of_up(context, given)
    flags = flags_of(command, given, screen)
    if given["dry_run"]:
        return _show_plan(flags, screen)
    if _asks_for_help(command):
        from orchestrator.request.command.examples import example_of, examples_directory

        script = example_of(None, None)
        help_words = [sys.executable, str(examples_directory() / script), "--help"]
        done = subprocess.run(help_words, stderr=subprocess.PIPE, check=False)  # TensorFlow writes there
        if done.returncode:
            sys.stderr.buffer.write(done.stderr)
        return done.returncode
    early = supervisor_of_up()
    with early or nullcontext():
        from orchestrator.cli.up_run import run_up

        return run_up(flags, screen, early)


@takes_options(*(part for part in Part if part is not Part.DISPLAY))
def config(context: typer.Context, command: Words = None, **given: Any) -> int:
    """Show what `orch up` would start: each task's argv, env and TF_CONFIG, with placeholder ports."""
    screen = screen_of_up(context, given)
    return _show_plan(flags_of(command, given, screen), screen)


def screen_of_up(context: typer.Context, given: Mapping[str, Any]) -> Screen:
    """The options about the screen of a verb that takes those of `orch up`."""
    names = ("json", "color", "quiet", "verbose", "as_root_anyway")
    return screen_of(context, *(given[name] for name in names))


def flags_of(command: list[str] | None, given: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """Return the values of the options. None, for an option that was not given, lets other sources apply."""
    flags = {name: None if value is False else value for name, value in given.items() if name in SETTINGS}
    return {**flags, "command": command, "color": screen.color}


def _asks_for_help(command: list[str] | None) -> bool:
    """`orch up -- --help` shows the help of the example once, not in every worker."""
    if command is None or command[:1] not in (["-h"], ["--help"]):
        return False
    from orchestrator.request.settings.toml_file import read_toml

    # Settings may name another command, which these words are then added to.
    return not read_toml(Path.cwd())


def _show_plan(flags: dict[str, Any], screen: Screen) -> int:
    from orchestrator.cli.words import print_json, print_lines, say
    from orchestrator.core.text.clean import safe
    from orchestrator.host import programs
    from orchestrator.host.checks import CHECKS_OF_CONFIG, refuse_problems
    from orchestrator.host.checks.context import Context
    from orchestrator.request.settings import settings
    from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
    from orchestrator.store.runs.paths import RunPaths, runs_dir

    # The interpreter that a directory names may be any program.
    request = settings.load(
        flags, os.environ, Path.cwd(), lambda python: programs.is_on_path(python, os.environ)
    )
    refuse_problems(Context(request.spec, os.environ), CHECKS_OF_CONFIG)
    layout = RunPaths((request.spec.log_dir or runs_dir()) / f"{request.spec.name}-PLACEHOLDER")
    plan = placeholder_plan(request.spec, layout, os.environ)
    if screen.json:
        print_json(config_document(request.spec, plan))
    else:
        for notice in request.notices:
            say(notice)
        print_lines(safe(line) for line in config_lines(request.spec, plan))
    return 0
