"""Ports of tasks: held from their choice until the attempt ends, and checked until each task listens on its own.

A held port is a bound socket that never listens: no other program can bind it, and every connection reaches the
task that listens there. The task can bind it because both set the same socket option:

* `reuse_port`: SO_REUSEPORT. TensorFlow sets it under TF_GRPC_REUSE_PORT=1. Any other program's bind is refused.
* `reuse_addr`: SO_REUSEADDR, which most servers set anyway. Another program that sets it can also bind the port until
  the task listens.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Sequence
from typing import Self

import portpicker

from worker.agent.processes import all_processes, descendants, listening_inodes, owns_socket
from worker.agent.tasks import TaskProcess
from worker.wire.facts import HoldMode

_OPTION: dict[HoldMode, int] = {"reuse_port": socket.SO_REUSEPORT, "reuse_addr": socket.SO_REUSEADDR}
# Another program can bind a port between its choice and our bind. More losses in a row have another reason.
_TRIES = 50


class PortsExhausted(Exception):
    """No free port could be held on this host."""


class HeldPorts:
    """Ports bound by this process; close() releases all of them."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self._sockets)

    def hold(self, count: int, mode: HoldMode) -> list[int]:
        """Choose `count` free ports (from the site's port server if there is one) and hold them."""
        return [self._hold_one(mode) for _ in range(count)]

    def close(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()

    def _hold_one(self, mode: HoldMode) -> int:
        for _ in range(_TRIES):
            try:
                port = int(portpicker.pick_unused_port())
            except portpicker.NoFreePortFoundError as error:
                raise PortsExhausted(
                    "portpicker finds no free port on this host; end programs that use many, or widen"
                    " net.ipv4.ip_local_port_range"
                ) from error
            if port in self._sockets:
                continue
            held = _bind(port, mode)
            if held is not None:
                self._sockets[port] = held
                return port
        raise PortsExhausted(f"{_TRIES} ports in a row were taken between their choice and the bind")


def _bind(port: int, mode: HoldMode) -> socket.socket | None:
    """Return a socket bound to `port` on all interfaces, IPv4 and IPv6; None if another program has the port.

    The bind is exclusive, so two agents never hold the same port. The option that admits the task is set after it:
    Linux compares the options that both sockets have at the time of the later bind.
    """
    family = socket.AF_INET6 if _has_ipv6() else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", port))
        held.setsockopt(socket.SOL_SOCKET, _OPTION[mode], 1)
    except OSError as error:
        held.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    return held


def _has_ipv6() -> bool:
    """Whether the running kernel has IPv6. Python's socket.has_ipv6 only describes the build."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


# Interval between checks for listening ports: short at first, then a share of the time already waited.
_FIRST_CHECK_S = 0.1
_LAST_CHECK_S = 2.0
_INTERVAL_SHARE = 0.02
# A check makes the kernel walk its table of connections. It may use 1/50 of a core.
_COST_SHARE = 50


class Readiness:
    """Finds tasks that are ready: one of their own processes listens on their port.

    `due` is the time of the next check (monotonic seconds)."""

    def __init__(self, now: float) -> None:
        self.due = now
        self._since = now

    def hasten(self, now: float) -> None:
        """Check soon, since a task was started."""
        self._since = now
        self.due = min(self.due, now + _FIRST_CHECK_S)

    def newly_ready(self, now: float, waiting: Sequence[TaskProcess]) -> list[TaskProcess]:
        """Return those of `waiting` that listen on their port now; none before `due`."""
        if now < self.due or not waiting:
            return []
        began = time.thread_time()
        ready = self._listening(waiting)
        pause_s = min(_LAST_CHECK_S, max(_FIRST_CHECK_S, (now - self._since) * _INTERVAL_SHARE))
        self.due = now + max(pause_s, (time.thread_time() - began) * _COST_SHARE)
        return ready

    @staticmethod
    def _listening(waiting: Sequence[TaskProcess]) -> list[TaskProcess]:
        by_port = {task.order.port: task for task in waiting if task.order.port is not None}
        inodes = listening_inodes(port for port in by_port if port is not None)
        return [by_port[port] for port, found in inodes.items() if _is_its_own(by_port[port], found)]


def _is_its_own(task: TaskProcess, inodes: set[int]) -> bool:
    if owns_socket(task.pid, inodes):
        return True
    return any(owns_socket(stat.pid, inodes) for stat in descendants(task.pid, all_processes()))
