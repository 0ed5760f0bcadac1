"""`orch up`: makes the request, starts the run, follows it and reports its end."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from orchestrator.cli import words
from orchestrator.cli.parameters import Screen
from orchestrator.cli.selection import ended_text, say_skipped, say_swept
from orchestrator.client import api
from orchestrator.client.api import Run
from orchestrator.client.launch import Room, create_run, make_room, needs_job, on_nodes
from orchestrator.client.view.output import is_capable, terminal_size
from orchestrator.client.warm import Start, choose_start
from orchestrator.core.errors import EngineError, ExitCode, OrchError, RunEnded, UsageError
from orchestrator.core.job.choices import EngineName
from orchestrator.core.plan.plan import read_depth
from orchestrator.core.state.events import STOP_SIGNALS, NoticeSource
from orchestrator.core.state.result import RunResult
from orchestrator.core.text.durations import format_duration
from orchestrator.host.checks import warnings_of_up
from orchestrator.links.orders import NoticeOrder
from orchestrator.links.signal_inbox import NOTICE_SIGNAL, SignalInbox
from orchestrator.links.supervisor_link import SupervisorLink, start_supervisor
from orchestrator.request.settings import settings
from orchestrator.request.settings.request import UpRequest, WaitFor

if TYPE_CHECKING:
    from orchestrator.client.early_signals import EarlySignals
    from orchestrator.client.source_watch import SourceWatch
    from orchestrator.client.submitted import SubmittedLink
    from orchestrator.client.task_terminal import TaskTerminal
    from orchestrator.core.job.spec import JobSpec
    from orchestrator.links.client_link import Descriptor

# `worker:0-3 | ` is two cells wider than `worker:0 | `.
_ROOM_FOR_A_GROUP = 2
# With fewer columns than this, COLUMNS is not set: a bar would be too short to read.
_MIN_COLUMNS = 20


def run_up(flags: Mapping[str, object], screen: Screen, early: SupervisorLink | None) -> int:
    """Run `orch up` with a supervisor that waits for its request, if one was started; return the exit code."""
    gc.enable()  # the modules are imported (cli/early.py)
    request = settings.load(flags, os.environ, Path.cwd())
    if request.spec.interactive is not None or request.spec.pdb:
        _require_terminal("--pdb" if request.spec.pdb else "--interactive", screen)
    if request.display.ui:
        from orchestrator.ui.address import require_extra

        require_extra("--ui")
    if not screen.quiet:
        for notice in (*request.notices, *warnings_of_up(request.spec)):
            words.say(notice)
    if request.display.watch:
        from orchestrator.cli.up_watch import run_watching

        return run_watching(request, flags, screen, early)
    return run_once(request, screen, early).code


@dataclass(frozen=True)
class Ended:
    """How `orch up` ended one run. `by_user`: it was stopped or detached, which also ends --watch."""

    code: int
    by_user: bool = False
    checkpoint_dir: Path | None = None


def run_once(
    request: UpRequest, screen: Screen, early: SupervisorLink | None, sources: SourceWatch | None = None
) -> Ended:
    """Start one run and follow it as asked. `sources`: stop it when they change."""
    is_detached = request.display.detach or request.display.wait is not None
    if not is_detached and request.spec.interactive is None:
        request = _with_columns(request, screen)
    if request.spec.engine is EngineName.SLURM:
        with early or nullcontext():
            if is_detached or needs_job(request):
                return _submitted(request, screen, sources)
            return _on_nodes(request, screen, early or start_supervisor(), sources)
    with _supervisor_for(request, early) as early:
        room = make_room(request, early)
        _say_room(room, request, screen)
        start = choose_start(request, early)
        _say_notes(start, screen)
        with start.supervisor:
            if is_detached:
                run = create_run(start.supervisor, request, warm=start.warm, is_detached=True)
                start.supervisor.close()
                if read_depth(os.environ):
                    words.say(f"{run.id} ends with the task that has started it")
                return Ended(_detached(run, request, screen))
            begin = partial(create_run, start.supervisor, request, warm=start.warm)
            return _in_the_foreground(request, screen, start.supervisor, begin, sources)


def _after_requeue(request: UpRequest) -> UpRequest:
    """Return the request, with the earlier run of a job that Slurm has started again, after the end of its tasks."""
    if request.adopt is not None:
        return request
    from orchestrator.client.requeued import fence_s, interrupted_run

    before = interrupted_run(request.spec, os.environ)
    if before is None:
        return request
    if wait_s := fence_s(before):
        words.say(
            f"a node that Slurm has lost may still run tasks of {before.record.id}, the run of this job before;"
            f" they end within {format_duration(math.ceil(wait_s))}"
        )
        time.sleep(wait_s)  # the node cannot be reached, so nothing tells when they have ended
    return replace(request, continues=before.paths.root)


def _on_nodes(
    request: UpRequest, screen: Screen, supervisor: SupervisorLink, sources: SourceWatch | None
) -> Ended:
    """Run on the nodes of the allocation that this process is in."""
    from orchestrator.client.early_signals import EarlySignals, Terminated

    with supervisor, EarlySignals() as signals:
        try:
            request = on_nodes(_after_requeue(request))
            _say_room(make_room(request, supervisor), request, screen)
            start = choose_start(request, supervisor)
            _say_notes(start, screen)
        except Terminated:
            return Ended(ExitCode.TERMINATED, by_user=True)
        begin = partial(create_run, start.supervisor, request)
        return _in_the_foreground(request, screen, start.supervisor, begin, sources, signals)


def _submitted(request: UpRequest, screen: Screen, sources: SourceWatch | None) -> Ended:
    """Submit a job of Slurm that runs the request, and follow the run unless it is detached."""
    from orchestrator.client.early_signals import EarlySignals, Terminated
    from orchestrator.client.submit import submit
    from orchestrator.client.submitted import SubmittedLink

    is_detached = request.display.detach or request.display.wait is not None
    run: Run | None = None
    with EarlySignals() as signals:
        try:
            _say_room(make_room(request), request, screen)
            run = submit(request, may_requeue=is_detached)
            if not is_detached:
                link = SubmittedLink(run.view)
                return _in_the_foreground(request, screen, link, lambda _: run, sources, signals)
        except KeyboardInterrupt as stop:
            if run is not None:
                run.down()
            if not isinstance(stop, Terminated):
                raise
            return Ended(ExitCode.TERMINATED, by_user=True)
    return Ended(_detached(run, request, screen))


def _say_room(room: Room, request: UpRequest, screen: Screen) -> None:
    say_skipped(room.skipped)
    say_swept(room.swept)
    if not screen.quiet:
        for notice in (*_host_table(room), *room.host_warnings, *_runs_beside(room, request)):
            words.say(notice)


def _say_notes(start: Start, screen: Screen) -> None:
    if screen.verbose and not screen.quiet:
        for note in start.notes:
            words.say(note)


@contextmanager
def _supervisor_for(request: UpRequest, early: SupervisorLink | None) -> Iterator[SupervisorLink | None]:
    """Yield the supervisor that was started early. A job on other hosts has one in any case, for their check."""
    if early is None and request.spec.hosts:
        early = start_supervisor()
    with early or nullcontext():
        yield early


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


def _in_the_foreground(
    request: UpRequest,
    screen: Screen,
    supervisor: SupervisorLink | SubmittedLink,
    begin: Callable[[Mapping[Descriptor, int]], Run],
    sources: SourceWatch | None,
    signals: EarlySignals | None = None,
) -> Ended:
    """Start the run with these descriptors for its tasks, and follow it to its end. `signals`: received before."""
    # While processes exist, a signal is a stop order, not an exception.
    with _terminal(request.spec) as terminal, SignalInbox((*STOP_SIGNALS, NOTICE_SIGNAL)) as inbox:
        try:
            run = begin({} if terminal is None else terminal.descriptors)
            if signals is not None and signals.is_noticed:
                supervisor.send(NoticeOrder(source=NoticeSource.SIGNAL))
            with _page(run) if request.display.ui else nullcontext():
                is_detached = _show_to_end(supervisor, run, request, screen, inbox, sources, terminal)
        finally:
            supervisor.close()
        if is_detached:
            words.say(f"left {run.id}; it keeps running: `orch attach` shows it, `orch down` stops it")
            if screen.json:
                words.print_json(run.status().model_dump(mode="json"))
            return Ended(ExitCode.OK, by_user=True)
        result = supervisor.received_result() or api.result_of(run.view)
        code = _write_junit(request.display.junit, run, result)
        _say_profile(run, request, screen)
        is_changed = sources is not None and sources.has_changed()
        ended = Ended(code, result.outcome == "stopped" and not is_changed, run.checkpoint_dir)
        if sources is not None and not (ended.by_user or inbox.count):
            if result.outcome != "stopped":
                words.report_end(result, screen)
            return ended
        # A signal that arrives now does not change the exit code.
        with inbox.settled(code):
            words.report_end(result, screen)
    return replace(ended, by_user=True)


def _require_terminal(flag: str, screen: Screen) -> None:
    """Raise a UsageError if this process has no terminal to connect to a task."""
    if screen.json:
        raise UsageError(f"{flag}: with --json, standard output has the result only; leave one of them out")
    if not (os.isatty(words.STDIN) and os.isatty(words.STDOUT)):
        raise UsageError(
            f"{flag}: standard input and output are not a terminal; run it in one, or leave it out"
        )


@contextmanager
def _terminal(spec: JobSpec) -> Iterator[TaskTerminal | None]:
    """The terminal of the task of --interactive, or of the one that fails under --pdb."""
    if spec.interactive is None and not spec.pdb:
        yield None
        return
    from orchestrator.client.task_terminal import TaskTerminal
    from orchestrator.client.view.output import Output

    task = None if spec.interactive is None else str(spec.interactive)
    with TaskTerminal(task, words.STDIN, Output(words.STDOUT)) as terminal:
        yield terminal


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


def _say_profile(run: Run, request: UpRequest, screen: Screen) -> None:
    if request.spec.profile is None or screen.quiet:
        return
    from orchestrator.client.profile import profile_lines

    words.say("\n".join(profile_lines(run.view.paths.profile, request.spec.profile)))


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
    supervisor: SupervisorLink | SubmittedLink,
    run: Run,
    request: UpRequest,
    screen: Screen,
    inbox: SignalInbox,
    sources: SourceWatch | None,
    terminal: TaskTerminal | None,
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
        # The key d would leave the run without its JUnit file, end it with the script of the allocation, or take the
        # terminal from a task.
        must_stay = display.junit or request.spec.slurm_job or sources is not None or terminal is not None
        terminal_of = "" if terminal is None else terminal.task or "the task in pdb"
        keys = LiveKeys(pressed, run, view, "" if must_stay else "d", stops=True, terminal_of=terminal_of)
        return follow_to_end(
            supervisor, run.view, view, tasks, inbox, keys, verbose, sources, terminal, quiet=screen.quiet
        )


def _detached(run: Run, request: UpRequest, screen: Screen) -> int:
    try:
        if not screen.json:
            words.print_lines([run.id])  # data, so that --quiet does not hide it: run=$(orch up -dq)
        return _wait(run, request, screen)
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


def _wait(run: Run, request: UpRequest, screen: Screen) -> int:
    """Wait as asked. With --json, print one document: the result of a run that has ended, else the status."""
    display = request.display
    if display.wait is WaitFor.DONE:
        result = run.wait(check=False)
        code = _write_junit(display.junit, run, result)
        _say_profile(run, request, screen)
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
