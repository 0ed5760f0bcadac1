"""`orch up`: makes the request, starts the run, follows it and reports its end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.cli import words
from orchestrator.cli.parameters import Screen
from orchestrator.cli.selection import ended_text, say_skipped, say_swept
from orchestrator.client import api
from orchestrator.client.api import Run
from orchestrator.client.launch import Room, make_room, on_nodes
from orchestrator.client.view.output import is_capable, terminal_size
from orchestrator.client.warm import Start, choose_start
from orchestrator.core.errors import EngineError, ExitCode, OrchError, RunEnded, UsageError
from orchestrator.core.job.choices import EngineName
from orchestrator.core.state.events import STOP_SIGNALS
from orchestrator.core.state.result import RunResult
from orchestrator.host.checks import warnings_of_up
from orchestrator.links.client_link import Lifetime
from orchestrator.links.signal_inbox import SignalInbox
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.request.settings import settings
from orchestrator.request.settings.request import DisplayOptions, UpRequest, WaitFor

# `worker:0-3 | ` is two cells wider than `worker:0 | `.
_ROOM_FOR_A_GROUP = 2
# With fewer columns than this, COLUMNS is not set: a bar would be too short to read.
_MIN_COLUMNS = 20


def run_up(flags: Mapping[str, object], screen: Screen, early: SupervisorLink | None) -> int:
    """Run `orch up` with a supervisor that waits for its request, if one was started; return the exit code."""
    request = settings.load(flags, os.environ, Path.cwd())
    if request.display.ui:
        from orchestrator.ui.address import require_extra

        require_extra("--ui")
    if not screen.quiet:
        for notice in (*request.notices, *warnings_of_up(request.spec)):
            words.say(notice)
    is_detached = request.display.detach or request.display.wait is not None
    if is_detached and request.spec.engine is EngineName.SLURM:
        raise UsageError(
            "--engine slurm: the allocation ends with the `orch up` that asked for it; instead of --detach or --wait,"
            " submit a batch script that calls `orch up`"
        )
    with on_nodes(request, words.say) as request:
        room = make_room(request)
        say_skipped(room.skipped)
        say_swept(room.swept)
        if not screen.quiet:
            for notice in (*_host_table(room), *room.host_warnings, *_runs_beside(room, request)):
                words.say(notice)
        start = choose_start(request, early)
        if screen.verbose and not screen.quiet:
            for note in start.notes:
                words.say(note)
        with start.supervisor:
            if is_detached:
                return _detached(request, screen, start)
            return _in_the_foreground(request, screen, start)


def _host_table(room: Room) -> Iterator[str]:
    """Yield the answers of the hosts as a table, if there are hosts."""
    if room.hosts is not None:
        from orchestrator.cli.host_table import host_lines

        width = words.width_of(words.STDERR)
        yield "\n".join(["hosts", *host_lines(room.hosts.rows, width, colour=False)])


def _runs_beside(room: Room, request: UpRequest) -> Iterator[str]:
    """Yield which runs --replace has stopped, and that others are live in this directory."""
    for ended in room.replaced:
        yield f"--replace: {ended_text(ended)}"
    if len(room.others) == 1:
        other = room.others[0].record
        yield f"another run is live in this directory: {other.id}"
        is_replaced = other.name == request.spec.name
        stop = "`orch up --replace` stops it first" if is_replaced else f"`orch down {other.name}` stops it"
        yield f"`orch status {other.id}` shows it, {stop}"
    elif room.others:
        yield (
            f"{len(room.others)} other runs are live in this directory: `orch ls` lists them,"
            " `orch down --all` stops them"
        )


def _in_the_foreground(request: UpRequest, screen: Screen, start: Start) -> int:
    supervisor = start.supervisor
    # While processes exist, a signal is a stop order, not an exception.
    with SignalInbox(STOP_SIGNALS) as inbox:
        try:
            run = start.create(_with_columns(request, screen), Lifetime.CLIENT)
            with _page(run) if request.display.ui else nullcontext():
                is_detached = _show_to_end(supervisor, run, request, screen, inbox)
        finally:
            supervisor.close()
        if is_detached:
            words.say(f"left {run.id}; it keeps running: `orch attach` shows it, `orch down` stops it")
            if screen.json:
                words.print_json(run.status().model_dump(mode="json"))
            return ExitCode.OK
        result = supervisor.received_result() or api.result_of(run.view)
        code = _write_junit(request.display.junit, run, result)
        # A signal that arrives now does not change the exit code.
        with inbox.settled(code):
            words.report_end(result, screen)
    return code


@contextmanager
def _page(run: Run) -> Iterator[None]:
    """Serve the page, and say its address. The run continues without it if that fails."""
    from orchestrator.ui.address import tunnel_hint
    from orchestrator.ui.background import shared_server

    with ExitStack() as stack:
        try:
            address = stack.enter_context(shared_server())
        except (OrchError, OSError) as error:
            words.say(f"the page is not served: {error}; the run continues")
        else:
            words.say(f"page: {address}#/run/{run.id}")
            if hint := tunnel_hint(urlsplit(address).port or 0, os.environ):
                words.say(hint)
        yield


def _with_columns(request: UpRequest, screen: Screen) -> UpRequest:
    """Add the cells that a line has beside its prefix, if the tasks' lines go to a terminal."""
    fd = words.STDERR if screen.json else words.STDOUT
    if not is_capable(fd, os.environ):
        return request
    columns = terminal_size(fd).columns
    if not request.display.no_prefix:
        columns -= max(len(f"{task} | ") for task in request.spec.tasks) + _ROOM_FOR_A_GROUP
    if request.display.timestamps is not None:
        from orchestrator.client.view.log_line import local_time

        columns -= len(f"{local_time(0.0, request.display.timestamps)} ")
    if columns < _MIN_COLUMNS:
        return request
    return replace(request, spec=request.spec.model_copy(update={"columns": columns}))


