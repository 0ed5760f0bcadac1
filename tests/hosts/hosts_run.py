"""A run of `orch up` on n0 with tasks on the other machines, and a program whose output shows what was lost."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import Testbed
from waiting import PATIENCE_S, until

# Prints numbered lines until a file exists that all machines see.
COUNT = """
import itertools, pathlib, sys, time
end = pathlib.Path(sys.argv[1])
for number in itertools.count():
    if end.exists():
        break
    print("line", number, flush=True)
    time.sleep(0.01)
print("last", number, flush=True)
"""


@dataclass
class HostsRun:
    """An `orch up` on n0 with tasks on the other machines."""

    machines: Testbed
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def directory(self) -> Path:
        (run,) = (self.machines["n0"].home / ".local/state/orch/runs").glob("[!.]*")
        return run

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.directory / "events.jsonl"
        *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
        return [event for event in map(json.loads, lines) if event["type"] == kind]

    def until_event(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for an event; fails if the run ends before."""
        until(lambda: self.process.poll() is not None or len(self._found(kind)) >= count)
        found = self._found(kind)
        assert len(found) >= count, self.text
        return found[count - 1]

    def finish(self) -> dict[str, Any]:
        """Wait for the end, and return the result."""
        self.process.wait(PATIENCE_S)
        document = json.loads((self.directory / "result.json").read_text())
        assert isinstance(document, dict)
        assert document["exit_code"] == self.process.returncode, self.text
        return document

    def log(self, task: str) -> str:
        return (self.directory / "logs" / f"{task.replace(':', '-')}.log").read_text()

    def _found(self, kind: str) -> list[dict[str, Any]]:
        try:
            return self.events(kind)
        except ValueError:
            return []  # the run has no directory yet


def _numbers(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith(("line ", "last "))]


def is_whole(log: str) -> bool:
    """Whether a log of COUNT has all lines."""
    *lines, last = _numbers(log)
    return lines == [f"line {number}" for number in range(len(lines))] and last == f"last {len(lines)}"
