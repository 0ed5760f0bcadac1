"""The control socket of a live run: one order and one answer for each connection, JSON lines, for this user only.

Orders: {"op": "stop", "reason": "down", "force": false}, {"op": "kill", "task": "worker:1", "signal": 9},
{"op": "restart"}, {"op": "notice", "source": "user", "left_s": 30}, {"op": "stacks", "tasks": [], "native": false}.
Answers: {"ok": true, ...} or {"ok": false, "error": "..."}; the answer to `stacks` comes when the tasks have answered.
The supervisor turns orders into events.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.core.state.events import NoticeSource, StopReason
from orchestrator.core.text.durations import MAX_DURATION_S
from orchestrator.store.directory import Directory

_MAX_REQUEST_BYTES = 1 << 16
_READ_BYTES = 1 << 16
# Length of the queue of connections that wait for accept().
_BACKLOG = 128
ANSWER_TIMEOUT_S = 5.0
_LONGEST_ERROR = 300
_PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: man 7 unix
_TIMEVAL = struct.Struct("ll")  # seconds, microseconds: man 7 socket
_ROOT = 0


class _Order(BaseModel):
    # Strict: `true` is not accepted as a signal number, nor "no" as false.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class StopOrder(_Order):
    """Stop the run. `force`: kill it at once."""

    op: Literal["stop"] = "stop"
    reason: StopReason = StopReason.DOWN
    force: bool = False


class DetachOrder(_Order):
    """Let the run continue when its client leaves. Only that client sends it, over its own stream."""

    op: Literal["detach"] = "detach"


class KillOrder(_Order):
    """Send `signal` to the process group of a task."""

    op: Literal["kill"] = "kill"
    task: str
    signal: Annotated[int, Field(ge=1, le=64)]


class RestartOrder(_Order):
    """Restart all tasks, as another attempt."""

    op: Literal["restart"] = "restart"


class NoticeOrder(_Order):
    """The machines of the run will go in `left_s` seconds: let its tasks save their state and end."""

    op: Literal["notice"] = "notice"
    source: NoticeSource = NoticeSource.USER
    left_s: Annotated[float, Field(ge=0, le=MAX_DURATION_S)] | None = None


class StacksOrder(_Order):
    """Return the stacks of these tasks (none named: of all)."""

    op: Literal["stacks"] = "stacks"
    tasks: tuple[str, ...] = ()
    native: bool = False


Order = StopOrder | KillOrder | RestartOrder | NoticeOrder | StacksOrder
_ADAPTER: TypeAdapter[Order] = TypeAdapter(
    Annotated[Order, Field(discriminator="op")], config=ConfigDict(defer_build=True)
)


class ControlServer:
    """The supervisor's end. A connection is served when it is readable, so that it never blocks the supervisor."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._listener = listen_in(directory, name)

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> socket.socket | None:
        """Accept a connection of this user; close one of another user."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return None
        if peer_user(connection) not in (os.geteuid(), _ROOT):
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def close(self) -> None:
        self._listener.close()


def listen_in(directory: Directory, name: str) -> socket.socket:
    """Listen at a new file of a directory, for this user only. accept() does not block. OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listener.bind(_short_path(directory, name))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(previous)
    listener.setblocking(False)
    return listener


class InvalidOrder(Exception):
    """The received text is not an order; the message says why."""


def read_order(connection: socket.socket) -> Order:
    """Read the order that has arrived. InvalidOrder if it is invalid. Does not block."""
    try:
        return parse_order(connection.recv(_MAX_REQUEST_BYTES))
    except OSError as error:
        raise InvalidOrder(f"the order could not be read: {error.strerror}") from error


def parse_order(text: bytes) -> Order:
    """Return the order in a text. InvalidOrder."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        raise InvalidOrder(_first_error(error)) from error


def _first_error(error: ValidationError) -> str:
    """The first error in one line: `invalid order: kill.signal: Input should be a valid integer`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = "".join(f"{part}: " for part in (".".join(map(str, first["loc"])),) if part)
    return f"invalid order: {where}{first['msg']}"[:_LONGEST_ERROR]


def answer(connection: socket.socket, ok: bool, **fields: object) -> None:
    """Answer and close, without waiting. The order stays valid if its sender does not read the answer."""
    rest = json.dumps({"ok": ok, **fields}).encode() + b"\n"
    connection.setblocking(False)
    try:
        rest = rest[connection.send(rest) :]
    except BlockingIOError:
        pass
    except OSError:
        rest = b""
    if not rest:
        connection.close()
        return
    # The stacks of hundreds of tasks do not fit into the socket's buffer.
    threading.Thread(target=_send_rest, args=(connection, rest), daemon=True).start()


def _send_rest(connection: socket.socket, rest: bytes) -> None:
    with connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            connection.sendall(rest)
        except OSError:
            return


def request(path: Path, order: StopOrder) -> bool:
    """Send a stop order to a live run; False if its supervisor does not answer."""
    answered = ask(path, order)
    return answered is not None and bool(answered.get("ok"))


def ask(path: Path, order: Order, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any] | None:
    """Send an order to a live run; return its answer: {"ok": ...} with "error" or the values asked for.

    None if the socket is not served, does not answer in time, or is served by another user, who gets no order.
    """
    answer = b""
    try:
        with Directory.at(path.parent) as run, connect_in(run, path.name, timeout_s) as connection:
            if os.geteuid() != _ROOT and peer_user(connection) not in (os.geteuid(), _ROOT):
                return None
            connection.sendall(order.model_dump_json().encode() + b"\n")
            while data := connection.recv(_READ_BYTES):
                answer += data
        answered = json.loads(answer)
    except (OSError, ValueError):
        return None
    return answered if isinstance(answered, dict) else None


def connect_in(directory: Directory, name: str, timeout_s: float) -> socket.socket:
    """Return a connection to the socket at a file of a directory; sending and receiving take `timeout_s`. OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # With a timeout set by Python, connect() fails at once while the backlog is full.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(timeout_s) + 1, 0))
        connection.connect(_short_path(directory, name))
        connection.settimeout(timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


def peer_user(connection: socket.socket) -> int:
    """The user id of the process that connected or listens at the other end, as the kernel knows it."""
    return _peer(connection)[1]


def peer_pid(connection: socket.socket) -> int:
    """The pid of that process; 0 if it is in a PID namespace that this one does not see."""
    return _peer(connection)[0]


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, uid, gid = _PEER_CREDENTIALS.unpack(raw)
    return pid, uid, gid


def _short_path(directory: Directory, name: str) -> str:
    """A path to the file, while the directory is open, that fits into the 108 bytes of a socket's address."""
    return f"/proc/self/fd/{directory.fd}/{name}"
