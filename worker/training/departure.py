"""The end of the program: all workers leave in an order in which none sees another go."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import NoReturn

from worker.training.cluster import Place

BARRIER = "worker-departure"
# Long, as the chief may still be writing a large model; a worker that died ends the barrier at once.
BARRIER_TIMEOUT_S = 600
PEERS_LEAVE_S = 5.0
CONNECT_S = 1.0


def leave(place: Place, code: int = 0) -> NoReturn:
    """End this process with `code` once every worker has got here; the chief goes last.

    The chief serves the coordination service, and a worker that sees it vanish logs that the tasks have
    crashed. So the chief holds a connection to each peer and stays until their ends close them. Ending by
    `_exit` leaves out TensorFlow's own teardown, which would wait for threads and peers.
    """
    with contextlib.ExitStack() as stack:
        connections = []
        if place.is_chief:
            connections = [stack.enter_context(connection) for connection in _connect(place.peers)]
        if place.workers > 1:
            _wait_for_all()
        _wait_until_closed(connections, time.monotonic() + PEERS_LEAVE_S)
    end_now(code)


def end_now(code: int) -> NoReturn:
    """End this process without any teardown, after what it has printed is out."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _wait_for_all() -> None:
    # TensorFlow has no public barrier. An all-reduce is none: who has its result may leave while another
    # still fetches it.
    from tensorflow.python.eager import context

    context.context().wait_at_barrier(BARRIER, BARRIER_TIMEOUT_S * 1000)


def _connect(addresses: tuple[str, ...]) -> list[socket.socket]:
    connections = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        # Who cannot be reached is not waited for.
        with contextlib.suppress(OSError, ValueError):
            connections.append(socket.create_connection((host.strip("[]"), int(port)), CONNECT_S))
    return connections


def _wait_until_closed(connections: list[socket.socket], deadline: float) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            while connection.recv(4096):
                pass
