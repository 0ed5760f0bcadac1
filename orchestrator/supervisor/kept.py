"""A supervisor between two runs: one waiting loop, and two doors at which the next client comes.

`OwnerDoor`: the process that started the supervisor, such as a session. `WarmDoor`: any `orch up` of this user in the
directory (links/kept.py).
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol, Self

from orchestrator.core.errors import UsageError
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.client_link import ClientLink, First, Warm, receive
from orchestrator.links.control import listen_in, peer_user
from orchestrator.links.kept import (
    ANSWER_S,
    HOLDER,
    LOCK,
    LOG,
    Holding,
    dismiss,
    identity_of,
    live_places,
    orch_identity,
    read_holding,
    remove_place,
)
from orchestrator.links.signal_inbox import SignalInbox
from orchestrator.store.directory import Directory
from orchestrator.store.runs.liveness import start_ticks
from orchestrator.store.runs.locks import Lock, take_unless_held
from orchestrator.store.runs.paths import WARM_SOCKET, make_warm, open_warm, warm_name
from orchestrator.store.runs.record import boot_id
from orchestrator.supervisor.here import LocalAgent

# Seconds between looks for a reason to leave.
_LOOK_S = 5.0
_MEMORY_PRESSURE = Path("/proc/pressure/memory")
# Percent of the last 10 s in which all busy processes of this machine waited for memory. Holders leave above it.
_MOST_PRESSURE = 5.0
# A client sends its request as soon as it is greeted, unless it was stopped.
_REQUEST_S = 10.0
# Holders of one user. Each uses several hundred MB.
_MOST_HOLDERS = 3
# How often a place is made that another process removes at the same moment.
_ATTEMPTS = 5
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Asked = tuple[ClientLink, First]


class Door(Protocol):
    """Readable when a client is there. `stays`: whether there may be a client after the present one."""

    def fileno(self) -> int: ...
    @property
    def stays(self) -> bool: ...
    def accept(self) -> Asked | None:
        """Return the client with what it asks for; None if it left without a request."""

    def must_leave(self, here: LocalAgent) -> bool:
        """Whether there is a reason to leave."""

    def close(self) -> None: ...


def next_client(door: Door, here: LocalAgent) -> Asked | None:
    """Wait for the next client at a door; None if there is a reason to leave."""
    with SignalInbox(_STOP_SIGNALS) as inbox, selectors.DefaultSelector() as selector:
        link = here.link
        inputs: list[Door | SignalInbox | AgentLink] = [door, inbox, *([] if link is None else [link])]
        for each in inputs:
            selector.register(each, selectors.EVENT_READ)
        while not inbox.count and not door.must_leave(here):
            ready = [key.fileobj for key, _ in selector.select(_LOOK_S)]
            if link in ready and link is not None and not link.read()[1]:
                selector.unregister(link)
                here.end()
            if door in ready:
                if here.is_stopped():
                    return None  # the client gets another supervisor
                with suppress(KeyboardInterrupt), inbox.interrupting():
                    if (asked := door.accept()) is not None:
                        return asked
    return None


class OwnerDoor:
    """The socket at which the process that started this supervisor sends a connection for each run."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def stays(self) -> bool:
        """False once the owner has closed its end, or has exited."""
        try:
            return bool(self._stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def accept(self) -> Asked | None:
        passed = receive(self._stream)[1]
        if not passed:
            return None
        client = ClientLink(socket.socket(fileno=passed[0]))
        if (message := client.read_request()) is None:
            client.close()
            return None
        return client, message

    def must_leave(self, here: LocalAgent) -> bool:
        return not self.stays

    def close(self) -> None:
        self._stream.close()


class WarmDoor:
    """The socket of the warm holder of a directory, which this process is until close() or its end."""

    stays = True

    def __init__(self, place: Directory, lock: Lock, directory: str, warm: Warm) -> None:
        self._place = place
        self._lock = lock
        self._directory = directory
        self._listener: socket.socket | None = None
        self._identity = identity_of(directory)
        self._orch = orch_identity()
        self._conditions = warm.conditions
        self._since = time.time()
        self._runtime_dir = _runtime_dir()
        self._idle_s = warm.idle_s
        self._until_mono = 0.0
        self._runs = 1

    @classmethod
    def take(cls, directory: str, warm: Warm) -> Self | None:
        """Become the holder after a run; None if another process is. OSError, UsageError."""
        taken = _take_place(directory)
        if taken is None:
            return None
        door = cls(*taken, directory, warm)
        try:
            door._write(until=None)
            door._dismiss_oldest()
        except BaseException:
            door.close()
            raise
        return door

    def _dismiss_oldest(self) -> None:
        with live_places() as places:
            own = self._place.identity
            others = [(_last_used(holding), place) for place, holding in places if place.identity != own]
            others.sort(key=lambda each: each[0])
            for _, place in others[: max(0, len(others) + 1 - _MOST_HOLDERS)]:
                dismiss(place)

    def open(self, warm: Warm | None) -> None:
        """Take clients after a run: as long as it asks for, or else as before. OSError."""
        if not self._is_wanted:
            return
        if warm is not None:
            self._idle_s = warm.idle_s
        self._until_mono = time.monotonic() + self._idle_s
        os.chdir("/")  # the directory of the last run may be removed
        log = self._place.open_private(LOG, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        redirect_output(log)
        self._place.unlink(WARM_SOCKET)
        self._listener = listen_in(self._place, WARM_SOCKET)
        self._write(until=time.time() + self._idle_s)

    def fileno(self) -> int:
        return -1 if self._listener is None else self._listener.fileno()

    def accept(self) -> Asked | None:
        """Greet a client of this user, and take its request. Clients are not accepted during its run."""
        assert self._listener is not None
        with ExitStack() as stack:
            try:
                connection, _ = self._listener.accept()
                stack.enter_context(connection)
                if peer_user(connection) != os.geteuid():
                    return None
                connection.settimeout(ANSWER_S)
                connection.sendall(self._holding(None).model_dump_json().encode() + b"\n")
                connection.settimeout(_REQUEST_S)
                client = ClientLink(connection)
                message = client.read_request()
                # A client that does not want this holder dismisses it before it leaves.
                if message is None or not self._is_wanted:
                    client.close()
                    return None
                self._runs += 1
                self._write(until=None)
                self._place.unlink(WARM_SOCKET)
            except OSError:
                return None
            self._listener.close()
            self._listener = None
            stack.pop_all()
            return client, message

    def must_leave(self, here: LocalAgent) -> bool:
        return (
            self._listener is None
            or here.link is None
            or here.is_stopped()
            or time.monotonic() >= self._until_mono
            or not self._is_wanted
            or identity_of(self._directory) != self._identity
            or orch_identity() != self._orch
            or _runtime_dir() != self._runtime_dir
            or memory_pressure(_MEMORY_PRESSURE) > _MOST_PRESSURE
        )

    def close(self) -> None:
        """Release the place and remove it. Its log stays after an error, which is still to be written to it."""
        if self._listener is not None:
            self._listener.close()
        if sys.exception() is not None and self._place.exists(LOG):
            with suppress(OSError):
                self._place.unlink(HOLDER)
        else:
            with suppress(OSError, UsageError), open_warm() as all_places:
                remove_place(all_places, warm_name(self._directory), self._place)
        self._lock.release()
        self._place.close()

    @property
    def _is_wanted(self) -> bool:
        """False once holder.json was removed: by `orch warm stop`, by a newer holder, or with the state directory."""
        holding = read_holding(self._place)
        return holding is not None and holding.pid == os.getpid()

    def _write(self, until: float | None) -> None:
        self._place.write_atomically(HOLDER, self._holding(until).model_dump_json())

    def _holding(self, until: float | None) -> Holding:
        return Holding(
            directory=self._directory,
            conditions=self._conditions,
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()) or 0,
            boot_id=boot_id(),
            since=self._since,
            idle_s=self._idle_s,
            until=until,
            runs=self._runs,
        )


def redirect_output(log: int) -> None:
    """Send this process's own output to an open file from now on, and close the descriptor."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _take_place(directory: str) -> tuple[Directory, Lock] | None:
    """Return the place for the holder of a directory, with its lock; None if another process has it. OSError."""
    for _ in range(_ATTEMPTS):
        with make_warm() as all_places, suppress(FileNotFoundError), ExitStack() as stack:
            place = stack.enter_context(all_places.make(warm_name(directory)))
            lock = take_unless_held(place, LOCK)
            if lock is None:
                return None
            stack.pop_all()
            return place, lock
    return None


def _last_used(holding: Holding | None) -> float:
    """When its last run ended. One of another version comes first, one with a run last."""
    if holding is None:
        return 0.0
    return math.inf if holding.until is None else holding.until - holding.idle_s


def _runtime_dir() -> str | None:
    """The directory that the system makes at this user's first login and removes at the last logout, if it is there."""
    path = os.environ.get("XDG_RUNTIME_DIR", "")
    return path if path and Path(path).is_dir() else None


def memory_pressure(file: Path) -> float:
    """The percentage of the last 10 s in which all busy processes waited for memory; 0 if the kernel reports none.

    `some`, in which one of them waited, is above 10 for a moment on any machine with many starts."""
    try:
        words = file.read_text().partition("full ")[2].split()
        return next((float(word[6:]) for word in words if word.startswith("avg10=")), 0.0)
    except (OSError, ValueError):
        return 0.0
