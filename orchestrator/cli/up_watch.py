"""`orch up --watch`: runs again when a source file changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

from orchestrator.cli import words
from orchestrator.cli.early import may_start_warm
from orchestrator.cli.parameters import Screen
from orchestrator.cli.up_run import Ended, run_once
from orchestrator.client.own_supervisor import OwnSupervisor
from orchestrator.client.source_watch import (
    SourceWatch,
    local_sources,
    remove_stale_code,
    require_watchfiles,
    syntax_error,
)
from orchestrator.core.errors import ExitCode, OrchError
from orchestrator.core.text.counted import counted
from orchestrator.host.directories import existing_directories
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.request.settings import settings
from orchestrator.request.settings.request import UpRequest, WatchFrom

_SOURCE = "--watch"


def run_watching(
    request: UpRequest, flags: Mapping[str, object], screen: Screen, early: SupervisorLink | None
) -> int:
    """Run, and run again after each change, until the user ends a run. Return the exit code of the last run.

    UsageError, OrchError for what prevents the first run; later errors are shown, and the next change is awaited.
    """
    require_watchfiles(_SOURCE)
    wanted, number, last = request, 0, Ended(ExitCode.OK)
    with closing(OwnSupervisor()) as own, early or nullcontext():
        if early is not None and not request.display.warm_s:
            own.adopt(early)
        while True:
            sources = local_sources(wanted.spec, os.environ)
            with SourceWatch(sources, wanted.display.watch, wanted.spec.directory, _SOURCE) as watched:
                error = syntax_error(watched.files)
                if error is None:
                    number += 1
                    remove_stale_code(watched.files, {**os.environ, **wanted.spec.env})
                    try:
                        early = early or _supervisor_for(wanted, own)
                        last = run_once(_with_checkpoints(wanted, number, last), screen, early, watched)
                    except OrchError as caught:
                        if number == 1:
                            raise
                        error = str(caught)
                    early = None
                    if last.by_user:
                        return last.code
                if error is not None:
                    words.say(error)
                if not watched.has_changed():
                    words.say(
                        f"waiting until one of {counted(len(watched.files), 'file')} changes; Ctrl-C ends"
                    )
                    watched.wait()
                words.say(f"{_named(watched.changed, wanted.spec.directory)} changed: starting again")
            wanted = _reloaded(flags, wanted)


def _supervisor_for(request: UpRequest, own: OwnSupervisor) -> SupervisorLink | None:
    """The supervisor that this process keeps for its runs; None if the run starts as those with --warm do."""
    warm_s = request.display.warm_s
    starts_warm = may_start_warm() if warm_s is None else warm_s > 0
    return None if starts_warm else own.connect()


def _reloaded(flags: Mapping[str, object], before: UpRequest) -> UpRequest:
    """Return the request with the settings of now, as soon as they are valid."""
    while True:
        try:
            return settings.load(flags, os.environ, before.spec.directory)
        except OrchError as error:
            with SourceWatch(frozenset(), "*.py", before.spec.directory, _SOURCE) as watched:
                words.say(str(error))
                words.say("waiting until a file changes; Ctrl-C ends")
                watched.wait()


def _with_checkpoints(request: UpRequest, number: int, last: Ended) -> UpRequest:
    """Return the request of the `number`th run, with the directory that --watch-from decides on."""
    spec, named = request.spec, request.spec.checkpoint_dir
    if number == 1 or spec.hosts:
        return request
    if request.display.watch_from is WatchFrom.CHECKPOINT:
        directory = named or last.checkpoint_dir
    else:
        directory = None if named is None else named / f"watch-{number}"
    return replace(
        request,
        spec=spec.model_copy(update={"checkpoint_dir": directory}),
        existing=existing_directories(spec.log_dir, directory),
    )


def _named(files: Sequence[Path], directory: Path) -> str:
    first = files[0]
    shown = str(first.relative_to(directory) if first.is_relative_to(directory) else first)
    others = len(files) - 1
    return f"{shown} and {counted(others, 'other file')}" if others else shown