def _write_junit(path: Path | None, run: Run, result: RunResult) -> int:
    """Write the file if one is wanted. Return the exit code: a successful run whose file is missing is an error."""
    if path is None:
        return result.exit_code
    from orchestrator.client.junit import write_junit

    try:
        write_junit(path, run, result)
    except OSError as error:
        words.say(f"--junit: {path} cannot be written ({error.strerror})")
        return result.exit_code or ExitCode.ORCH
    return result.exit_code


def _show_to_end(
    supervisor: SupervisorLink, run: Run, request: UpRequest, screen: Screen, inbox: SignalInbox
) -> bool:
    """Show the run until the supervisor has exited and all lines are shown, or a key detaches it: then return True.

    Signals in `inbox` are stop orders."""
    display = request.display
    # Imported here, after the start of the run, so that the run starts sooner.
    from orchestrator.cli.keys import pressed_keys
    from orchestrator.client.foreground import follow_to_end
    from orchestrator.client.live_keys import LiveKeys, NoKeys
    from orchestrator.client.view.folding import ALL_LINES_HINT, Folder
    from orchestrator.client.view.log_line import LineStyle
    from orchestrator.client.view.output import Output, grouped, wants_colour
    from orchestrator.client.view.terminal import TerminalView, open_view

    # With --json, stdout has only one document, the result; the lines go to stderr.
    out = Output(words.STDERR if screen.json else words.STDOUT)
    colour = wants_colour(display.color, out.fileno(), os.environ)
    style = LineStyle(not display.no_prefix, display.timestamps, colour)
    tasks = None if display.tasks is None else frozenset(str(task) for task in display.tasks)
    verbose = screen.verbose and not screen.quiet
    folder = None if display.all_lines else Folder(ALL_LINES_HINT, tasks, verbose=verbose)
    view = open_view(out, Output(words.STDERR), style, os.environ, folder, footer=not screen.quiet)
    if verbose:
        view.say(f"orch: {run.id} in {run.dir}")
    source = pressed_keys() if isinstance(view, TerminalView) else nullcontext(NoKeys())
    with source as pressed, grouped(out, f"output of {run.id}"):
        # The file of --junit is written when the run has ended, and an allocation of Slurm is given back then.
        must_stay = display.junit or request.spec.slurm_job
        keys = LiveKeys(pressed, run, view, "" if must_stay else "d", stops=True)
        return follow_to_end(supervisor, run.view, view, tasks, inbox, keys, verbose)


def _detached(request: UpRequest, screen: Screen, start: Start) -> int:
    run = start.create(request, Lifetime.DETACHED)
    start.supervisor.close()
    try:
        if not screen.json:
            words.print_lines([run.id])  # data, so that --quiet does not hide it: run=$(orch up -dq)
        return _wait(run, request.display, screen)
    except BrokenPipeError:
        raise  # the reader does not want to know
    except OSError as error:
        # The caller sees a failure and would not look for a run.
        run.down()
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise EngineError(
            f"{reason}; {run.id} was stopped, because this output could not be written"
        ) from error
    except KeyboardInterrupt:
        words.say(f"{run.id} keeps running; `orch down` stops it")
        return ExitCode.INTERRUPTED


def _wait(run: Run, display: DisplayOptions, screen: Screen) -> int:
    """Wait as asked. With --json, print one document: the result of a run that has ended, else the status."""
    if display.wait is WaitFor.DONE:
        result = run.wait(check=False)
        code = _write_junit(display.junit, run, result)
        words.report_end(result, screen)
        return code
    if display.wait is WaitFor.READY:
        try:
            run.wait_ready(on_notice=None if screen.quiet else words.say)
        except RunEnded as ended:
            words.report_end(ended.result, screen)
            return int(ended.exit_code)
    if screen.json:
        words.print_json(run.status().model_dump(mode="json"))
    return ExitCode.OK
