"""Output of orch itself: data on stdout, messages on stderr, each with the colours that its stream supports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from orchestrator.cli.parameters import Screen, color_mode
from orchestrator.client.view.output import Output, wants_colour
from orchestrator.core.errors import UsageError
from orchestrator.core.text.clean import safe_lines

if TYPE_CHECKING:
    from orchestrator.core.state.result import RunResult

STDIN, STDOUT, STDERR = 0, 1, 2


def say(text: str) -> None:
    """Print a message on stderr, without the control sequences of the text that it quotes.

    On a terminal it is wrapped between words."""
    text = safe_lines(text)
    width = width_of(STDERR)
    if width is None:
        say_line(f"orch: {text}")
        return
    from orchestrator.client.view.layout import Cell, wrapped

    head, *others = text.split("\n")
    lines = wrapped(Cell("orch: "), [Cell(head)], width, colour=False, is_limited=False)
    say_line("\n".join([*lines, *others]))


def say_line(text: str) -> None:
    """Print a line on stderr unchanged. A stderr that is closed or full is ignored."""
    try:
        _write(STDERR, text + "\n")
    except OSError:
        return


def print_lines(lines: Iterable[str]) -> None:
    """Print data on stdout. Raises OSError, with the stream's name, unless all of it is written."""
    sys.stdout.flush()
    _write(STDOUT, "".join(f"{line}\n" for line in lines))


def _write(fd: int, text: str) -> None:
    # Python's streams lose text on a descriptor that does not block.
    out = Output(fd)
    try:
        out.write_lines(text.encode("utf-8", "backslashreplace"))
        out.write_all(b"")
    finally:
        out.close()


def print_json(document: Mapping[str, object]) -> None:
    print_lines([json_text(document, indent=1)])


def json_text(document: Mapping[str, object], indent: int | None = None) -> str:
    """Return a document as JSON in which a runner of GitHub Actions finds no command."""
    return json.dumps(document, indent=indent).replace("##[", r"#\u0023[")


def report_end(result: RunResult, screen: Screen) -> None:
    """Print the final report: with --json the document; with --quiet nothing about a success."""
    from orchestrator.client.view.report import end_lines
    from orchestrator.store.files import directory_if_used

    if screen.json:
        print_json(result.model_dump(mode="json"))
    if screen.quiet and result.succeeded:
        return
    lines = end_lines(
        result,
        width_of(STDERR),
        colour=colour_on(screen, STDERR),
        verbose=screen.verbose,
        checkpoints=directory_if_used(result.checkpoint_dir),
    )
    for line in lines:
        say_line(line)
    _annotate(result)


def _annotate(result: RunResult) -> None:
    """In GitHub Actions, show the cause of a failure beside its line of the source."""
    from orchestrator.client.view.report import error_annotation

    out = Output(STDERR)
    try:
        line = error_annotation(result, os.environ) if out.is_read_by_runner else None
        out.write_all(line or b"")
    except OSError:
        return
    finally:
        out.close()


def colour_on(screen: Screen, fd: int = STDOUT) -> bool:
    return wants_colour(color_mode(screen), fd, os.environ)


def width_of(fd: int = STDOUT) -> int | None:
    """Return the columns of the terminal `fd`, None if it is not a terminal, where lines are not cut."""
    if not os.isatty(fd):
        return None
    return os.get_terminal_size(fd).columns or 80


def forget_streams() -> None:
    """Redirect stdout and stderr to /dev/null after a write has failed, so that flushing at exit does not fail, too."""
    for fd in (STDOUT, STDERR):
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def open_missing_streams() -> None:
    """Open descriptors 0 to 2 if the caller has closed them (`>&-`), so that no file opened later becomes stdout.

    UsageError without /dev/null.
    """
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
            os.set_inheritable(fd, True)
    except OSError as error:
        raise UsageError(
            f"{os.devnull} cannot be opened ({error.strerror}), and every process of a run needs it;"
            f" as root: mknod -m 666 {os.devnull} c 1 3"
        ) from error
    os.close(fd)
    sys.stdout = sys.stdout or open(STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or open(STDERR, "w", closefd=False)
