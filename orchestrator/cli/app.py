"""The command `orch`: its verbs, and the message and exit code of every error.

To add a verb, write its function in a module beside this one and name it in `_Orch.verbs`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.lazy_verbs import LazyVerb, VerbGroup
from orchestrator.cli.own_words import hide_env_values
from orchestrator.cli.parameters import AsRootAnyway, Color, JsonOut, Quiet, Verbose, screen_of
from orchestrator.cli.words import forget_streams, open_missing_streams, say
from orchestrator.core.errors import ExitCode, OrchError, UsageError
from orchestrator.store.ownership import forget_accepted_owners

# Options after the first word of a command belong to that command.
_COMMAND_LAST = {"allow_interspersed_args": False}


class _Orch(VerbGroup):
    """For each verb: its name, its module and function below orchestrator.cli, and its line in `orch --help`."""

    verbs = (
        LazyVerb("up", "up.up", "Start a cluster and follow it to its end.", settings=_COMMAND_LAST),
        LazyVerb(
            "config",
            "up.config",
            "Show what `orch up` would start, and start nothing.",
            settings=_COMMAND_LAST,
        ),
        LazyVerb("status", "runs.status", "Show a run: one row a task."),
        LazyVerb("ps", "runs.status", "The same as status.", hidden=True),
        LazyVerb("logs", "logs.logs", "Print a run's merged logs, also after its end."),
        LazyVerb("down", "control.down", "Stop a run and say what was ended."),
        LazyVerb("kill", "control.kill", "Send a signal to a task and all its processes."),
        LazyVerb("restart", "control.restart", "Restart all tasks of a live run."),
        LazyVerb("notice", "control.notice", "Let a live run save its state and end: its machine will go."),
        LazyVerb("stacks", "stacks.stacks", "Show what each task is doing now."),
        LazyVerb("wait", "control.wait", "Wait for a run's end; its exit code becomes this command's."),
        LazyVerb("ls", "runs.ls", "List the runs of this directory with exit code, duration and loss."),
        LazyVerb("history", "runs.history", "Print progress, CPU and memory over time, as CSV or JSON."),
        LazyVerb("report", "report.report", "Write a run as one HTML file; several runs are compared."),
        LazyVerb("ui", "ui.ui", "Serve the page of all your runs on this machine."),
        LazyVerb(
            "export",
            "export.export",
            "Render the job for Slurm or Kubernetes, and start nothing.",
        ),
        LazyVerb("example", "example.example", "List the example scripts, or write one to edit."),
        LazyVerb("attach", "attach.attach", "Watch a live run; q or Ctrl-C leaves, and the run continues."),
        LazyVerb("prune", "prune.prune", "Remove ended runs by age, count or size."),
        LazyVerb("warm", "warm.warm", "List or end the processes that wait for the next run."),
        LazyVerb("doctor", "doctor.doctor", "Check this machine for known problems."),
    )


app = typer.Typer(
    name="orch",
    cls=_Orch,
    help="Run TensorFlow on several workers: ports, TF_CONFIG, merged logs, and nothing left behind.",
    epilog="Start with: orch up --workers 4",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("tf-orch")
        except PackageNotFoundError:
            number = "unknown"
        typer.echo(f"orch {number}")
        raise typer.Exit


@app.callback()
def orch(
    context: typer.Context,
    json: JsonOut = False,
    color: Color = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_root_anyway: AsRootAnyway = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    _require_directory()
    _require_proc()
    context.obj = screen_of(context, json, color, quiet, verbose, as_root_anyway)


def _require_directory() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory does not exist any more; change to another one") from None


def _require_proc() -> None:
    """Refuse to run without /proc, and with the /proc of another PID namespace."""
    try:
        is_own = Path("/proc/self").readlink().name == str(os.getpid())
        reason = "" if is_own else "is that of another PID namespace"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    if reason:
        raise UsageError(
            f"/proc {reason}; orch needs it to identify processes. Mount it as root, where orch runs:"
            " mount -t proc proc /proc"
        )


def main() -> int:
    """Run the command line in a process that continues, and return the exit code. It leaves no trace in the process:
    signal handlers are as before, and --as-root-anyway is forgotten."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        return run_to_exit()
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        forget_accepted_owners()


def run_to_exit() -> int:
    """Run the command line in a process that exits next. `up` leaves stop signals ignored, to keep its exit code."""
    hide_env_values()
    try:
        open_missing_streams()
        code = app(standalone_mode=False)
    except OrchError as error:
        say(str(error))
        return int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        forget_streams()
        return ExitCode.OK
    except Exception as error:
        return _report(error)
    return int(code or 0)


def _report(error: Exception) -> int:
    """Show an error of typer's, an OSError, or a traceback for a fault in orch itself. Return the exit code."""
    show = getattr(error, "show", None)
    if show is not None:
        try:
            show()
        except OSError:
            forget_streams()
        return int(getattr(error, "exit_code", ExitCode.USAGE))
    if isinstance(error, OSError) and error.strerror:
        say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        return ExitCode.ORCH
    import traceback

    say("a fault in orch itself; please report it with these lines\n" + traceback.format_exc().rstrip())
    return ExitCode.ORCH
