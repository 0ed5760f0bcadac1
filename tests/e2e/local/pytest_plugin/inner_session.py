"""Inner sessions, run with pytest's `pytester`: their directories and their processes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

BASE = "base"


def base_of(pytester: pytest.Pytester) -> str:
    """The option that puts the directories of an inner session below the test's own."""
    return f"--basetemp={pytester.path / BASE}"


def processes_of(directory: Path) -> list[psutil.Process]:
    """The live processes whose state directory is below this directory."""
    mark = os.fsencode(f"XDG_STATE_HOME={directory}/")
    found = []
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if process.pid != os.getpid() and any(line.startswith(mark) for line in environ.split(b"\0")):
            found.append(process)
    return found
