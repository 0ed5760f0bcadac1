"""Keeps one supervisor and one agent for many runs of a test process. A run then takes 0.1 s instead of 0.5 s."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO
from unittest.mock import patch

import psutil
from forks import ForkedProcess, ForkServer
from waiting import PATIENCE_S, lives, until

from orchestrator.cli import early
from orchestrator.client.launch import create_run, load_request
from orchestrator.host.inheritance import inheritance
from orchestrator.links import kept
from orchestrator.links.client_link import Warm
from orchestrator.links.supervisor_link import SupervisorLink, start_supervisor

_PRELOADER = "preloader"
_PROCESSES = ("orchestrator.supervisor", "worker.agent.agent", _PRELOADER)
# Longer than the tests between two runs take. After a test process that was killed they end by themselves.
_IDLE_S = 900.0
# Descriptors that a supervisor opens for waiting after it has written that it waits.
_OPENED_LATE = 4

# The number of threads and descriptors, by process.
_Counts = dict[str, int]
# Runs with these options start their own processes.
_COLD = {"--warm", "--watch", "--hosts", "--engine", "--as-root-anyway"}
# Imported before the commands are forked.
_MODULES = (
    *("orchestrator.cli.app", "orchestrator.cli.up_run", "orchestrator.cli.keys", "orchestrator.cli.runs"),
    *("orchestrator.client.foreground", "orchestrator.client.view.terminal", "orchestrator.client.stop"),
)


def is_kept_run(words: Sequence[str]) -> bool:
    """Whether this command line of `orch` starts a run that can use the kept processes."""
    verb = next((word for word in words if not word.startswith("-")), None)
    return verb == "up" and _COLD.isdisjoint(word.partition("=")[0] for word in words)


class Kept:
    """The kept processes. They start again after a test has ended them. A run that inherits other limits does not use
    them."""

    # The supervisor. It outlives tests, which may leave no other process.
    pid: int | None = None
    runs = 0

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="orch-kept-"))
        self._first: SupervisorLink | None = None
        self._inheritance: dict[str, str] = {}
        self._before: _Counts = {}
        # Forks commands from a process that has imported orch's modules.
        self._clients: ForkServer | None = None

    @contextlib.contextmanager
    def lend(self) -> Iterator[None]:
        """Let `orch up` use the kept processes within the block, unless they serve another run."""
        connection = self._connect()
        link = None if connection is None else SupervisorLink(connection)
        early.use_supervisor(link)
        try:
            yield
        finally:
            early.use_supervisor(None)
            if link is not None:
                link.close()

    def start(
        self, words: Sequence[str], out: IO[bytes], err: IO[bytes], env: Mapping[str, str], cwd: Path
    ) -> ForkedProcess:
        """Start `orch WORDS` as a process; a run uses the kept processes, as with lend()."""
        if self._clients is None:
            with self._use_own_state():
                self._clients = ForkServer(*_MODULES)
        connection = self._connect() if is_kept_run(words) else None
        with connection or contextlib.nullcontext():
            passed = {} if connection is None else {"supervisor": connection.fileno()}
            return self._clients.fork(["-P", "-m", "orchestrator", *words], out, err, env, cwd, **passed)

    def check(self) -> None:
        """Wait until the last run has ended. AssertionError if the kept processes have more threads or descriptors."""
        if self._first is None:
            return
        until(lambda: self._is_waiting() or not self._is_live())
        now = self._counts()
        more = {
            name: f"{self._before.get(name, 'nothing')} -> {count}"
            for name, count in now.items()
            if count > self._before.get(name, 0) + _OPENED_LATE
        }
        if more:
            self.end()
        # A preloader serves the environment of one test, and stays for later runs of it.
        more = {name: counts for name, counts in more.items() if _PRELOADER not in name}
        assert not more, f"runs have left in the kept processes: {more}"

    def end(self) -> None:
        """End the processes, and wait for them."""
        if self._first is not None:
            with self._use_own_state():
                kept.dismiss_holder_of(str(self._place))
            self._first.close()
            if not self._first.wait(PATIENCE_S):
                psutil.Process(Kept.pid).kill()
                self._first.wait(PATIENCE_S)
            self._first = Kept.pid = None

    def close(self) -> None:
        self.end()
        if self._clients is not None:
            self._clients.close()
        shutil.rmtree(self._place)

    def _connect(self) -> socket.socket | None:
        """Return a connection to the supervisor; None if it serves a run, or inherited other attributes."""
        now = inheritance()
        if not self._is_live():
            self.end()
            self._start_supervisor(now)
        if now != self._inheritance or not self._is_waiting():
            return None
        with self._use_own_state():
            found = kept.take_over(str(self._place))
        Kept.runs += 1
        return None if found is None else found[0]

    def _start_supervisor(self, now: dict[str, str]) -> None:
        self._inheritance = now
        with self._use_own_state():
            self._first = start_supervisor()
            keeps = Warm(idle_s=_IDLE_S, conditions={})
            up = load_request(1, ["true"], self._place, {})
            Kept.pid = create_run(self._first, up, warm=keeps).view.record.supervisor_pid
            until(self._is_waiting)
        self._before = self._counts()

    def _use_own_state(self) -> contextlib.AbstractContextManager[object]:
        """Use the state directory of the kept processes within the block."""
        return patch.dict(os.environ, {"XDG_STATE_HOME": str(self._place / "state")})

    def _is_live(self) -> bool:
        return Kept.pid is not None and lives(Kept.pid)

    def _is_waiting(self) -> bool:
        with self._use_own_state(), kept.live_places() as places:
            return any(holding is not None and holding.until is not None for _, holding in places)

    def _counts(self) -> _Counts:
        try:
            supervisor = psutil.Process(Kept.pid or 0)
            below = supervisor.children(recursive=True)
            return {_name(each): each.num_threads() + each.num_fds() for each in (supervisor, *below)}
        except psutil.NoSuchProcess:
            return {}


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    return next((name for name in _PROCESSES if any(name in word for word in words)), " ".join(words))
