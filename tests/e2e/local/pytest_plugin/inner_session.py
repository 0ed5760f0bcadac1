"""Inner pytest sessions in processes of their own: their directories, their output and their processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) test_inner\.py::(\w+(?:\[\S+\])?)", re.MULTILINE)


@dataclass(frozen=True)
class Inner:
    """A finished session whose tests are in test_inner.py."""

    directory: Path
    code: int
    out: str

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each test: PASSED, FAILED or ERROR. Needs `-rA`."""
        return {name: outcome for outcome, name in _OUTCOME.findall(self.out)}

    def part(self, start: str, end: str) -> str:
        """The output after a text and before the next one."""
        assert start in self.out, self.out
        return self.out.partition(start)[2].partition(end)[0]


def base_of(directory: Path) -> Path:
    """Where a session in this directory keeps what its tests write."""
    return directory / "base"


@contextmanager
def session(directory: Path, text: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a test file in an inner session, which is killed at the end of the block."""
    (directory / "test_inner.py").write_text(text)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={base_of(directory)}"]
    # 80 columns: pytest's own summary cuts a line there.
    env = {**os.environ, "COLUMNS": "80"}
    with subprocess.Popen(
        [*argv, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env=env,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def finished(directory: Path, text: str, *words: str) -> Inner:
    with session(directory, text, "-p", "no:xdist", "-rA", *words) as started:
        out, _ = started.communicate()
    return Inner(directory, started.returncode, out)


def processes_of(directory: Path) -> list[psutil.Process]:
    """The live processes that inner sessions in this directory have started."""
    mark = os.fsencode(f"XDG_STATE_HOME={base_of(directory)}/")
    found = []
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if any(line.startswith(mark) for line in environ.split(b"\0")):
            found.append(process)
    return found
