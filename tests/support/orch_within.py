"""Runs an `orch` command in this process, which saves the imports of a new one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from orchestrator.cli.app import main


def run_within(words: Sequence[str], directory: Path, environ: dict[str, str], traces: Path) -> int:
    """Return the exit code; stdout and stderr go to `traces` with `.out` and `.err`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(directory))
        stack.enter_context(variables(environ))
        for number, suffix in ((1, ".out"), (2, ".err")):
            stack.enter_context(_stream(number, traces.with_suffix(suffix)))
        argv, sys.argv = sys.argv, ["orch", *words]
        stack.callback(setattr, sys, "argv", argv)
        return main()


def variables(environ: dict[str, str]) -> contextlib.AbstractContextManager[object]:
    """Replace the environment of this process within the block."""
    return patch.dict(os.environ, environ, clear=True)


@contextlib.contextmanager
def _stream(number: int, path: Path) -> Iterator[None]:
    """Redirect the descriptor and Python's stream to the file."""
    name = {1: "stdout", 2: "stderr"}[number]
    stream, kept = getattr(sys, name), os.dup(number)
    stream.flush()
    with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
        os.dup2(file.fileno(), number)
        setattr(sys, name, file)
        try:
            yield
        finally:
            setattr(sys, name, stream)
            os.dup2(kept, number)
            os.close(kept)
