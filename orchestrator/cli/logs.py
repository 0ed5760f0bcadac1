"""`orch logs`: the lines of a run that the options select, as text, JSON or raw bytes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import typer

from orchestrator.cli.parameters import (
    NoPrefix,
    Screen,
    Timestamps,
    color_mode,
    read_option,
    run_and_tasks_argument,
    takes_screen,
    time_format,
)
from orchestrator.cli.selection import chosen_tasks, run_and_tasks
from orchestrator.cli.words import STDOUT, json_text, say
from orchestrator.client.view.aftermath import Aftermath, Failure, first_failure
from orchestrator.client.view.folding import Folder
from orchestrator.client.view.log_line import LineStyle, format_block
from orchestrator.client.view.output import Output, wants_colour
from orchestrator.client.view.plain import AttemptMarks
from orchestrator.core.errors import ExitCode, UsageError
from orchestrator.links.signal_inbox import SignalInbox
from orchestrator.store.logs.lines import Block
from orchestrator.store.logs.query import (
    LineFilter,
    LogQuery,
    parse_when,
    query_blocks,
    query_lines,
    query_raw,
)
from orchestrator.store.runs.reader import RunView

_POLL_S = 0.05
_FOLD_HINT = "shown without --fold"


@takes_screen
def logs(
    screen: Screen,
    words: Annotated[list[str] | None, run_and_tasks_argument("lines")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the run ends.")
    ] = False,
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
    timestamps: Timestamps = None,
    no_prefix: NoPrefix = False,
    fold: Annotated[
        bool,
        typer.Option(
            "--fold", help="Fold start-up lines, equal lines of several tasks and repeated warnings."
        ),
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Exactly the bytes that the tasks wrote.")] = False,
) -> int:
    """Print a run's logs, merged in the order in which the lines arrived; during the run or after it."""
    if raw and screen.json:
        raise UsageError("--raw prints bytes and --json prints lines: give one of them")
    if fold and (raw or screen.json):
        raise UsageError(
            f"--fold leaves lines out, and {'--raw' if raw else '--json'} prints all: give one of them"
        )
    found, task_words = run_and_tasks(words or ())
    run = found.view
    if task_words:
        run.refresh()  # to know which tasks there are
    tasks = chosen_tasks(run, task_words, "TASK", of_all_attempts=True)
    query = LogQuery(tasks, _line_filter(since, until, grep, invert, attempt), tail, follow)
    if run.is_trimmed and not screen.quiet:
        say(f"{run.record.id}: `orch prune` has removed its logs")
    out = Output(STDOUT)
    if raw:
        pieces = query_raw(run.paths.logs, query, lambda: not run.is_live)
    elif screen.json:
        pieces = _json_lines(run, query)
    else:
        colour = wants_colour(color_mode(screen), out.fileno(), os.environ)
        style = LineStyle(not no_prefix, time_format(timestamps), colour)
        folder = Folder(_FOLD_HINT, tasks, verbose=screen.verbose) if fold else None
        pieces = _text_lines(run, query, style, folder, announce_attempts=not screen.quiet)
    write = out.write if raw else out.write_lines
    return _print(pieces, out, write, ExitCode.OK if follow else ExitCode.INTERRUPTED)


def _line_filter(
    since: str | None, until: str | None, grep: str | None, invert: bool, attempt: int | None
) -> LineFilter:
    if invert and grep is None:
        raise UsageError("--invert needs --grep RE")
    moment = partial(parse_when, now=time.time())
    moments = (read_option("--since", since, moment), read_option("--until", until, moment))
    try:
        return LineFilter(*moments, grep=grep, invert=invert, attempt=attempt)
    except ValueError as error:
        raise UsageError(f"--grep: {error}") from error


def _json_lines(run: RunView, query: LogQuery) -> Iterator[bytes]:
    for lines in query_lines(run.paths.logs, query, lambda: not run.is_live):
        yield "".join(json_text(line._asdict()) + "\n" for line in lines).encode()


def _text_lines(
    run: RunView, query: LogQuery, style: LineStyle, folder: Folder | None, *, announce_attempts: bool
) -> Iterator[bytes]:
    marks = AttemptMarks()
    found = query_blocks(run.paths.logs, query, lambda: not run.is_live)
    if folder is not None:
        run.refresh()
        record = run.record
        failure = first_failure(run.state, record.started_at - record.started_mono)
        found = _folded(found, folder, failure)
    for blocks in found:
        for attempt, part in marks.split(blocks):
            if attempt is not None and announce_attempts:
                say(f"attempt {attempt}")
            yield b"".join([format_block(block, style) for block in part if not block.lost])


def _folded(found: Iterator[list[Block]], folder: Folder, failure: Failure | None) -> Iterator[list[Block]]:
    aftermath = Aftermath()
    aftermath.begin(failure)
    for blocks in found:
        shown = aftermath.feed([line for block in blocks for line in folder.feed(block)])
        if not blocks:
            yield aftermath.feed(folder.release(time.time()))
        elif shown:
            yield shown
    yield aftermath.feed(folder.finish()) + aftermath.flush()


def _print(
    pieces: Iterator[bytes], out: Output, write: Callable[[bytes], None], interrupted: ExitCode
) -> int:
    """Write the pieces; an empty one means that no more is there yet. `interrupted` is the exit code of a Ctrl-C."""
    with SignalInbox((signal.SIGINT, signal.SIGTERM)) as inbox:
        while (piece := _next_piece(pieces, inbox)) is not None:
            write(piece)
            while out.backlog and not out.drain(_POLL_S):
                if inbox.take():
                    return ExitCode.INTERRUPTED
            if not piece:
                out.require_reader()
                inbox.wait(_POLL_S)
            if inbox.take():
                return interrupted
        return interrupted if inbox.count else ExitCode.OK


def _next_piece(pieces: Iterator[bytes], inbox: SignalInbox) -> bytes | None:
    """Return None at the end, and after a signal: finding lines in a huge log takes minutes."""
    try:
        with inbox.interrupting():
            return next(pieces, None)
    except KeyboardInterrupt:
        return None
