"""The supervisor's end of the stream to its client; SupervisorLink is the other end.

JSON lines over a socket pair, or over a connection to a warm holder (warm.py):
client -> supervisor: a request, then orders to stop or to detach. End of file stops the run, unless it is detached. A
session sends its next request after its last run has ended. A preparation may come before a request. After the request
for a run that `waits`: `queued` as often as Slurm says something new, a preparation, then `place` or `refused`.
supervisor -> client: `created` {root} or `refused` {exit_code, message}; `ended` {result} if result.json could not be
written; `stays` if the supervisor waits for another client; then end of file.
Descriptors come with a request (SCM_RIGHTS), in the order of its `descriptors`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.core.errors import OrchError
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.state.result import RunResult
from orchestrator.links.control import DetachOrder, NoticeOrder, StopOrder

_READ_BYTES = 1 << 16
_PREPARATION = b'{"prepare":'
# The kernel passes up to 253 with a message.
MOST_DESCRIPTORS = 16


class Lifetime(StrEnum):
    """How long a run and its supervisor last."""

    CLIENT = "client"  # until the run ends or its client leaves
    DETACHED = "detached"  # until the run ends
    SESSION = "session"  # as CLIENT; then the supervisor waits for the next request


class Warm(BaseModel):
    """Keep the supervisor, the agent and the preloader for another run (links/warm.py).

    `idle_s`: how long they wait for it; None: as long as before. `conditions`: those of the client. `owner`: the
    process with whose end they end, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    idle_s: float | None
    conditions: dict[str, str]
    owner: int | None = None


class Descriptor(BaseModel):
    """A descriptor for a task, None: for every task. The task finds its number by `name` in ORCH_DESCRIPTORS."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    name: str
    task: str | None = None


class Request(BaseModel):
    """A client's request for a run.

    `environ` (see pack_environ) is the environment for the run's processes; None means the supervisor's own.
    `state_owner`: the user whose state root uses by --as-root-anyway. `existing`, `adopt`: see UpRequest. `warm`:
    what stays after the run; None for nothing. `waits`: the run exists before its hosts are known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    spec: JobSpec
    lifetime: Lifetime
    environ: dict[str, str] | None = None
    state_owner: int | None = None
    existing: tuple[Path, ...] = ()
    adopt: Path | None = None
    warm: Warm | None = None
    waits: bool = False
    descriptors: tuple[Descriptor, ...] = Field(default=(), max_length=MOST_DESCRIPTORS)


class QueuedOrder(BaseModel):
    """Why the run waits for a Slurm job, in Slurm's words; `start` is the expected time, empty if unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    op: Literal["queued"] = "queued"
    job: str
    reason: str
    start: str


class PlaceOrder(BaseModel):
    """The run's nodes are there: its job with them as hosts."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    op: Literal["place"] = "place"
    place: JobSpec


class RefusedOrder(BaseModel):
    """The run gets no nodes, or not those that it needs; `text` says why."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    op: Literal["refused"] = "refused"
    text: str


_LATER = ConfigDict(defer_build=True)
_ORDERS: TypeAdapter[StopOrder | NoticeOrder | DetachOrder] = TypeAdapter(
    Annotated[StopOrder | NoticeOrder | DetachOrder, Field(discriminator="op")], config=_LATER
)
_WhileQueued = StopOrder | NoticeOrder | DetachOrder | QueuedOrder | PlaceOrder | RefusedOrder
_ORDERS_WHILE_QUEUED: TypeAdapter[_WhileQueued] = TypeAdapter(
    Annotated[_WhileQueued, Field(discriminator="op")], config=_LATER
)


class Preparation(BaseModel):
    """A job for other hosts whose request may follow: its agents can be started meanwhile. They start no task.

    `run_id`: of a run that exists already."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    prepare: JobSpec
    run_id: str | None = None


class ClientLink:
    """The supervisor's end of the stream. Owns the descriptors of the last request, until the next one."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._inbox = b""
        self._descriptors: list[int] = []
        # Whether they belong to a request that was returned.
        self._has_request = False

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def has_line(self) -> bool:
        """Whether a line is here already, so that fileno() need not become readable for it."""
        return b"\n" in self._inbox

    def read_request(self) -> Request | Preparation | None:
        """Wait for the next request or preparation; None if the client has left or sent something else."""
        if self._has_request:
            self._close_descriptors()
            self._has_request = False
        while True:
            while not self.has_line:
                try:
                    data, passed, _, _ = socket.recv_fds(self._stream, _READ_BYTES, MOST_DESCRIPTORS)
                except ConnectionError:
                    return None
                self._descriptors += passed
                if not data:
                    return None
                self._inbox += data
            line, _, self._inbox = self._inbox.partition(b"\n")
            kind: type[Request | Preparation] = Preparation if line.startswith(_PREPARATION) else Request
            try:
                message = kind.model_validate_json(line)
            except ValidationError:
                # An order that arrives just after its run has ended does not apply to the next run.
                if not _is_order(line):
                    return None
                continue
            if isinstance(message, Preparation):
                return message
            self._has_request = True
            return message if len(message.descriptors) == len(self._descriptors) else None

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors of the last request, in its order."""
        return self._descriptors

    def read_orders(self) -> tuple[list[StopOrder | NoticeOrder | DetachOrder], bool]:
        """Return (orders that have arrived, whether the client is still connected). Does not block."""
        is_connected = self._receive()
        *lines, self._inbox = self._inbox.split(b"\n")
        return [_ORDERS.validate_json(line) for line in lines], is_connected

    def read_order_of_queued(self) -> tuple[_WhileQueued | Preparation | None, bool]:
        """Return (the next order for a run that waits, whether the client is still connected). Does not block."""
        is_connected = self.has_line or self._receive()
        line, newline, rest = self._inbox.partition(b"\n")
        if not newline:
            return None, is_connected
        self._inbox = rest
        if line.startswith(_PREPARATION):
            return Preparation.model_validate_json(line), is_connected
        return _ORDERS_WHILE_QUEUED.validate_json(line), is_connected

    def _receive(self) -> bool:
        """Add what has arrived to the inbox. Return whether the client is still connected."""
        try:
            data = self._stream.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._inbox += data
        return bool(data)

    def created(self, root: Path) -> None:
        self._answer({"created": str(root)})

    def refused(self, error: OrchError) -> None:
        self._answer({"refused": {"exit_code": int(error.exit_code), "message": str(error)}})

    def ended(self, result: RunResult) -> None:
        """Send the result to a client that will not find a result.json."""
        self._answer({"ended": result.model_dump(mode="json")})

    def stays(self) -> None:
        """Tell the client that this process does not exit after the run."""
        self._answer({"stays": True})

    def close(self) -> None:
        self._close_descriptors()
        self._stream.close()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _answer(self, answer: dict[str, Any]) -> None:
        try:
            self._stream.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            return  # the client has left; read_orders() reports it


def _is_order(line: bytes) -> bool:
    try:
        return not isinstance(_ORDERS.validate_json(line), DetachOrder)
    except ValidationError:
        return False


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
