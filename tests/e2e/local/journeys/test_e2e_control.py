"""The control socket of a live run with idle and invalid callers: the run continues and still accepts orders."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import psutil
from orch_command import Orch
from waiting import PATIENCE_S, until_gone

# The limit on idle connections, and the other open files of a supervisor.
_MOST_FILES = 64 + 60


def call(control: Path) -> socket.socket:
    """Connect to the socket, whatever the length of its path."""
    connection = socket.socket(socket.AF_UNIX)
    directory = os.open(control.parent, os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{control.name}")
    finally:
        os.close(directory)
    connection.settimeout(PATIENCE_S)
    return connection


def test_idle_and_invalid_callers_do_not_disturb_run(cold_orch: Orch) -> None:
    assert cold_orch("up", "-dq", "--wait", "ready", "--", "sh", "-c", "exec sleep 600").code == 0
    control = cold_orch.run_dir() / "control"
    supervisor = psutil.Process(cold_orch.supervisor())
    with ExitStack() as silent:
        for _ in range(150):
            silent.enter_context(call(control))
        # Each of these messages is answered and refused.
        for words in (
            b"\n",
            b"[" * 4000,
            b'{"op": "stop"',
            b'{"op": "kill", "task": "worker:0", "signal": 0}',
            b"\xff",
        ):
            with call(control) as caller:
                caller.sendall(words)
                assert b'"ok": false' in caller.recv(1 << 16)
        with call(control) as caller:
            caller.shutdown(socket.SHUT_WR)
            assert b'"ok": false' in caller.recv(1 << 16)
        assert supervisor.num_fds() < _MOST_FILES
        assert cold_orch.status()["run"]["state"] == "running"
        assert cold_orch("down", "-q").code == 0
    assert cold_orch.result()["exit_code"] == 143
    until_gone(supervisor.pid)
    assert (cold_orch.run_dir() / "supervisor.log").read_text() == ""
