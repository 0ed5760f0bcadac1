"""Ports for clusters that tests start without orch."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Yield free ports, bound with SO_REUSEADDR on all interfaces and not listening: only TensorFlow's server can take
    them."""
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
        yield [holder.getsockname()[1] for holder in holders]
