"""The address of the server: where it listens, and its token. Imports little, because `orch up --ui` does."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from ipaddress import ip_address

from orchestrator.core.errors import UsageError

PORT = 7117
_LARGEST_PORT = 65_535
_TOKEN_BYTES = 32
_WILDCARDS = ("0.0.0.0", "::")


def require_extra(source: str) -> None:
    """UsageError if the packages of the server are not installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{source} needs {' and '.join(missing)}: pip install 'tf-orch[ui]'")


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def origin(host: str, port: int) -> str:
    host = "127.0.0.1" if host in _WILDCARDS else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def token_address(host: str, port: int, token: str) -> str:
    return f"{origin(host, port)}/?token={token}"


def is_loopback(host: str) -> bool:
    """True for `localhost` and for addresses that only this machine can reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens. None: the usual port, or another one if that is in use. UsageError."""
    if port is not None and not 0 <= port <= _LARGEST_PORT:
        raise UsageError(f"--port: {port} is not a port; write 1 to {_LARGEST_PORT}, or 0 for a free one")
    try:
        return _listening(host, PORT if port is None else port)
    except OSError as error:
        if port is None:
            return listen(host, 0)
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} is in use; name another one with --port N, or a free one with --port 0"
            ) from error
        raise UsageError(
            f"{host}:{port}: {error.strerror or error}; name another --port or --host"
        ) from error


def _listening(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A server that has just ended does not keep its port from the next one.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(socket.SOMAXCONN)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


def tunnel_hint(port: int, environ: Mapping[str, str]) -> str | None:
    """Return what to type on the user's own machine, if this one was reached by ssh."""
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    server, ssh_port = words[2], words[3]
    user = environ.get("USER") or environ.get("LOGNAME") or str(os.geteuid())
    option = "" if ssh_port == "22" else f"-p {ssh_port} "
    return f"on your own machine first: ssh -N {option}-L {port}:127.0.0.1:{port} {user}@{server}"
