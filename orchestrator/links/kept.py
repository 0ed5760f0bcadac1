"""The warm holder of a directory: a supervisor that waits with its agent and preloader for the next `orch up` there.

`warm/<hash of the directory>/` in the state directory belongs to it:
lock: held by the holder, so that there is one for each directory.
holder.json: describes it (Holding). A holder without this file leaves as soon as it has no run.
socket: takes one client at a time, while the holder has no run. The holder first sends its Holding as a line; then the
connection is that of client_link.py.
holder.log: the holder's output while it has no run.
The process that has the lock removes all of it: the holder when it leaves, any process after a holder that was killed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.core.errors import UsageError
from orchestrator.host.inheritance import inheritance
from orchestrator.host.isolation import own_files
from orchestrator.links.control import connect_in, peer_pid, peer_user
from orchestrator.store.directory import Directory
from orchestrator.store.runs.liveness import is_stopped, start_ticks
from orchestrator.store.runs.locks import Held, Lock, probe_in
from orchestrator.store.runs.paths import WARM_SOCKET, open_warm, warm_name
from orchestrator.store.runs.record import boot_id

LOCK, HOLDER, LOG = "lock", "holder.json", "holder.log"
# A holder that waits answers at once. The machine may be very busy.
ANSWER_S = 20.0
_MOST_BYTES = 1 << 16


class Holding(BaseModel):
    """A holder's description of itself. Times are Unix seconds; `until` is None during a run.

    `conditions`: see conditions(). `idle_s`: how long it waits for a run. `runs`: how many it has served."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    schema_version: int = 1
    directory: str
    conditions: dict[str, str]
    pid: int
    start_ticks: int
    boot_id: str
    since: float
    idle_s: float
    until: float | None
    runs: int

    def is_live_process(self) -> bool:
        """Whether the process with this pid is still the one that wrote this."""
        return self.boot_id == boot_id() and self.start_ticks == start_ticks(self.pid)


def conditions(directory: str) -> dict[str, str]:
    """Return what must be equal for a holder and for the client that uses it, by names for people."""
    return {
        "orch itself": orch_identity(),
        f"the directory {directory}": identity_of(directory),
        **inheritance(),
    }


def identity_of(directory: str) -> str:
    try:
        found = Path(directory).stat()
    except OSError:
        return "missing"
    return f"{found.st_dev}:{found.st_ino}"


def orch_identity() -> str:
    """The interpreter of orch, and its files."""
    files = sha256(repr(sorted(own_files().items())).encode()).hexdigest()
    return f"{files} {sys.executable} {sys.version}"


def differing(now: Mapping[str, str], then: Mapping[str, str]) -> str | None:
    """The first condition that differs."""
    return next((name for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)), None)


def read_holding(place: Directory) -> Holding | None:
    """Return the description of the holder; None if there is none, or another version wrote it."""
    try:
        return Holding.model_validate(place.read_object(HOLDER))
    except ValidationError:
        return None


@contextmanager
def live_places() -> Iterator[list[tuple[Directory, Holding | None]]]:
    """Yield the places of all holders of this user that live, with their descriptions. NotOurs, UsageError, OSError."""
    with ExitStack() as stack:
        found: list[tuple[Directory, Holding | None]] = []
        try:
            warm = stack.enter_context(open_warm())
        except FileNotFoundError:
            yield found
            return
        for name in warm.entries():
            try:
                place = stack.enter_context(warm.sub(name))
            except OSError:
                continue  # not made by orch
            held = probe_in(place, LOCK)
            if held is Held.YES:
                found.append((place, read_holding(place)))
            elif held is Held.NO:
                _remove_left(warm, name, place)
        yield found


def _remove_left(warm: Directory, name: str, place: Directory) -> None:
    """Remove the place of a holder that was killed."""
    with suppress(OSError, UsageError):
        lock = Lock.acquire_in(place, LOCK)
        if lock is None:
            return
        try:
            remove_place(warm, name, place)
        finally:
            lock.release()


def remove_place(warm: Directory, name: str, place: Directory) -> None:
    """Remove the place of a holder. The caller has its lock. OSError.

    A process that opened it before gets a FileNotFoundError, or the lock of a new file.
    """
    for file in (HOLDER, WARM_SOCKET, LOG, LOCK):
        place.unlink(file)
    warm.remove_empty(name)


def take_over(directory: str) -> tuple[socket.socket, Holding] | None:
    """Connect to the holder of a directory that waits; None without one, or if it does not answer."""
    try:
        with open_warm() as warm, warm.sub(warm_name(directory)) as place:
            try:
                return _greeted(connect_in(place, WARM_SOCKET, ANSWER_S))
            except ConnectionRefusedError:
                if probe_in(place, LOCK) is Held.NO:  # it was killed
                    place.unlink(WARM_SOCKET)
                return None
            except ValidationError:  # a holder of another version
                dismiss(place)
                return None
    except (OSError, ValueError):
        return None


def _greeted(connection: socket.socket) -> tuple[socket.socket, Holding] | None:
    with ExitStack() as stack:
        stack.enter_context(connection)
        if peer_user(connection) != os.geteuid() or is_stopped(peer_pid(connection)):
            return None
        with connection.makefile("rb") as greeting:
            holding = Holding.model_validate_json(greeting.readline(_MOST_BYTES))
        stack.pop_all()
        return connection, holding


def dismiss(place: Directory) -> None:
    """Ask the holder of a place to leave: now, or after its run. OSError."""
    place.unlink(HOLDER)
    with suppress(OSError):  # it has a run, or is leaving
        connect_in(place, WARM_SOCKET, ANSWER_S).close()  # wakes it


def dismiss_holder_of(directory: str) -> None:
    """Like dismiss(), if the directory has a holder."""
    with suppress(OSError), open_warm() as warm, warm.sub(warm_name(directory)) as place:
        dismiss(place)
