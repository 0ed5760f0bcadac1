"""An agent of "another host" that is this machine: reached by `sh -c`, with a real relay, keeper and agent."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
from agent_driving import Driver, run_order
from waiting import lives, until

from orchestrator.engines import Connection
from orchestrator.links.agent_link import AgentLink
from orchestrator.links.opening import RemoteAgent, remote_command
from orchestrator.links.resumable_stream import ResumableStream
from orchestrator.links.start_queue import StartQueue
from orchestrator.store.directory import Directory
from orchestrator.store.logs.received import ReceivedLogs
from worker.wire.messages import Hello, Log

RUN = "run-1"


class HostDriver(Driver):
    """Drives the agent as the supervisor does. Received logs are written into `directory`, as NAME.log."""

    def __init__(
        self,
        directory: Path,
        link_timeout_s: float = 60.0,
        before: str = "",
        python: str = sys.executable,
        host: RemoteAgent | None = None,
    ) -> None:
        """`before`: shell commands that run on each connection before orch's, as those of a start-up file."""
        self.messages = []
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.command = before + remote_command(python)
        self.relays: list[Connection] = []
        self.host = host or RemoteAgent.new("there", link_timeout_s)
        stream = ResumableStream(
            self.connect, self.host, lambda code, text, _: f"exit code {code}: {text}", StartQueue()
        )
        self.link = AgentLink(stream)
        self.link.serve(run_order(RUN, directory, log=""))
        self._directory = Directory.open(directory)
        self.logs = ReceivedLogs(self._directory)
        self.open = True

    def connect(self, errors: int) -> Connection:
        self.relays.append(Connection(["sh", "-c", self.command], errors))
        return self.relays[-1]

    def __enter__(self) -> HostDriver:
        hello = self.wait_for(Hello)
        self.pid = hello.pid
        assert hello.facts is not None
        self.home = Path(hello.facts.directory)
        self.keeper = psutil.Process(self.pid).ppid()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.open:
                self.leave()
        finally:
            self.close()

    def close(self) -> None:
        """End as an orchestrator that is killed."""
        self.link.close()
        self.logs.close()
        self._directory.close()

    def leave(self) -> None:
        """End the agent; nothing is left of it."""
        self.link.leave()
        until(self.has_ended)
        until(lambda: not self.home.exists())
        until(lambda: not lives(self.keeper))

    def has_ended(self) -> bool:
        self.receive()
        return not self.open

    def living_relays(self) -> list[psutil.Process]:
        """The relays of all connections: several while others are tried."""
        pids = [relay.process.pid for relay in self.relays if relay.process.poll() is None]
        return [psutil.Process(pid) for pid in pids]

    def cut(self) -> None:
        for relay in self.living_relays():
            relay.kill()

    def start(self, name: str, argv: list[str], env: dict[str, str] | None = None, **changes: object) -> None:
        root = self.home / RUN
        self.logs.add(name, self.log(name).name)
        changes = {"log": str(root / "logs" / f"{name}.log"), "cwd": "/", **changes}
        super().start(name, argv, env, **changes)

    def text(self, name: str) -> str:
        if self.open:
            self.receive()
        return super().text(name)

    def receive(self) -> None:
        """Take in what has come, or wait a moment for it."""
        known = len(self.messages)
        super().receive()
        for message in self.messages[known:]:
            if isinstance(message, Log) and not message.task.startswith("@"):
                self.logs.write(message.task, message.offset, message.data, message.is_cut)
        self.messages[known:] = [each for each in self.messages[known:] if not isinstance(each, Log)]
