"""The control socket of a live run: one order (orders.py) and one answer for each connection, for this user only.

Answers are JSON lines: {"ok": true, ...} or {"ok": false, "error": "..."}; the answer to `stacks` comes when the tasks
have answered. The supervisor turns orders into events.
As a program, `control PATH SECONDS` passes an order on stdin to a socket and prints the answer: a socket does not reach
other machines, so it runs in a step of the run's Slurm job.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from orchestrator.links.orders import ControlOrder, InvalidOrder, control_order
from orchestrator.store.directory import Directory

_MAX_REQUEST_BYTES = 1 << 16
_READ_BYTES = 1 << 16
# Length of the queue of connections that wait for accept().
_BACKLOG = 128
ANSWER_TIMEOUT_S = 5.0
_PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: man 7 unix
_TIMEVAL = struct.Struct("ll")  # seconds, microseconds: man 7 socket
_ROOT = 0


class ControlServer:
    """The supervisor's end. A connection is served when it is ready, so that it never blocks the supervisor."""

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


def read_order(connection: socket.socket) -> ControlOrder:
    """Read the order that has arrived. InvalidOrder if it is invalid. Does not block."""
    try:
        return control_order(connection.recv(_MAX_REQUEST_BYTES))
    except OSError as error:
        raise InvalidOrder(f"the order could not be read: {error.strerror}") from error


def ask(path: Path, order: ControlOrder, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any] | None:
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


def main(path: str, timeout_s: str) -> None:
    answer = ask(Path(path), control_order(sys.stdin.buffer.read()), float(timeout_s))
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
