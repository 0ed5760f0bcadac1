"""Several clusters in a row from one Python process: one supervisor, one agent and one preloader for all of them.

with orchestrator.Session() as session:
    for rate in (0.1, 0.01):
        with session.up(workers=2, command=["train.py", str(rate)]) as run:
            run.wait()
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType

from orchestrator import settings
from orchestrator.api import STOP_MARGIN_S, Run
from orchestrator.client_link import Lifetime, Supervised, SupervisorLeft
from orchestrator.errors import UsageError
from orchestrator.launch import create, make_room
from orchestrator.request import UpRequest
from orchestrator.supervisor_start import start_supervisor


class Session:
    """Keeps what a cluster needs before its first task from one cluster to the next, until its `with` is left.

    One cluster at a time. Each is a run like any other, with a directory, a name and a result of its own; `orch down`
    from another shell ends that run and not the session. How a run ends is no matter to the next one. What is kept
    holds memory (a preloaded TensorFlow some 540 MB) until the session ends, with this process at the latest.
    """

    def __init__(self) -> None:
        self._supervised: Supervised | None = None
        self._run: Run | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def up(
        self,
        workers: int | None = None,
        command: Sequence[str] = (),
        directory: Path | None = None,
        **options: object,
    ) -> AbstractContextManager[Run]:
        """A run that lasts as long as its `with`; the arguments are Cluster's. UsageError for what is wrong with
        them, at once; when it is entered: UsageError while another run of this session goes on, NameTaken,
        EngineError."""
        flags = {"workers": workers, "command": list(command) or None, **options}
        return self._cluster(settings.load(flags, os.environ, directory or Path.cwd()))

    def close(self) -> None:
        """End whatever still runs, and everything that was kept; returns when it is gone. Idempotent."""
        supervised, self._supervised = self._supervised, None
        if supervised is None:
            return
        try:
            if self._run is not None:
                self._run.down()
        finally:
            supervised.close()
            supervised.wait(STOP_MARGIN_S)

    @contextmanager
    def _cluster(self, up: UpRequest) -> Iterator[Run]:
        if self._run is not None and self._run.view.is_live:
            raise UsageError(
                f"{self._run.id} still runs, and a session has one cluster at a time: end it first"
            )
        make_room(up)
        self._run = run = self._create(up)
        try:
            yield run
        finally:
            run.down()

    def _create(self, up: UpRequest) -> Run:
        """By the supervisor that is kept; by a new one should that have been killed."""
        if self._supervised is not None:
            try:
                return create(self._supervised, up, Lifetime.SESSION)
            except SupervisorLeft:
                self._supervised.close()
        self._supervised = Supervised(start_supervisor())
        return create(self._supervised, up, Lifetime.SESSION)
