"""What `orch down` and `orch wait` do."""

from __future__ import annotations

from orchestrator import api
from orchestrator.cli import words
from orchestrator.cli.end_report import report_end
from orchestrator.cli.options import Screen
from orchestrator.cli.sweep import sweep
from orchestrator.configuration.durations import parse_duration
from orchestrator.errors import ExitCode, NoSuchRun, UsageError


def end_run(wanted: str | None, force: bool, screen: Screen) -> int:
    """Idempotent: where nothing runs there is nothing to do, and that is said."""
    try:
        run = api.find(wanted)
    except NoSuchRun:
        if wanted is not None:
            raise
        sweep()
        return _nothing_runs(screen)
    ended = run.down(force)
    sweep()
    if screen.json:
        words.print_json(
            {"schema_version": 1, "run": ended.run_id, "ended": list(ended.tasks), "swept": ended.swept}
        )
    elif not screen.quiet:
        words.say(_in_words(ended))
    return ExitCode.OK


def _nothing_runs(screen: Screen) -> int:
    if screen.json:
        words.print_json({"schema_version": 1, "run": None, "ended": [], "swept": 0})
    elif not screen.quiet:
        words.say("nothing runs here")
    return ExitCode.OK


def _in_words(ended: api.Ended) -> str:
    if ended.tasks:
        return f"{ended.run_id}: ended {', '.join(ended.tasks)}; nothing is left"
    if ended.swept:
        return f"{ended.run_id}: was lost; ended {ended.swept} left over, nothing is left"
    return f"{ended.run_id}: nothing was running, nothing is left"


def wait_for(wanted: str | None, timeout: str | None, screen: Screen) -> int:
    sweep()
    run = api.find(wanted)
    try:
        result = run.wait(_seconds(timeout), check=False)
    except TimeoutError as error:
        words.say(str(error))
        return ExitCode.TIMED_OUT
    report_end(result, screen)
    return result.exit_code


def _seconds(timeout: str | None) -> float | None:
    if timeout is None:
        return None
    try:
        return parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from error
