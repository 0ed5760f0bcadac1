"""`orch down`, `kill`, `restart`, `notice` and `wait`: the verbs that give orders to a live run or wait for its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completion import log_words, signal_words
from orchestrator.cli.parameters import RunArgument, Screen, read_option, takes_screen
from orchestrator.cli.selection import chosen_tasks, ended_text, find_run, silent_host, sweep
from orchestrator.cli.words import print_json, report_end, say
from orchestrator.client import api
from orchestrator.client.stop import Ended
from orchestrator.core.errors import EngineError, ExitCode, NoSuchRun, UsageError
from orchestrator.core.state.result import signal_name
from orchestrator.core.text.durations import format_duration, parse_duration
from orchestrator.core.text.signal_names import parse_signal
from orchestrator.store.runs import catalog
from orchestrator.store.runs.reader import RunView

_NOTHING_ENDED: Mapping[str, object] = {"run": None, "ended": [], "swept": 0, "left": [], "lost_hosts": []}


@takes_screen
def down(
    screen: Screen,
    run: RunArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all live runs of this directory.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Kill at once.")] = False,
) -> int:
    """Stop a run and say what was ended. It is not an error if nothing runs."""
    runs = catalog.survey()
    live = catalog.live_in(Path.cwd(), runs)
    if everything:
        if run is not None:
            raise UsageError(f'--all stops all live runs of this directory; leave out --all or "{run}"')
        return _down_all(screen, runs, live, force)
    try:
        found = api.find(run, there=runs)
    except NoSuchRun:
        if run is not None:
            raise
        sweep(runs)
        return _answer(screen, {**_NOTHING_ENDED, "still_live": []}, "no run here to stop")
    others = [other.record.id for other in live if other.record.id != found.id]
    if others and run is None and not (screen.json or screen.quiet):
        say(f"stopping {found.id}, the newest of {len(live)} live runs of this directory")
    ended = found.down(force)
    sweep(runs)
    _answer(screen, {**_ended_document(ended), "still_live": others}, ended_text(ended))
    if others and not (screen.json or screen.quiet):
        say(f"still live in this directory: {', '.join(others)}; `orch down --all` stops all")
    return ExitCode.ORCH if ended.left else ExitCode.OK


def _down_all(screen: Screen, runs: catalog.Survey, live: Sequence[RunView], force: bool) -> int:
    from orchestrator.client.stop import stop_runs

    code = ExitCode.OK
    documents: list[dict[str, object]] = []
    for ended in stop_runs(live, force):
        if isinstance(ended, EngineError):
            say(str(ended))
            code = ExitCode.ORCH
            continue
        documents.append(_ended_document(ended))
        if not (screen.json or screen.quiet):
            say(ended_text(ended))
        code = ExitCode.ORCH if ended.left else code
    sweep(runs)
    if screen.json:
        print_json({"schema_version": 1, "runs": documents})
    elif not live and not screen.quiet:
        say("no run here to stop")
    return code


def _ended_document(ended: Ended) -> dict[str, object]:
    left = [vars(process) for process in ended.left]
    return {
        "run": ended.run_id,
        "ended": list(ended.tasks),
        "swept": ended.swept,
        "left": left,
        "lost_hosts": list(ended.lost_hosts),
    }


@takes_screen
def kill(
    screen: Screen,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] TASK",
            autocompletion=log_words,
            help="A run (default: this directory's newest live one) and one of its tasks: worker:1, chief, or 1.",
            show_default=False,
        ),
    ],
    signal: Annotated[
        str,
        typer.Option(
            "--signal",
            "-s",
            metavar="SIG",
            help="KILL, TERM, STOP, CONT, USR1 ..., with or without SIG, or a number. Default: KILL.",
            autocompletion=signal_words,
        ),
    ] = "KILL",
) -> int:
    """Send a signal to a task and all its processes, to see how the other tasks react."""
    try:
        number = parse_signal(signal)
    except ValueError as error:
        raise UsageError(f"--signal: {error}") from error
    if len(words) > 2:
        raise UsageError(f"one task at a time: orch kill [RUN] TASK, not {len(words)} words")
    run = find_run(words[0] if len(words) == 2 else None)
    if not run.view.is_live:
        raise NoSuchRun(f"{run.id} has ended; there is no process to send a signal to")
    run.view.refresh()
    (task,) = chosen_tasks(run.view, words[-1:], "orch kill") or words[-1:]
    pid = run.kill(task, number)
    document: dict[str, object] = {"run": run.id, "task": task, "signal": number, "pid": pid}
    target = f"{task} (pid {pid} and its process group)"
    said = f"sent {signal_name(number)} to {target}"
    if (host := silent_host(run.view, task)) is not None:
        said = f"{host} is silent: it sends {signal_name(number)} to {target} when it answers again"
    return _answer(screen, document, said)


@takes_screen
def restart(screen: Screen, run: RunArgument = None) -> int:
    """Restart all tasks of a live run, as another attempt."""
    # Ids and names of runs do not contain a colon.
    if run is not None and ":" in run:
        sweep()
        raise UsageError(f"{run} is a task, but only all tasks together can be restarted: orch restart [RUN]")
    found = find_run(run)
    found.restart()
    said = f"{found.id}: restarting all tasks; `orch status` shows the attempt"
    return _answer(screen, {"run": found.id}, said)


@takes_screen
def notice(
    screen: Screen,
    run: RunArgument = None,
    left: Annotated[
        str, typer.Option("--in", metavar="TIME", help="When the machine goes: 90, 2m.")
    ] = f"{api.DEFAULT_LEFT_S:g}s",
) -> int:
    """Say that a machine of the run will go: its tasks save their state and end before that. The exit code is 42.

    For the hook that a cloud calls before it takes a machine away.
    """
    left_s = read_option("--in", left, parse_duration) or 0.0
    found = find_run(run)
    found.notice(left_s)
    said = f"{found.id}: its tasks get SIGTERM, to save their state and end within {format_duration(left_s)}"
    return _answer(screen, {"run": found.id, "left_s": left_s}, said)


@takes_screen
def wait(
    screen: Screen,
    run: RunArgument = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after this (exit 124).")
    ] = None,
) -> int:
    """Wait for a run's end; its exit code becomes this command's."""
    found = find_run(run)
    timeout_s = read_option("--timeout", timeout, parse_duration)
    try:
        result = found.wait(timeout_s, check=False)
    except TimeoutError as error:
        say(str(error))
        return ExitCode.TIMED_OUT
    report_end(result, screen)
    return result.exit_code


def _answer(screen: Screen, document: dict[str, object], text: str) -> int:
    if screen.json:
        print_json({"schema_version": 1, **document})
    elif not screen.quiet:
        say(text)
    return ExitCode.OK
