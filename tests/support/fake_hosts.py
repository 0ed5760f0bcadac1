"""Agents on many pretended hosts, in one process: they speak the real stream, but start no tasks.

simulated_hosts.py is the other end. It sends each connection to a host as a descriptor over a socket, with the name of
the host.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from worker.wire import messages
from worker.wire.codec import encode
from worker.wire.facts import ExitFacts, HostFacts, Usage
from worker.wire.lease import Lease
from worker.wire.stream import Stream

_READ_BYTES = 1 << 16
_LOG = b"".join(b"line %d of a task on a pretended host\n" % line for line in range(4))
# As agents do: worker/agent/sampling.py.
_SAMPLE_S = 2.0
_FIRST_PORT = 20_000


class FakeAgent:
    """The agent of one host. `due`: when it sends the next sample (monotonic seconds)."""

    def __init__(
        self,
        number: int,
        name: str,
        connected: socket.socket,
        poller: select.epoll,
        forged: dict[str, Any],
    ) -> None:
        """`forged`: a type of report, the fields that it changes in all of them, and the type that it `becomes`."""
        self._connected = connected
        self._stream = Stream(connected.fileno(), connected.fileno(), poller)
        self._lease = Lease(time.monotonic())
        self._forged = forged
        self._tasks: list[str] = []
        self.due = time.monotonic() + _SAMPLE_S
        self.has_left = False
        address = f"10.1.{number >> 8}.{number & 255}"
        facts = HostFacts(
            directory=f"/tmp/orch-{number}",
            machine=(str(number),),
            addresses={"eth0": address},
            reached=address,
            memory_bytes=64 << 30,
            gpus=(),
            gpu_lack=None,
            python="3.11.2",
            allowed_cores=tuple(range(8)),
        )
        self._send(messages.Hello(name, 1000 + number, 8, facts))

    def serve(self) -> None:
        lines, is_open = self._stream.read()
        for line in lines:
            self._handle(messages.decode_order(line))
        if not is_open:
            self.has_left = True
            self._stream.close()
            self._connected.close()

    def advance(self, now: float) -> None:
        if now >= self.due:
            self.due = now + _SAMPLE_S
            if self._tasks:
                self._send(messages.Sampled(dict.fromkeys(self._tasks, Usage(98.4, 1_234_567_890))))

    def _send(self, message: messages.FromAgent) -> None:
        kind = type(message).__name__
        if self._forged.get("type") != kind:
            self._stream.send(encode(message))
            return
        fields = json.loads(encode(message))
        facts = self._forged.get("facts")
        fields |= self._forged | ({"facts": fields["facts"] | facts} if facts else {})
        fields["type"] = fields.pop("becomes", kind)
        self._stream.send(json.dumps(fields).encode() + b"\n")

    def _handle(self, message: messages.ToAgent) -> None:
        match message:
            case messages.Run():
                self._send(messages.Begun(message.run_id))
            case messages.Hold():
                ports = tuple(_FIRST_PORT + index for index in range(message.count))
                self._send(messages.Held(message.number, ports))
            case messages.PreloadOrder():
                self._send(messages.Preloaded(message.modules, 1.5))
            case messages.TaskOrder(task=task):
                self._tasks.append(task)
                self._send(messages.Started(task, 5000, 1, "spawn"))
                self._send(messages.Log(task, 0, _LOG))
                self._send(messages.Listening(task))
            case messages.Stop():
                for task in self._tasks:
                    facts = ExitFacts(None, 15, time.monotonic(), asked=True, peak_bytes=1_234_567_890)
                    self._send(messages.Exited(task, facts))
                self._tasks.clear()
                self._send(messages.Empty(0))
            case messages.Ping():
                now = time.monotonic()
                if not self._lease.take(message, now):
                    self._send(self._lease.ping(now))


class FakeHosts:
    """Serves the connections that arrive over `hub` until it is closed."""

    def __init__(self, hub: socket.socket, forged: dict[str, dict[str, Any]]) -> None:
        """`forged`: {host: the fields that it changes in its reports of one type}."""
        self._hub = hub
        self._forged = forged
        self._poller = select.epoll()
        self._poller.register(hub, select.EPOLLIN)
        self._openings: dict[int, tuple[str, socket.socket, bytearray]] = {}
        self._agents: dict[str, FakeAgent] = {}
        self._served: dict[int, Callable[[], None]] = {hub.fileno(): self._take_connection}
        self._is_open = True

    def serve(self) -> None:
        while self._is_open:
            due = min((agent.due for agent in self._agents.values()), default=time.monotonic() + 3600)
            for fd, _ in self._poller.poll(max(0.0, due - time.monotonic()), 1024):
                self._served[fd]()
            now = time.monotonic()
            for agent in self._agents.values():
                agent.advance(now)

    def _take_connection(self) -> None:
        name, fds, _, _ = socket.recv_fds(self._hub, 1024, 1)
        if not name:
            self._is_open = False
            return
        stream = socket.socket(fileno=fds[0])
        stream.setblocking(False)
        self._openings[stream.fileno()] = (name.decode(), stream, bytearray())
        self._served[stream.fileno()] = lambda: self._open(stream.fileno())
        self._poller.register(stream, select.EPOLLIN)

    def _open(self, fd: int) -> None:
        """Take what would be the program of stage 1, its parameters and the bundle."""
        name, stream, received = self._openings[fd]
        # The bundle is larger: what follows it stays in the socket.
        received += stream.recv(
            _READ_BYTES if received.count(b"\n", 0, _READ_BYTES) < 2 else self._missing(received)
        )
        if received.count(b"\n", 0, _READ_BYTES) < 2 or self._missing(received) > 0:
            return
        parameters = json.loads(received.split(b"\n", 2)[1])
        del self._openings[fd]
        self._poller.unregister(fd)
        stream.send((parameters["mark"] + json.dumps({"state": "ready"}) + "\n").encode())
        forged = self._forged.get(name, {})
        self._agents[name] = FakeAgent(len(self._agents), name, stream, self._poller, forged)
        self._served[fd] = lambda: self._serve(name)

    @staticmethod
    def _missing(received: bytearray) -> int:
        """The number of bytes of the bundle that have not arrived."""
        _, parameters, bundle = received.split(b"\n", 2)
        return int(json.loads(parameters)["bundle_bytes"]) - len(bundle)

    def _serve(self, name: str) -> None:
        self._agents[name].serve()
        if self._agents[name].has_left:
            del self._agents[name]


if __name__ == "__main__":
    FakeHosts(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])).serve()
