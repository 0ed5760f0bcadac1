"""`orch example`: lists the examples of orch, or writes one with what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.parameters import Screen, takes_screen
from orchestrator.cli.words import print_json, print_lines, say
from orchestrator.core.errors import ExitCode, UsageError
from orchestrator.core.text.nearest import did_you_mean
from orchestrator.request.command.examples import SHARED, examples_directory, summaries


@takes_screen
def example(
    screen: Screen,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Which one. Without it, all are listed.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Default: NAME.py in this directory.", show_default=False
        ),
    ] = None,
) -> int:
    """List the example scripts, or write one, with the files that it needs, to edit and run."""
    known = summaries()
    if name is None:
        if screen.json:
            print_json({"schema_version": 1, "examples": known})
        else:
            width = max(map(len, known))
            print_lines(f"{each:{width}}  {summary}" for each, summary in known.items())
        return ExitCode.OK
    name = name.removesuffix(".py").replace("_", "-")
    if name not in known:
        raise UsageError(f'"{name}" is no example; {did_you_mean(name, known, "`orch example` lists them")}')
    script = f"{name.replace('-', '_')}.py"
    target = output or Path(script)
    if target.name in SHARED:
        raise UsageError(f"-o {target}: the example needs its own {target.name} there; choose another name")
    files = {target: script, **{target.parent / shared: shared for shared in SHARED}}
    contents = {path: (examples_directory() / source).read_bytes() for path, source in files.items()}
    try:
        missing = {path: data for path, data in contents.items() if not _has(path, data)}
        for path, data in missing.items():
            with path.open("xb") as file:
                file.write(data)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
    say(f"wrote {', '.join(map(str, contents))}; run it: orch up --workers 2 -- {target}")
    return ExitCode.OK


def _has(path: Path, data: bytes) -> bool:
    """Return whether the file is there already. UsageError if it differs, OSError."""
    if not path.exists():
        return False
    if path.read_bytes() != data:
        raise UsageError(f"{path} exists and differs; move it, or name another file with -o")
    return True
