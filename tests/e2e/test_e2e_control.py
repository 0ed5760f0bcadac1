"""A live run's control socket under callers of every kind: the run goes on, and who has an order is heard."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import psutil
from orch_command import Orch
from waiting import PATIENCE_S, until_gone

# With what a supervisor has open besides.
_MOST_FILES = 64 + 60


def call(control: Path) -> socket.socket:
    """A connection, whatever the length of the path."""
    connection = socket.socket(socket.AF_UNIX)
    directory = os.open(control.parent, os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{control.name}")
    finally:
        os.close(directory)
    connection.settimeout(PATIENCE_S)
    return connection


def test_callers_that_ask_for_nothing(orch: Orch) -> None:
    assert orch("up", "-dq", "--wait", "ready", "--", "sh", "-c", "exec sleep 600").code == 0
    control = orch.run_dir() / "control"
    supervisor = psutil.Process(orch.supervisor())
    with ExitStack() as silent:
        for _ in range(150):
            silent.enter_context(call(control))
        # Each of these words is answered, and none is an order.
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
        assert orch.status()["run"]["state"] == "running"
        assert orch("down", "-q").code == 0
    assert orch.result()["exit_code"] == 143
    until_gone(supervisor.pid)
    assert (orch.run_dir() / "supervisor.log").read_text() == ""
