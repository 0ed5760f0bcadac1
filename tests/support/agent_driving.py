"""A real agent at the other end of a real stream, driven as the supervisor drives it: also with a preloader."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
from waiting import PATIENCE_S, child_with, until, until_gone

from orchestrator.engines import agent_words
from orchestrator.engines.local import LocalEngine
from orchestrator.links.agent_link import AgentLink, AgentMessage
from orchestrator.links.client_link import pack_environ
from worker.wire import messages
from worker.wire.facts import ExitFacts, HoldMode

# Long enough that a test which waits for it has failed.
FOREVER_S = 600.0
PYTHON = os.environ.get("ORCH_TEST_PYTHON", sys.executable)
LIGHT = ("json", "decimal", "logging", "multiprocessing")
M = TypeVar("M")


def python(program: str) -> list[str]:
    """A Python that starts fast: no site-packages. Not -u: a print would be several writes, and may be torn."""
    return [sys.executable, "-I", "-S", "-c", program]


SLEEPER = "import time; time.sleep(600)"
IGNORES_SIGTERM = f"import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); {SLEEPER}"
# It sleeps in short intervals: a signal that arrives right before a sleep is handled after it.
POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("up", flush=True)
while True:
    time.sleep(0.1)
"""
# Ignores SIGTERM, like its grandchild, a daemon in another session.
DAEMONISES = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("grandchild", os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
print("up", flush=True)
{SLEEPER}
"""


@dataclass(frozen=True)
class Ending:
    """The end of a command, and its stdout and stderr in one text."""

    exit_code: int | None
    signal: int | None
    text: str

    @classmethod
    def of(cls, exit_code: int | None, signal: int | None, text: str) -> Ending:
        """Leave out addresses in memory, which differ from process to process."""
        return cls(exit_code, signal, re.sub("0x[0-9a-f]+", "0x", text))


def run_order(run_id: str, place: Path, **changes: Any) -> messages.Run:
    """The order to serve a run in this directory."""
    log = str(place / "agent.log")
    order = messages.Run(run_id, 0.1, log, None, pack_environ(os.environ), "host")
    return replace(order, **changes)


class Driver:
    """Drives an agent over its stream; tasks log into `directory`. The end of the `with` ends the agent."""

    # Options of the interpreter and variables of the preloader, which tasks get, too.
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = {}

    def __init__(self, directory: Path, failure_grace_s: float = 0.1, network: str = "host") -> None:
        self.messages: list[AgentMessage] = []
        self.directory = directory
        with (directory / "agent.log").open("ab") as errors:
            self._connection = LocalEngine().connect("", agent_words(), errors.fileno())
        self.stream = self._connection.stream
        self.link = AgentLink(self.stream)
        self.link.serve(run_order("run-1", directory, failure_grace_s=failure_grace_s, network=network))
        self.open = True

    def __enter__(self) -> Driver:
        self.pid = self.wait_for(messages.Hello).pid
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._check_log()

    def close(self) -> None:
        """Close the stream, and wait until the agent has exited."""
        self.link.close()
        if psutil.pid_exists(self.pid):
            os.kill(self.pid, signal.SIGCONT)
        gone = self._connection.wait(PATIENCE_S)
        self._connection.kill()
        assert gone, "the agent did not exit"

    def next_run(self, directory: Path) -> None:
        """Let the agent serve another run in this directory, as after a run that has ended."""
        self.messages.clear()
        self.directory, self.flags, self.env = directory, (), {}
        self.link.serve(run_order(str(directory), directory))
        self.hold(0)  # as each attempt begins
        self.messages.clear()

    @contextmanager
    def run_in(self, directory: Path) -> Iterator[Driver]:
        """Serve a run in this directory. At its end the agent has the processes and descriptors of before."""
        before, opened = self._children(), self._descriptors()
        self.next_run(directory)
        yield self
        self.end()
        if (preloader := child_with(self.pid, "preloader")) is not None:
            os.kill(preloader, signal.SIGKILL)
            until_gone(preloader)
        try:
            until(lambda: self._children() == before and self._descriptors() <= opened)
        except AssertionError:
            more = f"processes {self._children() - before}, descriptors {opened} -> {self._descriptors()}"
            raise AssertionError(f"the run has left in the agent: {more}") from None
        self._check_log()

    def _children(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.pid).children()}

    def _descriptors(self) -> int:
        return len([*Path(f"/proc/{self.pid}/fd").iterdir()])

    def _check_log(self) -> None:
        words = (self.directory / "agent.log").read_text()
        assert "Traceback" not in words, words

    def start(self, name: str, argv: list[str], env: dict[str, str] | None = None, **changes: object) -> None:
        cwd, log = str(self.directory), str(self.log(name))
        order = messages.TaskOrder(name, tuple(argv), env or {}, cwd, log, port=None, serves=False)
        self.link.send(replace(order, **changes))  # type: ignore[arg-type]

    def preload(self, *modules: str, flags: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self.flags, self.env = tuple(flags), env or {}
        log = str(self.directory / "preloader.log")
        order = messages.PreloadOrder(
            (PYTHON, *flags), self.env, str(self.directory), modules or LIGHT, {}, log
        )
        self.link.send(order)

    def library(self, **modules: str) -> dict[str, str]:
        """Create a directory of modules. Return the variable that makes them importable."""
        place = self.directory / "library"
        place.mkdir(exist_ok=True)
        for name, text in modules.items():
            (place / f"{name}.py").write_text(text)
        return {"PYTHONPATH": str(place)}

    def run_task(
        self,
        name: str,
        words: Sequence[str],
        fork: bool,
        env: Mapping[str, str] | None = None,
        **changes: object,
    ) -> None:
        """Start `PYTHON FLAGS WORDS` with the bootstrap that the orchestrator would ask for."""
        files = {kind: str(self.directory / f"{name}.{kind}") for kind in ("exception", "stacks")}
        self.start(
            name,
            [PYTHON, *self.flags, *words],
            {**self.env, **(env or {})},
            bootstrap={
                "task": name,
                "exception_file": files["exception"],
                "stacks_file": files["stacks"],
                "fixes": False,
            },
            fork=fork,
            **changes,
        )

    def forked(self, name: str, words: Sequence[str], **order: Any) -> str:
        """Run a task to its end, which must have been forked. Return its output."""
        self.run_task(name, words, fork=True, **order)
        text = self.ending(name).text
        assert self.method_of(name) == "fork", self.refusals()
        return text

    def signal(self, name: str, number: int) -> None:
        self.link.send(messages.Signal(name, number))

    def ask_stacks(self, *names: str, native: bool = False) -> bool:
        return self.link.send(messages.TakeStacks(names, native))

    def exited(self, name: str) -> ExitFacts:
        """Wait for the end of a task."""
        return self.wait_for(messages.Exited, name).exit

    def ending(self, name: str) -> Ending:
        exited = self.exited(name)
        return Ending.of(exited.exit_code, exited.signal, self.text(name))

    def method_of(self, name: str) -> str:
        return self.wait_for(messages.Started, name).method

    def wait_until_preloaded(self) -> messages.Preloaded:
        return self.wait_for(messages.Preloaded)

    def refusals(self) -> list[str]:
        return [message.reason for message in self.messages if isinstance(message, messages.NotPreloaded)]

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def text(self, name: str) -> str:
        return self.log(name).read_text() if self.log(name).exists() else ""

    def wait_for_line(self, name: str, text: str = "up\n") -> str:
        """Wait until the task's log contains `text` (by default its first line). Return the log."""
        return until(lambda: self.text(name) if text in self.text(name) else None)

    def pid_of(self, name: str) -> int:
        return self.wait_for(messages.Started, name).pid

    def grandchild_of(self, name: str) -> int:
        """The pid of the daemon, which the task has written to its log."""
        self.wait_for_line(name)
        found = until(lambda: re.search(r"grandchild (\d+)\n", self.text(name)))
        return int(found[1])

    def hold(self, count: int, mode: HoldMode = "reuse_port") -> tuple[int, ...]:
        self.link.send(messages.Hold(1, count, mode))
        return self.wait_for(messages.Held).ports

    def end(self, grace_s: float = 0.0) -> messages.Empty:
        self.link.send(messages.Stop(grace_s))
        return self.wait_for(messages.Empty)

    def exits(self) -> dict[str, ExitFacts]:
        """The ends of tasks that were reported, in that order."""
        return {message.task: message.exit for message in self.all_of(messages.Exited)}

    def all_of(self, kind: type[M]) -> list[M]:
        """The messages of this kind that have arrived."""
        return [message for message in self.messages if isinstance(message, kind)]

    def forget(self, kind: type[M]) -> None:
        self.messages = [message for message in self.messages if not isinstance(message, kind)]

    def wait_for(self, kind: type[M], task: str | None = None) -> M:
        """Return the first message of this kind (and task), which may have arrived already."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for message in self.messages:
                if isinstance(message, kind) and task in (None, getattr(message, "task", None)):
                    return message
            assert self.open, f"the agent exited without {kind.__name__}: {self.messages}"
            assert time.monotonic() < deadline, f"no {kind.__name__}: {self.messages}"
            self.receive()

    def receive(self) -> None:
        """Receive the messages that have arrived, or wait briefly for one."""
        select.select([self.link], [], [], 0.2)
        arrived, self.open = self.link.read()
        self.messages += arrived

    def receive_all(self) -> list[AgentMessage]:
        """Receive until the agent exits, and return all messages."""
        while self.open:
            self.receive()
        return self.messages


def signal_and_wait(pid: int, number: int, letters: str) -> None:
    """Send a signal and wait until the process is in one of these states."""
    os.kill(pid, number)
    until(lambda: state_letter(pid) in letters)


def state_letter(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
