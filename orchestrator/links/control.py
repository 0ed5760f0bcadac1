"""The control socket of a live run: one request, one answer, JSON lines, for this user only.

Requests: {"op": "stop", "reason": "down", "force": false}. Answers: {"ok": true} or {"ok": false, "error": "..."}.
Whatever is asked becomes an event like any other.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.events import StopReason

_MAX_REQUEST_BYTES = 4096
_ANSWER_TIMEOUT_S = 5.0
_PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: man 7 unix


class StopOrder(BaseModel):
    """Somebody wants the run stopped, forced meaning at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    op: str = "stop"
    reason: StopReason = StopReason.DOWN
    force: bool = False


class ControlServer:
    """The supervisor's end. Connections are served when readable and never waited for."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        try:
            with _short_path(path) as short:
                self._listener.bind(short)
        except BaseException:
            self._listener.close()
            raise
        finally:
            os.umask(previous)
        self._listener.listen(16)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> socket.socket | None:
        """A new connection of this user; a stranger's is closed unheard."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return None
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        uid = _PEER_CREDENTIALS.unpack(raw)[1]
        if uid not in (os.getuid(), 0):
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def close(self) -> None:
        self._listener.close()


def serve(connection: socket.socket) -> StopOrder | None:
    """Read one order and answer; None if it was none. The caller closes the connection."""
    try:
        order = StopOrder.model_validate_json(connection.recv(_MAX_REQUEST_BYTES))
        answer: dict[str, object] = {"ok": True}
    except ValidationError as error:
        order, answer = None, {"ok": False, "error": str(error)}
    except OSError:
        return None
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # it left before the answer; what it asked still holds
    return order


def request(path: Path, order: StopOrder) -> bool:
    """Send an order to a live run; False when nobody listens there any more."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short_path(path) as short:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.connect(short)
            connection.sendall(order.model_dump_json().encode() + b"\n")
            answer = json.loads(connection.recv(_MAX_REQUEST_BYTES) or b"{}")
    except (OSError, ValueError):
        return False
    return bool(answer.get("ok"))


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """The same file by a path that fits into the 108 bytes of a socket's address."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
