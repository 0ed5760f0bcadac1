"""Puts the verbs together and turns every error into its sentence on stderr and its exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli import logs, runs, up
from orchestrator.cli.options import Color, JsonOut, Quiet, Screen, Verbose
from orchestrator.cli.words import forget_stdout, say
from orchestrator.errors import ExitCode, OrchError

app = typer.Typer(
    name="orch",
    help="Run TensorFlow on several workers: ports, TF_CONFIG, merged logs, and nothing left behind.",
    epilog="Begin with: orch up --workers 4",
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
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = Screen(json, color, quiet, verbose)


app.command("up", context_settings={"allow_interspersed_args": False})(up.up)
app.command("config", context_settings={"allow_interspersed_args": False})(up.config)
app.command("status")(runs.status)
app.command("ps", hidden=True)(runs.status)
app.command("logs")(logs.logs)
app.command("down")(runs.down)
app.command("wait")(runs.wait)
app.command("ls")(runs.ls)
app.command("attach")(runs.attach)


def main() -> int:
    """Run the command line; its exit code."""
    try:
        code = app(standalone_mode=False)
    except OrchError as error:
        say(str(error))
        return int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        forget_stdout()
        return ExitCode.OK
    except Exception as error:
        # What typer raises for words it does not understand knows how to say so.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", ExitCode.USAGE))
    return int(code or 0)
