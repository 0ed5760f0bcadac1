"""One supervisor and one agent for many runs of a test process: a run takes a tenth of a second then, not a half."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil
from forks import ForkedProcess, ForkServer
from waiting import PATIENCE_S, lives, until

from orchestrator.cli import early
from orchestrator.client.launch import load_request
from orchestrator.client.warm import Start
from orchestrator.host.inheritance import inheritance
from orchestrator.links import warm
from orchestrator.links.client_link import Lifetime, Warm
from orchestrator.links.supervisor_link import SupervisorLink, start_supervisor

ROOT = Path(__file__).resolve().parents[2]
_PRELOADER = "preloader"
_PROCESSES = ("orchestrator.supervisor", "worker.agent.agent", _PRELOADER)
_LONGER_THAN_THE_TESTS_S = 86_400.0
# A supervisor that begins to wait opens this many descriptors after its state is written.
_OPENED_LATE = 4

# For each process: its threads and descriptors.
_Counts = dict[str, int]
# Options whose runs have processes of their own.
_COLD = {"--warm", "--watch", "--hosts", "--engine"}
_MODULES = (
    *("orchestrator.cli.app", "orchestrator.cli.up_run", "orchestrator.cli.keys", "orchestrator.cli.runs"),
    *("orchestrator.client.foreground", "orchestrator.client.view.terminal", "orchestrator.client.stop"),
)


def is_kept_run(words: Sequence[str]) -> bool:
    """Whether this command line of `orch` starts a run that can use the kept processes."""
    verb = next((word for word in words if not word.startswith("-")), None)
    return verb == "up" and _COLD.isdisjoint(word.partition("=")[0] for word in words)


class Kept:
    """The kept processes. A test that ends them gets new ones; one that changes what they inherit gets none."""

    # The supervisor: a test may leave no process, but this one lasts.
    pid: int | None = None
    runs = 0

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="orch-kept-"))
        self._first: SupervisorLink | None = None
        self._inheritance: dict[str, str] = {}
        self._before: _Counts = {}
        # Starts commands, with orch's modules imported.
        self._clients: ForkServer | None = None

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Have `orch up` use the kept processes within the block, unless they serve a run."""
        connection = self._connect()
        link = None if connection is None else SupervisorLink(None, connection)
        early.use(link)
        try:
            yield
        finally:
            early.use(None)
            if link is not None:
                link.close()

    def start(
        self, words: Sequence[str], out: IO[bytes], err: IO[bytes], env: Mapping[str, str], cwd: Path
    ) -> ForkedProcess:
        """Start `orch WORDS` as a process; a run uses the kept processes, as in lent()."""
        if self._clients is None:
            with self._state():
                self._clients = ForkServer(ROOT, *_MODULES)
        connection = self._connect() if is_kept_run(words) else None
        with connection or contextlib.nullcontext():
            return self._clients.fork(["-P", "-m", "orchestrator", *words], out, err, env, cwd, connection)

    def check(self) -> None:
        """Wait for the end of the last run, and fail if it has left something in the kept processes."""
        if self._first is None:
            return
        until(lambda: self._waits() or not self._is_live())
        now = self._counts()
        more = {
            name: f"{self._before.get(name, 'nothing')} -> {count}"
            for name, count in now.items()
            if count > self._before.get(name, 0) + _OPENED_LATE
        }
        if more:
            self.end()
        # A preloader serves the environment of one test, and stays while another run may come.
        assert not more or _PRELOADER in more, f"runs have left in the kept processes: {more}"

    def end(self) -> None:
        """End the processes, and wait for them."""
        if self._first is not None:
            with self._state():
                warm.dismiss_holder_of(str(self._place))
            self._first.close()
            if not self._first.wait(PATIENCE_S):
                psutil.Process(Kept.pid).kill()
                self._first.wait()
            self._first = Kept.pid = None

    def close(self) -> None:
        self.end()
        if self._clients is not None:
            self._clients.close()
        shutil.rmtree(self._place)

    def _connect(self) -> socket.socket | None:
        """Return a connection to the supervisor; None if it serves a run, or has inherited something else."""
        now = inheritance()
        if not self._is_live():
            self.end()
            self._begin(now)
        if now != self._inheritance or not self._waits():
            return None
        with self._state():
            found = warm.take_over(str(self._place))
        Kept.runs += 1
        return None if found is None else found[0]

    def _begin(self, now: dict[str, str]) -> None:
        self._inheritance = now
        with self._state():
            self._first = start_supervisor()
            keeps = Warm(idle_s=_LONGER_THAN_THE_TESTS_S, conditions={}, owner=os.getpid())
            up = load_request(1, ["true"], self._place, {})
            Kept.pid = Start(self._first, keeps).create(up, Lifetime.CLIENT).view.record.supervisor_pid
            until(self._waits)
        self._before = self._counts()

    @contextlib.contextmanager
    def _state(self) -> Iterator[None]:
        """The kept processes have a state directory of their own."""
        name = "XDG_STATE_HOME"
        before = os.environ.get(name)
        os.environ[name] = str(self._place / "state")
        try:
            yield
        finally:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before

    def _is_live(self) -> bool:
        return Kept.pid is not None and lives(Kept.pid)

    def _waits(self) -> bool:
        with self._state(), warm.live_places() as places:
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
