"""The client's end of the stream between a client and its supervisor; ClientLink is the other end.

Imports little: `orch up` starts the supervisor first, so that the supervisor imports its modules and starts its agent
while the client still reads settings.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core import errors
from orchestrator.core.errors import EngineError, ExitCode, OrchError
from orchestrator.host.isolation import isolated

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec
    from orchestrator.core.state.result import RunResult
    from orchestrator.links.client_link import PlaceOrder, QueuedOrder, RefusedOrder, Request
    from orchestrator.links.control import NoticeOrder, StopOrder

_READ_BYTES = 1 << 16
_START_TIMEOUT_S = 60.0
# The supervisor ends the agents of a job that was prepared and not requested within this time.
_LEAVE_S = 10.0
_ENDED = b'{"ended": '
_STAYS = b'{"stays": '
_REFUSALS: dict[int, type[OrchError]] = {
    ExitCode.USAGE: errors.UsageError,
    ExitCode.NAME_TAKEN: errors.NameTaken,
}


class SupervisorLeft(EngineError):
    """The supervisor exited without an answer."""


class SupervisorLink:
    """The stream to a supervisor, and its process. close(), or leaving the `with`, closes the stream.

    The process is None for a warm holder, which another client has started.
    """

    def __init__(self, process: subprocess.Popen[bytes] | None, stream: socket.socket) -> None:
        self._process = process
        self._stream = stream
        self._has_sent = False
        self._is_prepared = False
        self._was_refused = False
        self._received = b""

    def __enter__(self) -> SupervisorLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_warm(self) -> bool:
        """Whether another client has started the supervisor."""
        return self._process is None

    def restart(self) -> None:
        """Close the stream, and start another supervisor in place of this one. EngineError."""
        self.close()
        self._process, self._stream = _start()
        self._has_sent = False

    @property
    def was_refused(self) -> bool:
        """True if the last request was refused, so that no run exists for it.

        After any other error of create() a run may exist, and its answer would be read as the next request's.
        """
        return self._was_refused

    def fileno(self) -> int:
        return self._stream.fileno()

    def prepare(self, spec: JobSpec, run_id: str | None = None) -> None:
        """Let the agents of a job on other hosts start. create() with the same job takes them; close() ends them.

        `run_id`: of a run that exists already."""
        from orchestrator.links.client_link import Preparation

        self._is_prepared = True
        self._send(Preparation(prepare=spec, run_id=run_id).model_dump_json().encode())

    def create(self, request: Request, descriptors: Sequence[int] = ()) -> Path:
        """Return the directory of the new run; raise the error with which the supervisor refuses the request.

        `descriptors` are those that the request names, in its order. The caller keeps them."""
        self._was_refused = self._is_prepared = False
        self._received = b""
        self._send(request.model_dump_json().encode(), descriptors)
        self._stream.settimeout(_START_TIMEOUT_S)
        try:
            line, self._received = _read_answer(self._stream)
        except TimeoutError as error:
            raise EngineError(f"the supervisor did not answer within {_START_TIMEOUT_S:g} s") from error
        self._stream.setblocking(False)
        if not line:
            if self._process is None:
                raise SupervisorLeft("the supervisor that was kept warm has just exited")
            code = self._process.wait()
            raise SupervisorLeft(f"the supervisor exited at once with code {code}; see its output above")
        answer = json.loads(line)
        if "refused" in answer:
            refused = answer["refused"]
            self._was_refused = True
            raise _REFUSALS.get(refused["exit_code"], EngineError)(refused["message"])
        return Path(answer["created"])

    def send(self, order: StopOrder | NoticeOrder | QueuedOrder | PlaceOrder | RefusedOrder) -> None:
        """Send an order. It is not an error if the supervisor has just exited."""
        self._send(order.model_dump_json().encode())

    def detach(self) -> None:
        """Let the run continue when this stream is closed."""
        from orchestrator.links.control import DetachOrder

        self._send(DetachOrder().model_dump_json().encode())

    def has_left(self) -> bool:
        """Whether the supervisor has closed its end. Does not block."""
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
        """Close the stream, which stops a foreground run. Reap the supervisor if it leaves. Idempotent.

        A supervisor that has received nothing is killed. If it has only prepared a job, it first ends the agents.
        """
        if self._stream.fileno() < 0:
            return
        left = self.has_left()
        self._stream.close()
        if self._process is None:
            return
        if not self._has_sent:
            # It has nothing to stop, and would still import all its modules. Its agent ends by itself.
            self._process.kill()
        stays = self._received.startswith(_STAYS) or b"\n" + _STAYS in self._received
        if self._is_prepared:
            self.wait(_LEAVE_S)
        elif not self._has_sent or (left and not stays):
            self._process.wait()
        else:
            self._process.poll()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the supervisor's process to exit if this process has started it; False on a timeout."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _send(self, line: bytes, descriptors: Sequence[int] = ()) -> None:
        self._has_sent = True
        text = line + b"\n"
        try:
            self._stream.setblocking(True)
            sent = socket.send_fds(self._stream, [text], descriptors) if descriptors else 0
            self._stream.sendall(text[sent:])
        except OSError:
            return


def start_supervisor() -> SupervisorLink:
    """Start a supervisor that waits for its first request. EngineError if the process cannot be started."""
    return SupervisorLink(*_start())


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, its = socket.socketpair()
    argv = isolated("orchestrator.supervisor", str(its.fileno()))
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, pass_fds=(its.fileno(),), start_new_session=True
        )
    except OSError as error:
        ours.close()
        raise EngineError(f"the supervisor could not be started: {error}") from error
    finally:
        its.close()
    return process, ours


def _read_answer(stream: socket.socket) -> tuple[bytes, bytes]:
    """Return the answer to the last request, and what follows it. Skip the result of an earlier run before it."""
    received = b""
    while True:
        line, newline, rest = received.partition(b"\n")
        if newline and not line.startswith(_ENDED):
            return line, rest
        if newline:
            received = rest
            continue
        try:
            data = stream.recv(_READ_BYTES)
        except ConnectionError:
            data = b""  # the supervisor was killed before it read the request
        if not data:
            return b"", b""
        received += data
