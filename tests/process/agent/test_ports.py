"""Held ports: only the task can bind them, and the site's port server is used."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from agent_driving import Driver, can_bind, python
from waiting import until

from worker.agent.ports import HeldPorts, PortsExhausted
from worker.wire.facts import HoldMode
from worker.wire.messages import Held, Hold, HoldFailed, Listening

MODES: list[HoldMode] = ["reuse_port", "reuse_addr"]
OPTIONS = {"plain": None, "reuse_addr": socket.SO_REUSEADDR, "reuse_port": socket.SO_REUSEPORT}
PLACES = {
    "any": (socket.AF_INET, ""),
    "loopback": (socket.AF_INET, "127.0.0.1"),
    "any6": (socket.AF_INET6, ""),
    "loopback6": (socket.AF_INET6, "::1"),
}


def attempts(port: int) -> set[str]:
    """Try to bind the port with each option at each address. Return the binds that succeed."""
    got = set()
    for (option, number), (place, (family, host)) in itertools.product(OPTIONS.items(), PLACES.items()):
        with contextlib.suppress(OSError), socket.socket(family) as tried:
            if number is not None:
                tried.setsockopt(socket.SOL_SOCKET, number, 1)
            tried.bind((host, port))
            tried.listen()
            got.add(f"{option} {place}")
    return got


@contextlib.contextmanager
def port_server(address: str, answers: Sequence[int]) -> Iterator[list[str]]:
    """A port server speaking portpicker's protocol: the pids that asked; the last answer is repeated."""
    asked: list[str] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.request.recv(100).decode().strip())
            self.request.sendall(b"%d\n" % answers[min(len(asked), len(answers)) - 1])

    name = "\0" + address[1:] if address.startswith("@") else address
    with socketserver.UnixStreamServer(name, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def free_ports(count: int) -> list[int]:
    """Return free ports from a range that neither the kernel nor portpicker assigns from."""
    candidates = random.SystemRandom().sample(range(25_000, 32_000), 500)
    return list(itertools.islice(filter(can_bind, candidates), count))


@pytest.mark.parametrize("mode", MODES)
def test_only_the_agreed_socket_option_can_bind(mode: HoldMode) -> None:
    with HeldPorts() as held:
        ports = held.hold(40, mode)
        assert len(set(ports)) == 40 and set(held.ports) == set(ports)
        assert not any(can_bind(port) for port in ports)
        got = attempts(port := ports[0])
    assert held.ports == ()
    assert {attempt.split()[0] for attempt in got} == {mode}
    assert f"{mode} any" in got and f"{mode} loopback" in got
    everybody = attempts(0)
    assert len(everybody) in (6, 12)  # IPv4 alone, or IPv6 as well
    # After its release any bind succeeds; another program may have it for a moment.
    until(lambda: attempts(port) == everybody and all(can_bind(each) for each in ports))


@pytest.mark.parametrize("mode", MODES)
def test_every_connection_reaches_the_task(mode: HoldMode) -> None:
    option = socket.SO_REUSEPORT if mode == "reuse_port" else socket.SO_REUSEADDR
    with HeldPorts() as held, socket.socket() as server:
        (port,) = held.hold(1, mode)
        server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind(("127.0.0.1", port))
        server.listen(200)
        server.settimeout(30)
        for number in range(200):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                client.sendall(b"%d" % number)
                connection, _ = server.accept()
                with connection:
                    assert int(connection.recv(10)) == number


@pytest.mark.parametrize("mode", MODES)
def test_no_port_is_held_twice(mode: HoldMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agents pick the same free port at the same moment, and bind it with the same socket option."""
    first, second = free_ports(2)
    monkeypatch.setenv("PORTSERVER_ADDRESS", str(tmp_path / "server"))
    answers = [first, first, second, second]
    with port_server(str(tmp_path / "server"), answers), HeldPorts() as one, HeldPorts() as other:
        assert one.hold(1, mode) == [first]
        assert other.hold(1, mode) == [second]


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_port_server_of_the_site_is_used(
    kind: str, agent: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "server") if kind == "file" else f"@{tmp_path}"
    ports = free_ports(3)
    monkeypatch.setenv("PORTSERVER_ADDRESS", address)
    with port_server(address, ports) as asked:
        agent.next_run(tmp_path)  # with this variable
        assert agent.hold(3) == tuple(ports)
        # The server assigns ports to a process as long as it lives. That process must be the agent.
        assert asked == [str(agent.pid)] * 3


def test_port_taken_meanwhile_is_skipped_and_missing_ports_are_reported(
    agent: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = free_ports(1)
    address = str(tmp_path / "server")
    monkeypatch.setenv("PORTSERVER_ADDRESS", address)
    with socket.create_server(("", 0)) as other, HeldPorts() as held:
        taken = other.getsockname()[1]
        with port_server(address, [taken, good]):
            assert held.hold(1, "reuse_port") == [good]
        Path(address).unlink()
        with port_server(address, [taken]):
            with pytest.raises(PortsExhausted):
                held.hold(1, "reuse_port")
            agent.next_run(tmp_path)  # with this variable
            agent.link.send(Hold(1, 1, "reuse_port"))
            assert "taken" in agent.wait_for(HoldFailed).reason
            assert not agent.all_of(Held)


SERVER = """
import os, socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
print("bound", flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
s.listen()
time.sleep(600)
"""


def test_task_is_ready_when_it_listens_itself(agent: Driver) -> None:
    """Or a child of it. When two more tasks are ready, two checks are over: another program's socket does not make a
    task ready."""
    ports = dict(zip(("itself", "its child", "b", "c"), agent.hold(4), strict=True))

    def start(name: str, file: str) -> None:
        argv = [*python(SERVER), str(ports[name]), file]
        if name == "its child":
            argv = ["sh", "-c", '"$@" & wait', "sh", *argv]
        agent.start(name, argv, port=ports[name], serves=True)
        agent.wait_for_line(name, "bound\n")

    with socket.socket() as other, socket.socket() as another:
        for name, foreign in (("itself", other), ("its child", another)):
            start(name, "listen")
            foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            foreign.bind(("127.0.0.1", ports[name]))
            foreign.listen()
        for name in ("b", "c"):
            start(name, name)
            (agent.directory / name).touch()
            agent.wait_for(Listening, name)
        assert {message.task for message in agent.all_of(Listening)} == {"b", "c"}
    (agent.directory / "listen").touch()
    for name in ("itself", "its child"):
        agent.wait_for(Listening, name)
