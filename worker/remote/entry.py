"""Starts an agent with its keeper on this host, or finds the agent again."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from worker.remote.clearing import clear_up
from worker.remote.stage1 import REPLACED, UNPACKING, bases, is_own_directory

SOCKET, LOG = "agent.sock", "agent.log"
_BACKLOG = 16
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A directory without a socket, and a bundle that is not whole, belong to a start that was cut off after this time.
_START_S = 600.0
# Bundles of other versions are kept for this long after their last use.
_OLD_S = 30 * 24 * 3600.0
# Longest time for a keeper to clear up after its agent, and the interval of looks at it.
_CLEARING_S, _CHECK_S = 6.0, 0.02


def start_or_find(parameters: dict[str, Any], directory: Path, bundle: str) -> socket.socket | None:
    """Return a connection to the agent; None if it is gone. Its processes and files are removed then."""
    if parameters["is_first"]:
        _clear_up_lost_agents()
        _remove_old_bundles(Path(bundle))
        _start_keeper(parameters, directory, bundle)
    stream = socket.socket(socket.AF_UNIX)
    try:
        stream.connect(str(directory / SOCKET))
    except OSError:
        stream.close()
        if parameters["is_first"]:
            raise
        deadline = time.monotonic() + _CLEARING_S
        while not _clear_up_if_lost(directory) and time.monotonic() < deadline:
            time.sleep(_CHECK_S)  # the keeper does it
        return None
    return stream


def _start_keeper(parameters: dict[str, Any], directory: Path, bundle: str) -> None:
    """Start the keeper, detached from this connection. The agent accepts from `listener`, which is open already."""
    # Programs that clean up /tmp leave a locked directory alone.
    lock = os.open(directory, _DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    log = os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / SOCKET))
        (directory / SOCKET).chmod(0o600)
        listener.listen(_BACKLOG)
        words = [
            *python_words(bundle, "worker.remote.keeper"),
            *(str(directory), bundle, parameters["agent_id"], str(parameters["link_timeout_s"])),
            *(str(listener.fileno()), str(lock)),
        ]
        subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            pass_fds=(listener.fileno(), lock),
        ).returncode = 0  # it outlives this process
    os.close(lock)
    os.close(log)


def python_words(bundle: str, module: str) -> list[str]:
    """The words that run a module of the bundle under this interpreter."""
    start = (
        "import runpy, sys; sys.path.insert(0, sys.argv[1]); module = sys.argv[2]; del sys.argv[1:3]; "
        "runpy.run_module(module, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-I", "-S", "-c", start, bundle, module]


def _remove_old_bundles(present: Path) -> None:
    """Remove bundles beside this one that were not used for long, and those whose unpacking was cut off."""
    for bundle in present.parent.iterdir():
        with suppress(OSError):  # another host with the same home does it, too
            age_s = time.time() - bundle.stat().st_mtime
            if bundle.name.startswith(UNPACKING) and age_s > _START_S:
                # Renamed first: if it is still being unpacked, that fails there, and never yields half a bundle.
                bundle = bundle.rename(bundle.with_name(REPLACED + bundle.name[len(UNPACKING) :]))
            is_unused = len(bundle.name) == len(present.name) and age_s > _OLD_S
            if is_unused or bundle.name.startswith(REPLACED):
                shutil.rmtree(bundle, ignore_errors=True)


def _clear_up_lost_agents() -> None:
    """Clear up after agents of this user that were killed with their keepers."""
    for base in bases():
        for directory in Path(base).glob(f"orch-agent-{os.geteuid()}-*"):
            if is_own_directory(str(directory)):
                _clear_up_if_lost(directory)


def _clear_up_if_lost(directory: Path) -> bool:
    """Return False if the keeper or the agent lives: each holds the lock."""
    try:
        lock = os.open(directory, _DIRECTORY)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (directory / SOCKET).exists() or time.time() - directory.stat().st_mtime > _START_S:
            clear_up(str(directory), None)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
