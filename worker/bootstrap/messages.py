"""Messages from the bootstrap: lines on the task's stderr, and JSON lines on the progress pipe."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PROGRESS_FD = "ORCH_PROGRESS_FD"
# {name: number} as JSON: descriptors from the client of the run.
DESCRIPTORS = "ORCH_DESCRIPTORS"


def log(line: str) -> None:
    """Write `orch: <line>` to the task's stderr, after any output of the script that is still buffered."""
    try:
        sys.stdout.flush()
        sys.stderr.write(f"orch: {line}\n")
        sys.stderr.flush()
    except Exception:
        return  # stderr is closed, replaced or missing


def attempt(part: str, action: Callable[[], None]) -> None:
    """Call `action()`. An error is logged: that part of the bootstrap is off, and the script continues."""
    try:
        action()
    except Exception as error:
        log(f"{part} is off in this task: {type(error).__name__}: {error}")


class ProgressPipe:
    """The write end of the task's progress pipe. It never blocks, never fails, and is silent in child processes.
    A script may close it and open a file under the same number, so each write checks that it is the same pipe."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._fd = -1
        text = os.environ.get(PROGRESS_FD, "")
        if not text.isdecimal():
            return
        try:
            found = os.fstat(int(text))
            os.set_inheritable(int(text), False)
            os.set_blocking(int(text), False)
        except (OSError, OverflowError):
            return
        self._fd, self._identity = int(text), (found.st_dev, found.st_ino)

    def phase(self, name: str) -> None:
        """Send the task's current phase."""
        self._send(f'{{"phase":"{name}"}}\n')

    def report(self, **facts: object) -> None:
        """Send facts about this process, such as the fields of Progress in orchestrator/core/state/events.py."""
        import json  # only after TensorFlow, which imports it

        self._send(f"{json.dumps(facts)}\n")

    def stacks(self, number: int | None) -> None:
        """Send the number of the signal that makes this process write its stacks; None if no signal does."""
        self._send(f'{{"stacks":{"null" if number is None else number}}}\n')

    def sigterm_again(self) -> None:
        """Ask the agent to repeat a SIGTERM of the last moments, if it sent one: that one may be lost."""
        self._send('{"sigterm":"again"}\n')

    def _send(self, line: str) -> None:
        if self._fd < 0 or os.getpid() != self._pid:
            return
        try:
            found = os.fstat(self._fd)
            if (found.st_dev, found.st_ino) == self._identity:
                os.write(self._fd, line.encode())
        except OSError:
            return
