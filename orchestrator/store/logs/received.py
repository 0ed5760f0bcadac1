"""Writes the logs that another host sends into the files of the run, where the log store finds them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from orchestrator.store.directory import Directory


class ForgedLog(ValueError):
    """A host sends bytes for a log that it does not have, or not where the log ends."""


@dataclass
class _Received:
    """An open log. `base`: its size before this host wrote to it. `length`: bytes that this host has sent."""

    fd: int
    base: int
    length: int = 0
    has_failed: bool = False


class ReceivedLogs:
    """The logs of the tasks on one host, for one session with it. Paths come from the plan, never from the host."""

    def __init__(self, directory: Directory) -> None:
        """`directory`: of the run's logs, which the caller closes."""
        self._directory = directory
        self._logs: dict[str, _Received] = {}

    def add(self, task: str, name: str) -> None:
        """Expect a log, which is appended to the file `name`. A second call changes nothing. OSError."""
        if task not in self._logs:
            fd = self._directory.open_private(name, os.O_RDWR)
            self._logs[task] = _Received(fd, os.fstat(fd).st_size)

    def write(self, task: str, offset: int, data: bytes, is_cut: bool = False) -> None:
        """Write bytes at their offset in the host's file; repeated bytes are skipped. `is_cut`: the file was cut there.

        ForgedLog for an unknown task or a gap. OSError once if a log cannot be written; the rest of it is dropped.
        """
        log = self._logs.get(task)
        if log is None:
            raise ForgedLog(f"the host sends a log of {task!r:.80}, which it does not run")
        if offset > log.length:
            raise ForgedLog(f"the host sends byte {offset} of the log of {task}, which has {log.length}")
        if log.has_failed:
            return
        try:
            if is_cut:
                os.ftruncate(log.fd, log.base + offset)
                log.length = offset
            new = memoryview(data)[log.length - offset :]
            while new:
                written = os.pwrite(log.fd, new, log.base + log.length)
                log.length += written
                new = new[written:]
        except OSError:
            log.has_failed = True
            raise

    def close(self) -> None:
        for log in self._logs.values():
            os.close(log.fd)
        self._logs.clear()
