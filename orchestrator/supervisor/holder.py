"""`Holder`: this supervisor as the warm holder of a directory. It waits for a client, or for a reason to leave."""

from __future__ import annotations

import math
import os
import select
import selectors
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from orchestrator.core.errors import UsageError
from orchestrator.links.client_link import ClientLink, Warm
from orchestrator.links.control import listen_in, peer_user
from orchestrator.links.signal_inbox import SignalInbox
from orchestrator.links.warm import (
    ANSWER_S,
    HOLDER,
    LOCK,
    LOG,
    MOST_HOLDERS,
    Holding,
    dismiss,
    identity_of,
    live_places,
    orch_identity,
    read_holding,
    remove_place,
)
from orchestrator.store.directory import Directory
from orchestrator.store.runs.liveness import start_ticks
from orchestrator.store.runs.locks import Lock, take_unless_held
from orchestrator.store.runs.paths import WARM_SOCKET, make_warm, open_warm, warm_name
from orchestrator.store.runs.record import boot_id
from orchestrator.supervisor.hosts import LocalAgent

# Seconds between looks for a reason to leave.
_LOOK_S = 5.0
_MEMORY_PRESSURE = Path("/proc/pressure/memory")
# Percent of the last 10 s in which all busy processes of this machine waited for memory. Holders leave above it.
_MOST_PRESSURE = 5.0
# A client sends its request as soon as it is greeted, unless it was stopped.
_REQUEST_S = 10.0
# How often a place is made that another process removes at the same moment.
_ATTEMPTS = 5
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Holder:
    """The right to be the holder of a directory, until close() or the end of this process."""

    def __init__(self, place: Directory, lock: Lock, directory: str, warm: Warm) -> None:
        self._place = place
        self._lock = lock
        self._directory = directory
        self._identity = identity_of(directory)
        self._orch = orch_identity()
        self._conditions = warm.conditions
        self._since = time.time()
        self._runtime_dir = _runtime_dir()
        self._idle_s = warm.idle_s or 0.0
        self._owner = warm.owner
        # Readable when the owner has exited.
        self._owner_pidfd = -1 if warm.owner is None else os.pidfd_open(warm.owner)
        self._runs = 1

    @classmethod
    def take(cls, directory: str, warm: Warm) -> Self | None:
        """Become the holder after a run; None if another process is, or if this one would leave at once. OSError."""
        taken = _take_place(directory)
        if taken is None:
            return None
        place, lock = taken
        try:
            holder = cls(place, lock, directory, warm)
        except ProcessLookupError:  # the owner has exited
            _leave_place(directory, place, lock)
            return None
        try:
            holder._write(until=None)
            holder._dismiss_oldest()
        except BaseException:
            holder.close()
            raise
        return holder

    def _dismiss_oldest(self) -> None:
        """Keep at most MOST_HOLDERS of this user."""
        with live_places() as places:
            own = self._place.identity
            others = [(_last_used(holding), place) for place, holding in places if place.identity != own]
            others.sort(key=lambda each: each[0])
            for _, place in others[: max(0, len(others) + 1 - MOST_HOLDERS)]:
                dismiss(place)

    def note_run(self, warm: Warm) -> None:
        """Count a run, and wait after it as long as it asks for."""
        self._runs += 1
        if warm.idle_s is not None:
            self._idle_s = warm.idle_s

    def next_client(self, here: LocalAgent) -> ClientLink | None:
        """Wait for the next client and return it; None if there is a reason to leave."""
        link = here.link
        if link is None or not self._is_wanted:
            return None
        until = time.monotonic() + self._idle_s
        os.chdir("/")  # the directory of the last run may be removed
        try:
            self._leave_log()
            self._place.unlink(WARM_SOCKET)
            listener = listen_in(self._place, WARM_SOCKET)
        except OSError:
            return None
        try:
            self._write(until=time.time() + self._idle_s)
        except OSError:
            listener.close()
            return None
        with listener, SignalInbox(_STOP_SIGNALS) as inbox, selectors.DefaultSelector() as selector:
            for each in (listener, link, inbox):
                selector.register(each, selectors.EVENT_READ)
            if self._owner_pidfd >= 0:
                selector.register(self._owner_pidfd, selectors.EVENT_READ)
            try:
                while not (inbox.count or self._must_leave(until, here)) and link.read()[1]:
                    wait_s = min(_LOOK_S, max(0.0, until - time.monotonic()))
                    ready = [key.fileobj for key, _ in selector.select(wait_s)]
                    if self._owner_pidfd in ready:
                        return None
                    if listener in ready and (client := self._accept(listener, here)) is not None:
                        return client
            finally:
                with suppress(OSError):
                    self._place.unlink(WARM_SOCKET)
        return None

    def _accept(self, listener: socket.socket, here: LocalAgent) -> ClientLink | None:
        """Accept a client of this user, greet it, and wait for its request."""
        with ExitStack() as stack:
            try:
                connection, _ = listener.accept()
                stack.enter_context(connection)
                if peer_user(connection) != os.geteuid() or not self._is_wanted or here.is_stopped():
                    return None
                connection.settimeout(ANSWER_S)
                connection.sendall(self._holding(None).model_dump_json().encode() + b"\n")
                poller = select.poll()
                poller.register(connection, select.POLLIN)
                # A client that does not want this holder dismisses it before it leaves.
                if not poller.poll(_REQUEST_S * 1000) or not self._is_wanted:
                    return None
                self._write(until=None)
            except OSError:
                return None
            connection.settimeout(None)
            stack.pop_all()
            return ClientLink(connection)

    def _leave_log(self) -> None:
        """Redirect this process's output to the holder's log. OSError."""
        log = self._place.open_private(LOG, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)

    def close(self) -> None:
        """Release the place and remove it. Its log stays after an error, which is still to be written to it."""
        if sys.exception() is not None and self._place.exists(LOG):
            with suppress(OSError):
                self._place.unlink(HOLDER)
            self._lock.release()
            self._place.close()
        else:
            _leave_place(self._directory, self._place, self._lock)
        if self._owner_pidfd >= 0:
            os.close(self._owner_pidfd)
            self._owner_pidfd = -1

    # -- reasons to leave

    def _must_leave(self, until: float, here: LocalAgent) -> bool:
        return (
            here.is_stopped()
            or time.monotonic() >= until
            or not self._is_wanted
            or identity_of(self._directory) != self._identity
            or orch_identity() != self._orch
            or _runtime_dir() != self._runtime_dir
            or memory_pressure(_MEMORY_PRESSURE) > _MOST_PRESSURE
        )

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
            owner=self._owner,
        )


def _take_place(directory: str) -> tuple[Directory, Lock] | None:
    """Return the place for the holder of a directory, with its lock; None if another process has it. OSError."""
    for _ in range(_ATTEMPTS):
        with make_warm() as all_places, suppress(FileNotFoundError):
            place = all_places.make(warm_name(directory))
            try:
                lock = take_unless_held(place, LOCK)
            except BaseException:
                place.close()
                raise
            if lock is None:
                place.close()
                return None
            return place, lock
    return None


def _leave_place(directory: str, place: Directory, lock: Lock) -> None:
    with suppress(OSError, UsageError), open_warm() as all_places:
        remove_place(all_places, warm_name(directory), place)
    lock.release()
    place.close()


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
    """The percentage of the last 10 s in which all busy processes waited for memory; 0 where the kernel does not tell.

    `some`, in which one of them waited, is above 10 for a moment on any machine with many starts."""
    try:
        words = file.read_text().partition("full ")[2].split()
        return next((float(word[6:]) for word in words if word.startswith("avg10=")), 0.0)
    except (OSError, ValueError):
        return 0.0
