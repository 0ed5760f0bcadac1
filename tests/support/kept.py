"""One supervisor and one agent for many runs of a test process: a run takes a tenth of a second then, not a half."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from waiting import PATIENCE_S, lives, until

from orchestrator.cli import early
from orchestrator.client.launch import load_request
from orchestrator.client.warm import Start
from orchestrator.host.inheritance import inheritance
from orchestrator.links import warm
from orchestrator.links.client_link import Lifetime, Warm
from orchestrator.links.supervisor_link import SupervisorLink, start_supervisor

_PRELOADER = "preloader"
_PROCESSES = ("orchestrator.supervisor", "worker.agent.agent", _PRELOADER)
_LONGER_THAN_THE_TESTS_S = 86_400.0
# A supervisor that begins to wait opens this many descriptors after its state is written.
_OPENED_LATE = 4

# For each process: its threads and descriptors.
_Counts = dict[str, int]


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

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Have `orch up` use the kept processes within the block, unless they serve a run."""
        link = self._link()
        early.use(link)
        try:
            yield
        finally:
            early.use(None)
            if link is not None:
                link.close()
                Kept.runs += 1

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
        shutil.rmtree(self._place)

    def _link(self) -> SupervisorLink | None:
        """Return a connection to the supervisor; None if it serves a run, or has inherited something else."""
        now = inheritance()
        if not self._is_live():
            self.end()
            self._begin(now)
        if now != self._inheritance or not self._waits():
            return None
        with self._state():
            found = warm.take_over(str(self._place))
        return None if found is None else SupervisorLink(None, found[0])

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
