"""Agents on many pretended hosts, in one process: they speak the real stream, but start no tasks.

simulated_hosts.py is the other end. It sends each connection to a host as a descriptor over a socket, with the name of
the host.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from worker.agent.resumable_stream import ResumableStream
from worker.wire.codec import encode
from worker.wire.messages import (
    Begun,
    Empty,
    Exited,
    ExitFacts,
    FromAgent,
    Held,
    Hello,
    Hold,
    HostFacts,
    Leave,
    Listening,
    Log,
    Preloaded,
    PreloadOrder,
    ProgressMade,
    Run,
    Sampled,
    Started,
    Stop,
    TaskOrder,
    ToAgent,
    Usage,
)

_HELLO_BYTES = 1 << 16
_LOG = b"".join(b"line %d of a task on a pretended host\n" % line for line in range(4))
# As agents do: worker/agent/sampling.py.
_SAMPLE_S = 2.0
_FIRST_PORT = 20_000


class _Handed:
    """In the place of the socket on which an agent listens for relays: connections are handed to it."""

    def __init__(self) -> None:
        # A descriptor that is never readable, to be watched.
        self._fd = os.eventfd(0)
        self.waiting: list[socket.socket] = []

    def setblocking(self, _: bool) -> None:
        return

    def fileno(self) -> int:
        return self._fd

    def accept(self) -> tuple[socket.socket, None]:
        return self.waiting.pop(), None

    def close(self) -> None:
        os.close(self._fd)


class FakeAgent:
    """The agent of one host. `due`: when it has something to report again (monotonic seconds)."""

    def __init__(
        self,
        number: int,
        name: str,
        parameters: dict[str, Any],
        poller: select.epoll,
        step_s: float,
        forged: dict[str, Any],
    ) -> None:
        """`forged`: a type of report, the fields that it changes in all of them, and the type that it `becomes`."""
        self._number = number
        self._name = name
        self._listener = _Handed()
        self._stream = ResumableStream(
            self._listener,  # type: ignore[arg-type]
            parameters["agent_id"],
            parameters["link_timeout_s"],
            poller,
        )
        self._forged = forged
        self._tasks: list[str] = []
        self._step_s = step_s or math.inf
        self._steps = 0
        self._sample_due = time.monotonic() + _SAMPLE_S
        self._step_due = time.monotonic() + self._step_s
        self.has_left = False
        self._hello()

    def connect(self, stream: socket.socket) -> None:
        self._listener.waiting.append(stream)
        self._stream.read(self._listener.fileno())

    def serve(self, fd: int) -> None:
        if not self._stream.serves(fd):
            return  # a newer connection has just replaced this one
        for message in self._stream.read(fd)[0]:
            self._handle(message)
        if not self.has_left:
            self._stream.flush()

    @property
    def due(self) -> float:
        return min(self._sample_due, self._step_due)

    def advance(self, now: float) -> None:
        if now >= self._sample_due:
            self._sample_due = now + _SAMPLE_S
            if self._tasks:
                self._send(Sampled(dict.fromkeys(self._tasks, Usage(98.4, 1_234_567_890))))
        if now >= self._step_due:
            self._step_due = now + self._step_s
            self._steps += 1
            progress = json.dumps({"phase": "training", "step": self._steps, "loss": 0.5})
            for task in self._tasks:
                self._send(ProgressMade(task, progress))
        self._stream.flush()

    def _send(self, message: FromAgent) -> None:
        kind = type(message).__name__
        if self._forged.get("type") != kind:
            self._stream.send(message)
            return
        fields = {**json.loads(encode(message)), **self._forged}
        fields["type"] = fields.pop("becomes", kind)
        self._stream.send_line(json.dumps(fields).encode() + b"\n")

    def _hello(self) -> None:
        facts = HostFacts(
            directory=f"/tmp/orch-{self._number}",
            addresses={"eth0": self._address},
            reached=self._address,
            memory_bytes=64 << 30,
            gpus=(),
            gpu_lack=None,
            python="3.11.2",
            allowed_cores=tuple(range(8)),
        )
        self._send(Hello(self._name, 1000 + self._number, 8, facts))

    @property
    def _address(self) -> str:
        return f"10.1.{self._number >> 8}.{self._number & 255}"

    def _handle(self, message: ToAgent) -> None:
        match message:
            case Run():
                self._send(Begun(message.run_id))
            case Hold():
                ports = tuple(_FIRST_PORT + index for index in range(message.count))
                self._send(Held(message.number, ports))
            case PreloadOrder():
                self._send(Preloaded(message.modules, 1.5))
            case TaskOrder():
                self._start(message.task)
            case Stop():
                for task in self._tasks:
                    facts = ExitFacts(None, 15, time.monotonic(), asked=True, peak_bytes=1_234_567_890)
                    self._send(Exited(task, facts))
                self._tasks.clear()
                self._send(Empty(0))
            case Leave():
                self.has_left = True
                self._stream.flush()
                self._stream.close()

    def _start(self, task: str) -> None:
        self._tasks.append(task)
        self._send(Started(task, 5000, 1, "spawn"))
        self._send(Log(task, 0, _LOG))
        self._send(Listening(task))


class FakeHosts:
    """Serves the connections that arrive over `hub` until it is closed."""

    def __init__(self, hub: socket.socket, step_s: float, forged: dict[str, dict[str, Any]]) -> None:
        """`forged`: {host: the fields that it changes in its reports of one type}."""
        self._hub = hub
        self._forged = forged
        self._step_s = step_s
        self._poller = select.epoll()
        self._poller.register(hub, select.EPOLLIN)
        self._openings: dict[int, tuple[str, socket.socket, bytes]] = {}
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
                if now >= agent.due:
                    agent.advance(now)

    def _take_connection(self) -> None:
        name, fds, _, _ = socket.recv_fds(self._hub, 1024, 1)
        if not name:
            self._is_open = False
            return
        stream = socket.socket(fileno=fds[0])
        stream.setblocking(False)
        self._openings[stream.fileno()] = (name.decode(), stream, b"")
        self._served[stream.fileno()] = lambda: self._open(stream.fileno())
        self._poller.register(stream, select.EPOLLIN)

    def _open(self, fd: int) -> None:
        """Take what would be the program of stage 1, and its parameters."""
        name, stream, received = self._openings[fd]
        received += stream.recv(_HELLO_BYTES)
        if received.count(b"\n") < 2:
            self._openings[fd] = (name, stream, received)
            return
        del self._openings[fd]
        self._poller.unregister(fd)
        parameters = json.loads(received.split(b"\n")[1])
        if name not in self._agents:
            self._agents[name] = FakeAgent(
                len(self._agents), name, parameters, self._poller, self._step_s, self._forged.get(name, {})
            )
        agent = self._agents[name]
        stream.send((parameters["mark"] + json.dumps({"state": "ready"}) + "\n").encode())
        self._served[fd] = lambda: self._serve(name, fd)
        agent.connect(stream)

    def _serve(self, name: str, fd: int) -> None:
        agent = self._agents[name]
        agent.serve(fd)
        if agent.has_left:
            del self._agents[name]


if __name__ == "__main__":
    FakeHosts(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]), json.loads(sys.argv[3])).serve()
