"""`orch report`: runs as one HTML file to keep, or as a summary in Markdown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completion import run_words
from orchestrator.cli.parameters import Screen, takes_screen
from orchestrator.cli.selection import sweep
from orchestrator.cli.words import STDOUT, print_json, print_lines, say
from orchestrator.client import api
from orchestrator.client.output_file import write_output
from orchestrator.client.page.document import RunPage
from orchestrator.client.view.output import Output
from orchestrator.core.errors import ExitCode, UsageError

# A report holds what tasks have printed: only its owner may read it.
_MODE = 0o600
_STDOUT = "-"
# Characters of a run's id in the name of its report.
_MOST_CHARACTERS = 200


@takes_screen
def report(
    screen: Screen,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            autocompletion=run_words,
            help="Runs, by id, its beginning, or name. Several are compared. Default: this directory's newest.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it; - for stdout. Default: report-RUN.html.",
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a summary for a pull request instead.")
    ] = False,
) -> int:
    """Write a run as one HTML file: outcome, curves, timeline, logs. Several runs are compared."""
    if open_it and (markdown or output == _STDOUT):
        raise UsageError("--open needs a report in a file; leave --markdown and -o - out")
    found = _found(runs or ())
    target = None if output == _STDOUT or (markdown and output is None) else _target(output, found)
    if target is not None:
        _require_place(target, force)
    pages = [_page(run, screen) for run in found]
    data = _made(pages, markdown)
    if target is None:
        _print(data)
        return ExitCode.OK
    _write(target, data, force)
    if screen.json:
        ids = [run.id for run in found]
        print_json({"schema_version": 1, "report": str(target.absolute()), "bytes": len(data), "runs": ids})
    else:
        print_lines([str(target)])
    if open_it:
        _open(target)
    return ExitCode.OK


def _found(words: Sequence[str]) -> list[api.Run]:
    """Return the runs, each once."""
    there = sweep()
    found = [api.find(word, there=there) for word in words] or [api.find(there=there)]
    return list({run.id: run for run in found}.values())


def _page(run: api.Run, screen: Screen) -> RunPage:
    page = RunPage(run.view)
    page.refresh()
    for remark in () if screen.quiet else run.view.remarks():
        say(f"{run.id}: {remark}")
    return page


def _made(pages: Sequence[RunPage], markdown: bool) -> bytes:
    if markdown:
        from orchestrator.client.page.markdown import markdown as summary

        return summary([page.document() for page in pages]).encode("utf-8", "replace")
    from orchestrator.client.page.report import report_html

    return report_html(pages)


def _target(output: str | None, found: Sequence[api.Run]) -> Path:
    if output is not None:
        return Path(output)
    more = f"-and-{len(found) - 1}-more" if len(found) > 1 else ""
    return Path(f"report-{found[0].id[:_MOST_CHARACTERS]}{more}.html")


def _require_place(target: Path, force: bool) -> None:
    """Refuse a file that cannot be written before the runs are read, which may take seconds."""
    if target.is_dir():
        raise UsageError(f"{target}: is a directory; name a file in it: -o {target / 'report.html'}")
    if os.path.lexists(target):
        if not force:
            raise _exists(target)
        if target.exists() and not target.is_file():
            raise UsageError(f"{target}: is not a regular file; -o FILE names another one")
    elif not target.parent.is_dir():
        raise UsageError(f"{target.parent}: is not a directory; make it, or name another file with -o FILE")


def _write(target: Path, data: bytes, force: bool) -> None:
    try:
        write_output(target, data, mode=_MODE, may_replace=force)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise UsageError(
            f"{target}: cannot be written: {error.strerror or error}; -o FILE names another place"
        ) from error


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target}: exists; --force replaces it, -o FILE names another one")


def _print(data: bytes) -> None:
    out = Output(STDOUT)
    try:
        out.write_all(data)
    finally:
        out.close()


def _open(target: Path) -> None:
    from orchestrator.cli.browser import open_page

    if not open_page(target.absolute().as_uri()):
        say(
            f"no browser was found to open it; open {target.absolute()} in one, or set BROWSER to its command"
        )
