"""Runs worker/programs/inspect_host.py beside the agent, which must not wait for it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

_PROGRAM = Path(__file__).parents[1] / "programs" / "inspect_host.py"
_READ_BYTES = 1 << 16
_MOST_BYTES = 4 << 20


class Inspection:
    """At most one running program: it reads a JSON object from stdin and prints one."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        self._out = -1
        self._data = bytearray()

    def serves(self, fd: int) -> bool:
        return fd == self._out

    def start(self, wanted: object) -> None:
        """Start the program, unless it runs already."""
        if self._out >= 0:
            return
        self._data.clear()
        question = os.memfd_create("orch-inspect", os.MFD_CLOEXEC)
        self._out, into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.set_blocking(into, True)
            os.write(question, json.dumps(wanted).encode())
            os.lseek(question, 0, os.SEEK_SET)
            words = [sys.executable, "-I", "-S", str(_PROGRAM)]
            # The agent reaps it as any child, and ends it with everything else.
            process = subprocess.Popen(words, stdin=question, stdout=into, start_new_session=True)
            process.returncode = 0
        finally:
            os.close(question)
            os.close(into)
        self._poller.register(self._out, select.EPOLLIN)

    def read(self) -> dict[str, object] | None:
        """Read what it has printed. Return its answer when it has ended; {"error": text} without a valid one."""
        try:
            data = os.read(self._out, _READ_BYTES)
        except BlockingIOError:
            return None
        if data and len(self._data) < _MOST_BYTES:
            self._data += data
            return None
        self._poller.unregister(self._out)
        os.close(self._out)
        self._out = -1
        try:
            found = json.loads(self._data)
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {"error": "the inspection of the host failed"}
