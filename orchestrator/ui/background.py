"""Starts the server of the page for `orch up --ui`: a separate process, which ends with the last such command.

It runs as `python -m orchestrator.ui` and reads its parameters from standard input, because other users can read the
arguments of a process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.core.errors import EngineError
from orchestrator.host.isolation import isolated
from orchestrator.ui.address import listen, new_token, token_address
from orchestrator.ui.registry import Registration, Server, hold_as_user, running_server, wait_until_unused

PACKAGES = ("starlette", "uvicorn", "anyio", "h11", "click", "idna", "sniffio")


@contextmanager
def shared_server() -> Iterator[str]:
    """Yield the address of this user's server, which is started if none runs. EngineError, UsageError, OSError."""
    lock = hold_as_user()
    try:
        registration = Registration.take()
        server = running_server() if registration is None else None
        if registration is not None:
            yield _start(registration)
        elif server is not None:
            yield server.address
        else:
            raise EngineError("the page's server does not start; see `ui/server.log` in the state directory")
    finally:
        lock.release()


def _start(registration: Registration) -> str:
    """Start the process, with the lock and a socket that listens already: its address can be opened at once."""
    listener = listen("127.0.0.1", None)
    token, port = new_token(), listener.getsockname()[1]
    log = registration.open_log()
    try:
        passed = {"lock": registration.lock.fileno(), "listener": listener.fileno()}
        process = subprocess.Popen(
            isolated("orchestrator.ui", also_needs=PACKAGES),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=tuple(passed.values()),
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps({**passed, "token": token}).encode())
    finally:
        os.close(log)
        listener.close()
        registration.release()
    return token_address("127.0.0.1", port, token)


def main() -> int:
    from orchestrator.ui.access import Access
    from orchestrator.ui.serving import serve

    given = json.load(sys.stdin)
    for fd in (given["lock"], given["listener"]):
        os.set_inheritable(fd, False)
    registration = Registration.inherited(given["lock"])
    listener = socket.socket(fileno=given["listener"])
    access = Access("127.0.0.1", listener.getsockname()[1], given["token"])
    registration.publish(Server(access.address, os.getpid(), is_shared=True))
    try:
        serve(listener, access, report=_log, until=wait_until_unused)
    finally:
        registration.withdraw()
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
