"""The server of this user: `ui/` of the state directory says which process serves, and at which address.

`lock` is held by the server, so that there is one at a time. `users` is held, shared, by each `orch up --ui`; a server
that one of them has started ends when none is left. `server.json` has the address with its token, for this user only.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Self

from orchestrator.core.errors import EngineError
from orchestrator.store.directory import Directory
from orchestrator.store.runs.locks import Held, Lock, probe_in, take_unless_held
from orchestrator.store.runs.paths import state_dir

_PLACE, _LOCK, _USERS, _SERVER, _LOG = "ui", "lock", "users", "server.json", "server.log"
# A server that ends, or one that is about to write its address, takes less.
_PATIENCE_S = 5.0
_RETRY_S = 0.01


@dataclass(frozen=True)
class Server:
    """A server that runs. `is_shared`: it ends with the last `orch up --ui`."""

    address: str
    pid: int
    is_shared: bool = False


class Registration:
    """The right to be the server of this user, until release() or the end of the process."""

    def __init__(self, place: Directory, lock: Lock) -> None:
        self._place = place
        self.lock = lock

    @classmethod
    def take(cls) -> Self | None:
        """None if another process serves. NotOurs, UsageError, OSError."""
        place = _open()
        lock = take_unless_held(place, _LOCK)
        if lock is None:
            place.close()
            return None
        place.unlink(_SERVER)  # of a server that was killed
        return cls(place, lock)

    @classmethod
    def inherited(cls, lock: int) -> Self:
        """The registration of the process that has started this one, with the descriptor of its lock."""
        return cls(_open(), Lock(lock))

    def publish(self, server: Server) -> None:
        """Write the address for this user's other commands. OSError."""
        self._place.write_atomically(_SERVER, json.dumps({"schema_version": 1, **asdict(server)}))

    def open_log(self) -> int:
        """Return the descriptor of an empty file for the errors of a server without a terminal. OSError."""
        return self._place.open_private(_LOG, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)

    def withdraw(self) -> None:
        """Remove the address, and let another process serve."""
        try:
            self._place.unlink(_SERVER)
        except OSError:
            pass  # without the lock it counts for nothing
        self.release()

    def release(self) -> None:
        """Close the descriptors of this process. A process that inherited the lock still holds it."""
        self.lock.release()
        self._place.close()


def running_server() -> Server | None:
    """Return the server of this user that runs, if there is one."""
    try:
        with Directory.open(state_dir()) as state, state.sub(_PLACE) as place:
            deadline = time.monotonic() + _PATIENCE_S
            while probe_in(place, _LOCK) is Held.YES and time.monotonic() < deadline:
                server = _read(place)
                if server is not None:
                    return server
                time.sleep(_RETRY_S)
    except FileNotFoundError:
        pass
    return None


def hold_as_user() -> Lock:
    """Keep a server that `orch up --ui` has started. EngineError, UsageError, OSError."""
    with _open() as place:
        deadline = time.monotonic() + _PATIENCE_S
        while (lock := Lock.share_in(place, _USERS)) is None:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{place.path}/{_USERS}: a server of the page that should end is still there"
                )
            time.sleep(_RETRY_S)
    return lock


def wait_until_unused() -> Lock:
    """Return when no `orch up --ui` is left, and keep new ones waiting. OSError."""
    with _open() as place:
        fd = place.open_private(_USERS, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return Lock(fd)


def _open() -> Directory:
    with Directory.create(state_dir()) as state:
        return state.make(_PLACE)


def _read(place: Directory) -> Server | None:
    document = place.read_object(_SERVER) or {}
    try:
        return Server(str(document["address"]), int(document["pid"]), bool(document["is_shared"]))
    except (KeyError, TypeError, ValueError):
        return None
