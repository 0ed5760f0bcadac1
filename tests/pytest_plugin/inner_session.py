"""Sessions that a test runs with pytest's own tester: where they keep their files, and what lives of them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

BASE = "base"


def base_of(pytester: pytest.Pytester) -> str:
    """The option by which an inner session keeps its directories where the test looks for them."""
    return f"--basetemp={pytester.path / BASE}"


def processes_of(directory: Path) -> list[psutil.Process]:
    """All that live with a state directory below this one."""
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
