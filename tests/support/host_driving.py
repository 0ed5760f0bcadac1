"""An agent of "another host" that is this machine: reached by `sh -c`, with a real guard and agent."""

from __future__ import annotations

import secrets
import shlex
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
from agent_driving import Driver, run_order
from waiting import lives, until

from orchestrator.engines import Connection
from orchestrator.links.host_link import HostLink
from orchestrator.links.opening import Opening, remote_command
from orchestrator.links.start_queue import StartQueue
from orchestrator.store.directory import Directory
from orchestrator.store.logs.received import ReceivedLogs
from worker.wire.messages import Hello, Log

RUN = "run-1"


class Shell:
    """An engine whose hosts are this machine. It explains an end by its exit code and the text."""

    leave_s = unanswered_s = 30.0
    is_remote = True

    def connect(self, destination: str, words: list[str], errors: int | None = None) -> Connection:
        return Connection(["sh", "-c", " ".join(words)], errors)

    def explain(self, host: str, exit_code: int | None, errors: str, messages: str | None = None) -> str:
        return f"{host}: exit code {exit_code}: {errors}"

    def explain_silence(self, host: str, waited_s: float, errors: str) -> str:
        return f"{host}: no answer within {waited_s:g} s {errors}"

    def why_gone(self, host: str) -> str | None:
        return None


class NoProcess(Connection):
    """A connection without a process. `stream`: our end of it."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.process = SimpleNamespace(returncode=0, pid=2**22 + 1)  # type: ignore[assignment]

    def kill(self) -> None:
        return


class HostDriver(Driver):
    """Drives the agent as the supervisor does. Received logs are written into `directory`, as NAME.log."""

    def __init__(
        self,
        directory: Path,
        link_timeout_s: float = 60.0,
        before: str = "",
        python: str = sys.executable,
        name: str | None = None,
        is_piped: bool = False,
    ) -> None:
        """`before`: shell commands that run before orch's, as those of a start-up file. `name`: of a run, whose earlier
        agent is ended. `is_piped`: other processes carry the bytes."""
        self.messages = []
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.connections: list[Connection] = []
        command = before + remote_command(python)
        words = [f"cat | sh -c {shlex.quote(command)} | cat" if is_piped else command]

        def connect(errors: int) -> Connection:
            self.connections.append(Shell().connect("", words, errors))
            return self.connections[-1]

        opening = Opening(name or secrets.token_hex(8), "there", link_timeout_s)
        self.link: HostLink = HostLink(Shell(), "there", connect, opening, link_timeout_s, StartQueue())
        self.link.serve(run_order(RUN, directory, log=""))
        self._directory = Directory.open(directory)
        self.logs = ReceivedLogs(self._directory)
        self.open = True

    def __enter__(self) -> HostDriver:
        hello = self.wait_for(Hello)
        self.pid = hello.pid
        assert hello.facts is not None
        self.home = Path(hello.facts.directory)
        self.guard = psutil.Process(self.pid).ppid()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.open:
                self.leave()
        finally:
            self.close()

    def close(self) -> None:
        """End as a supervisor that is killed."""
        self.link.close()
        self.logs.close()
        self._directory.close()

    def leave(self) -> None:
        """End the agent; nothing is left of it."""
        self.link.leave()
        until(self.has_ended)
        assert not self.home.exists()
        assert not lives(self.guard)

    def has_ended(self) -> bool:
        self.receive()
        return not self.open

    @property
    def carriers(self) -> list[psutil.Process]:
        """The processes that carry the bytes (`is_piped`)."""
        children = psutil.Process(self.connections[-1].process.pid).children()
        return [child for child in children if child.name() == "cat"]

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
        self.link.tick(time.monotonic())
        super().receive()
        for message in self.messages[known:]:
            if isinstance(message, Log) and not message.task.startswith("@"):
                self.logs.write(message.task, message.offset, message.data, message.is_cut)
        self.messages[known:] = [each for each in self.messages[known:] if not isinstance(each, Log)]
