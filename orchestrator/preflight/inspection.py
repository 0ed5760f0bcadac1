"""Connections to the hosts of a job, and questions to the program that runs at their other end."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import select
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from orchestrator.core.errors import EngineError
from orchestrator.core.job.hosts import Host
from orchestrator.engines import Connection, Engine
from orchestrator.links.opening import remote_command
from orchestrator.links.start_queue import StartQueue
from orchestrator.preflight.answers import Answers, HostReport, Identity

_PROGRAM = "programs/inspect_host.py"
# As in that program: text before it on a line, and lines without it, come from a login file.
_MARKER = b"orch-host "
_READ_BYTES = 1 << 16
_ENDLESS = "it prints without end; correct what its login files (.bashrc) do without a terminal"
_LONGEST_ANSWER_BYTES = 4 << 20
_KEPT_TEXT_BYTES = 4096
# For the answers to one round of questions. The slowest asks a Python for its packages, on a network file system.
_ANSWER_S = 60.0


class Inspections:
    """A connection to each host, for the length of a `with` block. `reports` has what is known of each, in order."""

    def __init__(
        self, engine: Engine, hosts: Sequence[Host], python: str, starts: StartQueue | None = None
    ) -> None:
        self._engine = engine
        self._open: dict[str, _Inspection] = {}
        # The hosts that are to answer, and until when (monotonic seconds).
        self._waiting: dict[str, float] = {}
        self._hosts: dict[int, str] = {}
        self._poller = select.poll()
        self._starts = starts or StartQueue()
        self.reports: dict[str, HostReport] = {host.name: HostReport(host) for host in hosts}
        try:
            program = _one_line(_program_text())
            for host in hosts:
                self._waiting[host.name] = math.inf
                self._starts.enter(host.name, partial(self._connect, host, python, program), time.monotonic())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections. The program at the other end exits when its input ends. After an interrupt, a host that
        has not answered yet may be silent: it is not waited for."""
        for host, inspection in self._open.items():
            inspection.connection.close()
            if host in self._waiting:
                inspection.connection.kill()
        deadline = time.monotonic() + self._engine.leave_s
        for inspection in self._open.values():
            inspection.connection.wait(max(deadline - time.monotonic(), 0))
            inspection.connection.kill()
            inspection.errors.close()
        self._open.clear()

    def ask(self, host: str, question: Mapping[str, Any]) -> None:
        """Send a question, unless the host is lost already."""
        if host in self._open and question:
            self._send(host, json.dumps(question).encode() + b"\n")

    def await_answers(self) -> None:
        """Wait until each host that was asked has answered, or is lost."""
        while self._waiting:
            due = min((*self._waiting.values(), self._starts.due or math.inf))
            for fd, _ in self._poller.poll(max(0.0, due - time.monotonic()) * 1000):
                self._read(self._hosts[fd])
            now = time.monotonic()
            self._starts.advance(now)
            for host in [host for host, until in self._waiting.items() if until <= now]:
                printed = self._open[host].printed()
                name = self.reports[host].host.destination
                self._lose(host, self._engine.explain_silence(name, _ANSWER_S, printed))

    def _connect(self, host: Host, python: str, program: bytes) -> None:
        errors = tempfile.TemporaryFile()
        try:
            connection = self._engine.connect(host.destination, [remote_command(python)], errors.fileno())
        except EngineError as error:
            errors.close()
            self.reports[host.name] = HostReport(host, str(error))
            self._stop_waiting(host.name)
            return
        self._open[host.name] = _Inspection(connection, errors)
        self._send(host.name, program)

    def _send(self, host: str, data: bytes) -> None:
        stream = self._open[host].connection.stream
        self._waiting[host] = time.monotonic() + _ANSWER_S
        self._hosts[stream.fileno()] = host
        self._poller.register(stream, select.POLLIN)
        try:
            stream.sendall(data)
        except OSError:
            pass  # what it has printed before says why: see _read

    def _stop_waiting(self, host: str) -> None:
        if self._waiting.pop(host, None) is not None and host in self._open:
            self._poller.unregister(self._open[host].connection.stream)
        self._starts.leave(host, time.monotonic())

    def _read(self, host: str) -> None:
        inspection = self._open[host]
        try:
            data = inspection.connection.stream.recv(_READ_BYTES)
        except OSError:
            data = b""
        line = inspection.feed(data)
        if line is not None:
            self._stop_waiting(host)
            self._take(host, line)
        elif inspection.is_too_long:
            self._lose(host, f"{host}: {_ENDLESS}")
        elif not data:
            self._stop_waiting(host)
            self._lose(host, self._reason(host))

    def _take(self, host: str, line: bytes) -> None:
        report = self.reports[host]
        try:
            if report.identity is None:
                self.reports[host] = replace(report, identity=Identity.model_validate_json(line))
            else:
                known = report.answers.model_dump(exclude_unset=True)
                new = Answers.model_validate_json(line).model_dump(exclude_unset=True)
                self.reports[host] = replace(report, answers=Answers.model_validate(known | new))
        except ValidationError:
            self._lose(host, f"{host}: its answer cannot be read; a login file there may write to it")

    def _reason(self, host: str) -> str:
        inspection = self._open[host]
        inspection.connection.close()
        code = (
            inspection.connection.process.returncode
            if inspection.connection.wait(self._engine.leave_s)
            else None
        )
        said = inspection.printed(), inspection.connection.messages()
        return self._engine.explain(self.reports[host].host.destination, code, *said)

    def _lose(self, host: str, reason: str) -> None:
        self._stop_waiting(host)
        inspection = self._open.pop(host)
        inspection.connection.close()
        inspection.connection.kill()
        inspection.errors.close()
        self.reports[host] = replace(self.reports[host], error=reason)


class _Inspection:
    """A connection and the bytes that have arrived over it."""

    def __init__(self, connection: Connection, errors: Any) -> None:
        self.connection = connection
        self.errors = errors
        self._received = b""
        self._other = b""
        # Bytes since the last answer.
        self._unanswered_bytes = 0

    @property
    def is_too_long(self) -> bool:
        return self._unanswered_bytes > _LONGEST_ANSWER_BYTES

    def feed(self, data: bytes) -> bytes | None:
        """Return the next answer once it is complete. Only one is expected at a time."""
        self._unanswered_bytes += len(data)
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            before, marker, answer = line.partition(_MARKER)
            if marker:
                self._unanswered_bytes = 0
                return answer
            self._keep(before + b"\n")
        return None

    def printed(self) -> str:
        """The end of what the host has printed beside answers, and of ssh's own stderr."""
        self._keep(self._received)
        size = os.fstat(self.errors.fileno()).st_size
        errors = os.pread(self.errors.fileno(), _KEPT_TEXT_BYTES, max(size - _KEPT_TEXT_BYTES, 0))
        return (self._other + b"\n" + errors).decode(errors="replace")

    def _keep(self, text: bytes) -> None:
        self._other = (self._other + text)[-_KEPT_TEXT_BYTES:]


def _program_text() -> str:
    package = importlib.util.find_spec("worker")
    if package is None or package.origin is None:
        raise EngineError("the package `worker` of orch is not installed; install orch again")
    return (Path(package.origin).parent / _PROGRAM).read_text()


def _one_line(program: str) -> bytes:
    """A line of Python that runs the program; remote_command() reads one line."""
    return f"exec({program!a})\n".encode()
