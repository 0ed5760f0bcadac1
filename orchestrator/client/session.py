"""`Session`: several clusters, one after another, that share one supervisor, agent and preloader.

with orchestrator.Session() as session:
    for rate in (0.1, 0.01):
        with session.up(workers=2, command=["train.py", str(rate)]) as run:
            run.wait()
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from orchestrator.client.api import Run
from orchestrator.client.launch import (
    create_run,
    load_request,
    make_room,
    needs_job,
    on_nodes,
    stream_lines,
    submit_job,
    warn,
)
from orchestrator.client.own_supervisor import OwnSupervisor
from orchestrator.client.stop import STOP_MARGIN_S
from orchestrator.core.errors import UsageError
from orchestrator.core.text.clean import safe
from orchestrator.links.client_link import Descriptor
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.request.settings.keywords import Directory, UpOptions, Words
from orchestrator.request.settings.request import UpRequest

if TYPE_CHECKING:
    from orchestrator.client.functions import FunctionCall

Descriptors = Mapping[Descriptor, int]


def run(
    function: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    workers: int | None = None,
    directory: Directory | None = None,
    *,
    stream: bool = False,
    **options: Unpack[UpOptions],
) -> list[Any]:
    """Session.run() for one call. A session starts the next call faster, because it keeps TensorFlow imported."""
    with Session() as session:
        return session.run(function, args, kwargs, workers, directory, stream=stream, **options)


class Session:
    """Starts clusters one at a time and keeps the supervisor, the agent and the preloader between them.

    Each cluster is an ordinary run with its own directory, name and result; `orch down` from another shell stops that
    run and not the session. The outcome of a run does not affect the next one. The kept processes use memory (about
    540 MB with TensorFlow preloaded) until the session is closed or this process exits.
    A session belongs to the process that made it: in a forked process it starts nothing and stops nothing.
    """

    def __init__(self) -> None:
        self._owner_pid = os.getpid()
        self._supervisor = OwnSupervisor()
        self._run: Run | None = None
        # Held while a run is created and while everything is stopped; not held while a run is live.
        self._lock = threading.RLock()
        self._is_creating = False

    def __repr__(self) -> str:
        if self._run is None:
            return "<Session: no run yet>"
        kept = "" if self._supervisor.is_there else "; closed"
        return safe(f"<Session: last run {self._run.id}{kept}>")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def up(
        self,
        workers: int | str | None = None,
        command: Words = (),
        directory: Directory | None = None,
        *,
        stream: bool = False,
        **options: Unpack[UpOptions],
    ) -> AbstractContextManager[Run]:
        """Return a context manager for a run; the arguments are those of Cluster.

        Raises UsageError at once for wrong arguments. Entering the block raises UsageError while another run of this
        session is live or is being created, NameTaken, or EngineError.
        """
        return self._cluster(load_request(workers, command, directory, options), stream=stream)

    def run(
        self,
        function: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        workers: int | None = None,
        directory: Directory | None = None,
        *,
        stream: bool = False,
        **options: Unpack[UpOptions],
    ) -> list[Any]:
        """Call `function(*args, **kwargs)` in every task of a run, and return what each returned, in task order.

        The other arguments are those of Cluster, without `command`. The function may be a lambda, a closure, or one of
        a notebook or a test module; it finds sys.path, sys.argv and the environment of this process. An exception in a
        task is raised here, with the task's name as its attribute `task`; its cause is the TaskFailed of the run, with
        the traceback of the task. Values of more than 64 MiB are refused.
        Raises UsageError for what cannot be sent to the tasks, and the errors of up() and of Run.wait().
        """
        from orchestrator.client.functions import FunctionCall

        call = FunctionCall(function, args, kwargs, workers, directory, options)
        with call, self.calling(call, stream=stream) as run:
            return call.values(run)

    def calling(self, call: FunctionCall, *, stream: bool = False) -> AbstractContextManager[Run]:
        """Return a context manager for the run of this call, for code that shows the run."""
        return self._cluster(call.up, stream=stream, descriptors=call.descriptors)

    def close(self) -> None:
        """Stop the live run and the kept processes, and wait until they have exited. Idempotent."""
        if not self._is_mine():
            return
        with self._lock:
            try:
                if self._supervisor.is_there and self._run is not None:
                    self._run.down()
            finally:
                self._supervisor.close()

    @contextmanager
    def _cluster(
        self, up: UpRequest, *, stream: bool, descriptors: Descriptors = MappingProxyType({})
    ) -> Iterator[Run]:
        run, link = self._begin(up, descriptors)
        try:
            if stream:
                stream_lines(run)
            yield run
        finally:
            if self._is_mine():
                run.down()
                if link is not None:
                    link.close()

    def _begin(self, up: UpRequest, descriptors: Descriptors) -> tuple[Run, SupervisorLink | None]:
        if not self._is_mine():
            raise UsageError(
                f"this session belongs to the parent process {self._owner_pid}; make a new Session in this process"
            )
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "another thread is starting or stopping a cluster of this session; a session has one at a time"
            )
        try:
            # A signal handler runs in the thread that it interrupts, which already holds the lock.
            if self._is_creating:
                raise UsageError("a cluster of this session is starting; a session has one at a time")
            if self._run is not None and self._run.view.is_live:
                raise UsageError(
                    f"{self._run.id} is still live; a session has one cluster at a time: stop it first"
                )
            self._is_creating = True
            try:
                warn(up)
                if needs_job(up):
                    self._run = submit_job(up, descriptors)
                    return self._run, None
                request = on_nodes(up)
                return self._create(request, descriptors)
            finally:
                self._is_creating = False
        finally:
            self._lock.release()

    def _create(self, up: UpRequest, descriptors: Descriptors) -> tuple[Run, SupervisorLink]:
        link = self._supervisor.connect()
        try:
            make_room(up, link)
            self._run = create_run(link, up, descriptors)
        except BaseException:
            # Ctrl-C may come before the answer: end what was started of the run.
            if not link.leave(up.spec.grace_s + STOP_MARGIN_S):
                self._supervisor.close()
            link.close()
            raise
        return self._run, link

    def _is_mine(self) -> bool:
        return os.getpid() == self._owner_pid
