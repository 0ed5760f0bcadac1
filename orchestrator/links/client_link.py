"""The messages of a client to its supervisor for one run, and the supervisor's end of the connection.

JSON lines over a socket pair, or over a connection to a kept supervisor (kept.py). A connection is for one run:
client -> supervisor: a request, then orders (orders.py). End of file stops the run, unless it is detached. A
preparation may come before the request, and questions to its hosts.
supervisor -> client: HostReports for a preparation and for each round of questions; `created` {root} or `refused`
{exit_code, message}; `ended` {result} if result.json could not be written; end of file when the run is over and, unless
the supervisor is kept, all its processes have exited.
Descriptors come with a request (SCM_RIGHTS), in the order of its `descriptors`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.core.errors import OrchError
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.state.result import RunResult
from orchestrator.links.orders import DetachOrder, NoticeOrder, StopOrder
from worker.wire.checks import Checked
from worker.wire.codec import encode
from worker.wire.facts import HostFacts

_READ_BYTES = 1 << 16
# The kernel passes up to 253 with a message.
MOST_DESCRIPTORS = 16


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Warm(_Message):
    """Keep the supervisor, the agent and the preloader after the run for another one (kept.py).

    `idle_s`: how long they wait for it. `conditions`: those of the client.
    """

    idle_s: float
    conditions: dict[str, str]


class Descriptor(_Message):
    """A descriptor for a task, None: for every task. The task finds its number by `name` in ORCH_DESCRIPTORS."""

    name: str
    task: str | None = None


class Request(_Message):
    """A client's request for a run.

    `environ` (see pack_environ) is the environment for the run's processes. `is_detached`: it continues when its
    client leaves. `state_owner`: the user whose state root uses by --as-root-anyway. `existing`, `adopt`,
    `continues`: see UpRequest.
    """

    op: Literal["run"] = "run"
    spec: JobSpec
    environ: dict[str, str]
    is_detached: bool = False
    state_owner: int | None = None
    existing: tuple[Path, ...] = ()
    adopt: Path | None = None
    continues: Path | None = None
    warm: Warm | None = None
    descriptors: tuple[Descriptor, ...] = Field(default=(), max_length=MOST_DESCRIPTORS)


class Preparation(_Message):
    """A job for other hosts whose request may follow: its agents can be started meanwhile. They start no task.

    `run_id`: of a run that exists already. `preloads`: whether they import modules for it. `environ`: as in
    the request."""

    op: Literal["prepare"] = "prepare"
    spec: JobSpec
    environ: dict[str, str]
    run_id: str | None = None
    preloads: bool = True


class HostQuestions(_Message):
    """Questions to hosts that a preparation has opened, by their names: lines for their agents (worker/wire)."""

    op: Literal["ask"] = "ask"
    questions: dict[str, str]


@dataclass(frozen=True)
class HostReport:
    """The facts and answers of a host, as far as they are known. `error`: why it is lost, in words for the user."""

    error: str | None = None
    facts: HostFacts | None = None
    checked: Checked | None = None


@dataclass(frozen=True)
class HostReports:
    """The reports of all hosts that were prepared, or that were asked, by their names."""

    reports: Mapping[str, HostReport]


First = Request | Preparation | HostQuestions
ClientOrder = StopOrder | NoticeOrder | DetachOrder
_LATER = ConfigDict(defer_build=True)
_FIRST: TypeAdapter[First] = TypeAdapter(Annotated[First, Field(discriminator="op")], config=_LATER)
_ORDERS: TypeAdapter[ClientOrder] = TypeAdapter(
    Annotated[ClientOrder, Field(discriminator="op")], config=_LATER
)


def receive(stream: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for data, and return it with the descriptors that came with it. OSError."""
    data, passed, _, _ = socket.recv_fds(stream, _READ_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    return data, passed


class ClientLink:
    """The supervisor's end of the connection. Owns the descriptors of its request."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._inbox = b""
        self._descriptors: list[int] = []
        self.is_connected = True

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def has_line(self) -> bool:
        """Whether a line is here already, so that fileno() need not become readable for it."""
        return b"\n" in self._inbox

    def read_request(self) -> First | None:
        """Wait for the request, or for a message before it; None if the client has left or sent something else."""
        try:
            while not self.has_line:
                data, passed = receive(self._stream)
                self._descriptors += passed
                if not data:
                    return None
                self._inbox += data
            line, _, self._inbox = self._inbox.partition(b"\n")
            message = _FIRST.validate_json(line)
        except (OSError, ValidationError):
            return None
        self._stream.settimeout(None)
        is_complete = not isinstance(message, Request) or len(message.descriptors) == len(self._descriptors)
        return message if is_complete else None

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors of the request, in its order."""
        return self._descriptors

    def orders(self) -> Iterator[ClientOrder]:
        """Yield what has arrived; does not block. The caller may leave the rest for the next call.

        `is_connected` becomes False after the last order of a client that has left, or has sent something else."""
        try:
            data = self._stream.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            self._inbox += data
            has_left = not data
        except BlockingIOError:
            has_left = False
        except OSError:
            has_left = True
        while self.has_line:
            line, _, self._inbox = self._inbox.partition(b"\n")
            try:
                order = _ORDERS.validate_json(line)
            except ValidationError:
                has_left = True
                break
            yield order
        self.is_connected = not has_left

    def created(self, root: Path) -> None:
        self._answer({"created": str(root)})

    def hosts(self, reports: HostReports) -> None:
        self._send(encode(reports))

    def refused(self, error: OrchError) -> None:
        self._answer({"refused": {"exit_code": int(error.exit_code), "message": str(error)}})

    def ended(self, result: RunResult) -> None:
        """Send the result to a client that will not find a result.json."""
        self._answer({"ended": result.model_dump(mode="json")})

    def close(self) -> None:
        """Tell the client that its run is over. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._stream.close()

    def _answer(self, answer: dict[str, Any]) -> None:
        self._send(json.dumps(answer).encode() + b"\n")

    def _send(self, line: bytes) -> None:
        try:
            self._stream.sendall(line)
        except OSError:
            return  # the client has left, which orders() reports


def pack_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as JSON text: each byte as one character, because values need not be UTF-8."""
    return {_pack(name): _pack(value) for name, value in environ.items()}


def unpack_environ(packed: Mapping[str, str]) -> dict[str, str]:
    return {_unpack(name): _unpack(value) for name, value in packed.items()}


def _pack(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


def _unpack(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))


# Variables that belong to a host, its login or its batch job.
_OF_THE_HOST = frozenset(
    (
        *("HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TMPDIR", "USER", "_"),
        *("CUDA_VISIBLE_DEVICES", "DISPLAY", "TERM"),
    )
)
_OF_THE_HOST_PREFIXES = ("DBUS_", "SLURM_", "SSH_", "XDG_RUNTIME_", "XDG_SESSION_", "ORCH_HOST_")


def travelling_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that is sent to another host, which keeps its own values of the rest."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _OF_THE_HOST and not name.startswith(_OF_THE_HOST_PREFIXES)
    }
