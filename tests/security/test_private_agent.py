"""An agent in a private network does all that it does elsewhere; one that serves several runs changes networks."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from agent_driving import POLITE, Driver, python
from waiting import until

from orchestrator import Session
from orchestrator.core.job.choices import NetworkOption
from worker.wire.messages import Listening

pytestmark = pytest.mark.usefixtures("private_network", "no_leaked_descriptors")
LISTENER = """
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
time.sleep(600)
"""
SAYS_NETWORK = "import os; print(os.readlink('/proc/self/ns/net'))"


def test_readiness_samples_and_stops(tmp_path: Path) -> None:
    """A program outside may use the same port."""
    with Driver(tmp_path, network=NetworkOption.PRIVATE) as agent, socket.socket() as outside:
        port = bound(outside, agent.hold(20))
        agent.start("worker:0", [*python(LISTENER), str(port)], port=port, serves=True)
        agent.start("worker:1", python(POLITE))
        agent.wait_for(Listening, "worker:0")
        agent.wait_for_line("worker:1")
        agent.until_uses("worker:0", 1 << 20)
        agent.end(grace_s=60)
        assert agent.exits()["worker:1"].exit_code == 5


def bound(outside: socket.socket, ports: tuple[int, ...]) -> int:
    """The first of `ports` that is free outside, too, and now taken there."""
    for port in ports:
        try:
            outside.bind(("", port))
        except OSError:
            continue
        return port
    raise AssertionError(f"somebody has them all: {ports}")


def test_session_switches_between_networks() -> None:
    host = str(Path("/proc/self/ns/net").readlink())
    seen = []
    with Session() as session:
        for network in ("host", "private", "private", "host"):
            command = [sys.executable, "-c", SAYS_NETWORK]
            with session.up(command=command, network=network) as run:
                run.wait()
                seen.append(until(lambda run=run: run.log("worker:0").read_text()).strip())  # type: ignore[misc]
    assert [network == host for network in seen] == [True, False, False, True]
    assert seen[1] == seen[2], "the agent was kept"
