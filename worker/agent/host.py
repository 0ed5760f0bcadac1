"""The stream of an agent on another host, with what such a host needs in addition.

There the agent uses its own directory, because the run's directory is on the supervisor's host. It creates the files
and directories that orders name, sends the logs, and sends the text of files instead of their paths.
"""

from __future__ import annotations

import os
import select
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from worker.agent.guard import LOG
from worker.agent.host_facts import host_facts
from worker.agent.log_shipping import LogShipping
from worker.agent.processes import DIRECTORY_VARIABLE
from worker.agent.stream import SupervisorStream
from worker.wire.lease import Lease
from worker.wire.messages import (
    AGENT_LOG,
    IN_BUNDLE,
    PRELOADER_LOG,
    Credit,
    Empty,
    Exited,
    FromAgent,
    Hello,
    Ping,
    PreloadOrder,
    Run,
    Stacked,
    TaskOrder,
    ToAgent,
)

_BUNDLE = Path(__file__).parents[2]
# Longest text of an exception that is sent.
_MOST_EXCEPTION_BYTES = 1 << 20
# Longest wait for the confirmation of the first ping (seconds): the supervisor may be busy with other hosts.
_FIRST_LEASE_S = 30.0


class HostStream(SupervisorStream):
    """`directory` is the agent's own. Its parent, the guard, removes it."""

    def __init__(
        self, directory: Path, source: int, sink: int, link_timeout_s: float, poller: select.epoll
    ) -> None:
        super().__init__(source, sink, poller)
        self._directory = directory
        self._guard = os.getppid()
        now = time.monotonic()
        self._lease = Lease(now)
        self._link_timeout_s = link_timeout_s
        self._lease_ends = now + max(_FIRST_LEASE_S, link_timeout_s)
        self._logs = LogShipping(super().send, poller)
        self._environ = {_text(name): _text(value) for name, value in os.environb.items()}
        self._facts = host_facts(str(directory), os.environ)
        self._is_silent = False
        self._exceptions: dict[str, str] = {}

    @property
    def due(self) -> float:
        return float("inf") if self._is_silent else min(self._logs.due, self._lease_ends)

    def advance(self, now: float) -> bool:
        if self._is_silent:
            return True
        self._logs.advance(now)
        return now < self._lease_ends

    def serves(self, fd: int) -> bool:
        return super().serves(fd) or self._logs.serves(fd)

    def read(self, fd: int) -> tuple[Iterable[ToAgent], bool]:
        if self._logs.serves(fd):
            self._logs.wake()
            return [], True
        messages, is_open = super().read(fd)
        # Lazily, because a Run changes the environment for the orders behind it.
        return map(self._prepared, messages), is_open

    def take_descriptors(self) -> list[int]:
        return []  # they stay on the supervisor's host

    def send(self, message: FromAgent) -> None:
        match message:
            case Hello():
                super().send(replace(message, facts=self._facts))
            case Exited():
                self._logs.hold(replace(message, exception=self._read_exception(message.task)))
            case Stacked():
                super().send(replace(message, file=None, offset=0, length=0))
            case Empty():
                self._logs.hold_last(message)
            case _:
                super().send(message)

    def drop_output(self) -> None:
        self._is_silent = True
        super().drop_output()
        self._logs.close()

    def close(self) -> None:
        """Write the rest and close everything. Without a guard, also remove the directory."""
        self._logs.close()
        super().close()
        if os.getppid() != self._guard:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _take_ping(self, ping: Ping) -> None:
        """Answer a ping at once. A ping that confirms ours is itself an answer."""
        now = time.monotonic()
        if self._lease.take(ping, now):
            self._lease_ends = self._lease.confirmed + self._link_timeout_s
        else:
            super().send(self._lease.ping(now))

    # -- orders

    def _prepared(self, message: ToAgent) -> ToAgent:
        """Create what an order needs on this host. Return it with what only this host knows."""
        match message:
            case Ping():
                self._take_ping(message)
            case Credit():
                self._logs.confirm(message.count, time.monotonic())
            case Run():
                return self._begin_run(message)
            case PreloadOrder():
                self._make(Path(message.log).parent)
                self._logs.add(PRELOADER_LOG, message.log)
                return message
            case TaskOrder():
                self._prepare_start(message)
                return replace(message, argv=tuple(map(_unbundled, message.argv)))
        return message

    def _begin_run(self, run: Run) -> Run:
        self._logs.add(AGENT_LOG, str(self._directory / LOG))
        own = {DIRECTORY_VARIABLE: _text(os.fsencode(self._directory))}
        # The supervisor cannot know the device and inode of a directory that is created here.
        return replace(run, directory=None, environ={**self._environ, **run.environ, **own})

    def _prepare_start(self, order: TaskOrder) -> None:
        """Create the directories of the order: those below the agent's own, and the one for checkpoints."""
        files = [str((order.bootstrap or {}).get(name) or "") for name in ("exception_file", "stacks_file")]
        self._exceptions[order.task] = files[0]
        with suppress(OSError):  # the task has no earlier process
            Path(files[0]).unlink()
        for directory in (order.scratch, *(Path(file).parent for file in (order.log, *files) if file)):
            if directory:
                self._make(Path(directory))
        if checkpoints := order.env.get("ORCH_CHECKPOINT_DIR"):
            with suppress(OSError):  # the script's first checkpoint fails, and says why
                Path(checkpoints).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._logs.add(order.task, order.log)

    def _make(self, directory: Path) -> None:
        """Create a directory below the agent's own, which no other user can enter. Any other must exist."""
        if self._directory in directory.parents and ".." not in directory.parts:
            with suppress(OSError):  # the order that needs it fails, and says why
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _read_exception(self, task: str) -> str | None:
        """The text of a task's exception file; None without one."""
        try:
            # The task may have put anything in its place: never block, never follow a link.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(self._exceptions.get(task, ""), flags), "rb") as file:
                data = file.read(_MOST_EXCEPTION_BYTES + 1)
        except OSError:
            return None
        return data.decode(errors="replace") if data and len(data) <= _MOST_EXCEPTION_BYTES else None


def _unbundled(word: str) -> str:
    return str(_BUNDLE / word.removeprefix(IN_BUNDLE)) if word.startswith(IN_BUNDLE) else word


def _text(data: bytes) -> str:
    """Return bytes as environments are sent: each byte as one character."""
    return data.decode("latin-1")
