"""The client's end of the connection between a client and its supervisor; client_link.py is the other end.

Imports little: `orch up` starts the supervisor first, so that the supervisor imports its modules and starts its agent
while the client still reads settings.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core import errors
from orchestrator.core.errors import EngineError, ExitCode, OrchError
from orchestrator.host.isolation import isolated
from worker.wire.codec import decoder, encode

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec
    from orchestrator.core.state.result import RunResult
    from orchestrator.links.client_link import ClientOrder, First, HostReport, Request
    from worker.wire.checks import Question

_READ_BYTES = 1 << 16
_START_TIMEOUT_S = 60.0
# The supervisor ends the agents of a job that was prepared and not requested within this time.
_LEAVE_S = 10.0
_ENDED, _REFUSED = b'{"ended": ', b'{"refused": '
_REFUSALS: dict[int, type[OrchError]] = {
    ExitCode.USAGE: errors.UsageError,
    ExitCode.NAME_TAKEN: errors.NameTaken,
}


class SupervisorLeft(EngineError):
    """The supervisor exited without an answer."""


def _start_process(door: int) -> subprocess.Popen[bytes]:
    argv = isolated("orchestrator.supervisor", str(door))
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(door,), start_new_session=True)


class SupervisorProcess:
    """A supervisor that this process has started. It takes one connection a run, and ends with close() or with this
    process."""

    def __init__(self, start: Callable[[int], subprocess.Popen[bytes]] = _start_process) -> None:
        """`start` starts the process with its end of the door. EngineError if that fails."""
        self._door, its = socket.socketpair()
        with its:
            try:
                self._process = start(its.fileno())
            except OSError as error:
                self._door.close()
                raise EngineError(f"the supervisor could not be started: {error}") from error

    @property
    def has_exited(self) -> bool:
        return self._process.poll() is not None

    def connect(self) -> socket.socket:
        """Return a connection for a run. The supervisor reads from it when its last run has ended."""
        ours, its = socket.socketpair()
        with its, suppress(OSError):  # it has just exited: the end of the connection says so
            socket.send_fds(self._door, [b"\n"], [its.fileno()])
        return ours

    def close(self) -> None:
        """Let the supervisor exit after its run. Idempotent."""
        # A forked process may have the socket, too.
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its exit; False on a timeout."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


class SupervisorLink:
    """A connection to a supervisor, for one run. close(), or leaving the `with`, closes it.

    `process`: a supervisor that was started for this run only. `replace` returns another connection if a kept
    supervisor exits before it has received the request.
    """

    def __init__(
        self,
        stream: socket.socket,
        process: SupervisorProcess | None = None,
        replace: Callable[[], SupervisorLink] | None = None,
    ) -> None:
        self._stream = stream
        self._process = process
        self._replace = replace
        self._has_sent = False
        self._is_prepared = False
        self._may_stay = False
        self._received = b""

    def __enter__(self) -> SupervisorLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_own(self) -> bool:
        """Whether the supervisor was started for this run only."""
        return self._process is not None

    def keep(self, replace: Callable[[], SupervisorLink]) -> SupervisorProcess | None:
        """Return the supervisor of this run, which stays for other runs of this process."""
        process, self._process, self._replace = self._process, None, replace
        return process

    def fileno(self) -> int:
        return self._stream.fileno()

    def prepare(self, spec: JobSpec, run_id: str | None = None, *, preloads: bool = True) -> None:
        """Start the agents of a job on other hosts. host_reports() returns their facts. create() with the same job
        takes them; close() ends them.

        `run_id`: of a run that exists already. `preloads`: whether they import the modules of the tasks."""
        from orchestrator.links.client_link import Preparation, pack_environ

        self._is_prepared = True
        environ = pack_environ(os.environ)
        self.send(Preparation(spec=spec, environ=environ, run_id=run_id, preloads=preloads))

    def ask_hosts(self, questions: Mapping[str, Question]) -> Mapping[str, HostReport]:
        """Ask the hosts that were prepared, by their names, and wait for the answers. EngineError."""
        from orchestrator.links.client_link import HostQuestions

        lines = {host: encode(question).decode() for host, question in questions.items()}
        self.send(HostQuestions(questions=lines))
        return self.host_reports()

    def host_reports(self) -> Mapping[str, HostReport]:
        """Wait until each host has answered or is lost, and return the reports. EngineError."""
        from orchestrator.links.client_link import HostReports

        self._stream.settimeout(None)
        if (line := self._read_answer()) is None:
            raise SupervisorLeft("the supervisor has ended during the check of the hosts")
        reports: HostReports = decoder(HostReports)(_accepted(line))
        return reports.reports

    def create(self, request: Request, descriptors: Sequence[int] = ()) -> Path:
        """Return the directory of the new run; raise the error with which the supervisor refuses the request.

        `descriptors` are those that the request names, in its order. The caller keeps them."""
        self._is_prepared = False
        self._may_stay = request.warm is not None
        if self._process is not None:
            self._process.close()
        self.send(request, descriptors)
        self._stream.settimeout(_START_TIMEOUT_S)
        line = self._read_answer()
        if line is None and self._replace is not None:
            other = self._replace()
            self._stream.close()
            self._stream, self._process, self._replace = other._stream, other._process, None
            self._received = b""
            return self.create(request, descriptors)
        return Path(json.loads(_accepted(line))["created"])

    def _read_answer(self) -> bytes | None:
        """Return the first line; None if the supervisor has left."""
        while b"\n" not in self._received:
            try:
                data = self._stream.recv(_READ_BYTES)
            except TimeoutError as error:
                raise EngineError(f"the supervisor did not answer within {_START_TIMEOUT_S:g} s") from error
            except ConnectionError:
                data = b""  # it was killed before it read the request
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def send(self, message: First | ClientOrder, descriptors: Sequence[int] = ()) -> None:
        """Send a message. It is not an error if the supervisor has just exited."""
        self._has_sent = True
        text = message.model_dump_json().encode() + b"\n"
        with suppress(OSError):
            self._stream.setblocking(True)
            sent = socket.send_fds(self._stream, [text], descriptors) if descriptors else 0
            self._stream.sendall(text[sent:])

    def detach(self) -> None:
        """Let the run continue when this connection is closed."""
        from orchestrator.links.orders import DetachOrder

        self.send(DetachOrder())

    def has_left(self) -> bool:
        """Whether the supervisor has closed its end: the run is over. Does not block."""
        # A socket with a timeout waits for data despite MSG_DONTWAIT, and create() may have been interrupted.
        self._stream.setblocking(False)
        try:
            while data := self._stream.recv(_READ_BYTES):
                self._received += data
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def received_result(self) -> RunResult | None:
        """The result that the supervisor sent because it could not write result.json; None otherwise."""
        from orchestrator.core.state.result import RunResult

        lines = [line for line in self._received.split(b"\n") if line.startswith(_ENDED)]
        return RunResult.model_validate(json.loads(lines[-1])["ended"]) if lines else None

    def close(self) -> None:
        """Close the connection, which stops a foreground run. Reap the supervisor if it leaves. Idempotent.

        A supervisor that has received nothing is killed. If it has only prepared a job, it first ends the agents.
        """
        if self._stream.fileno() < 0:
            return
        left = self.has_left()
        self._stream.close()
        if self._process is None:
            return
        self._process.close()
        if not self._has_sent:
            # It has nothing to stop, and would still import all its modules. Its agent ends by itself.
            self._process.kill()
        if self._is_prepared:
            self._process.wait(_LEAVE_S)
        elif (left and not self._may_stay) or not self._has_sent:
            self._process.wait()

    def leave(self, timeout_s: float) -> bool:
        """Stop the run as close() does, and wait until it is over; False on a timeout."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the run is over, and until a supervisor that was started for it has exited; False on a timeout."""
        if self._process is not None:
            return self._process.wait(timeout_s)
        until = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._stream, select.POLLIN)
        while not self.has_left():
            poller.poll(max(0.0, until - time.monotonic()) * 1000)
            if time.monotonic() >= until:
                return self.has_left()
        return True


def _accepted(line: bytes | None) -> bytes:
    """Return the line of an answer. Raise the supervisor's refusal, or SupervisorLeft without a line."""
    if line is None:
        raise SupervisorLeft("the supervisor exited at once; see its output above")
    if line.startswith(_REFUSED):
        refused = json.loads(line)["refused"]
        raise _REFUSALS.get(refused["exit_code"], EngineError)(refused["message"])
    return line


def start_supervisor() -> SupervisorLink:
    """Start a supervisor for one run. EngineError if the process cannot be started."""
    process = SupervisorProcess()
    return SupervisorLink(process.connect(), process)
