"""A run of `orch up` under Slurm while it waits for its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.client.api import Run
from orchestrator.client.launch import create_run
from orchestrator.core.errors import OrchError
from orchestrator.core.state.events import StopReason
from orchestrator.links.client_link import Lifetime, PlaceOrder, QueuedOrder, RefusedOrder
from orchestrator.links.control import StopOrder
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.preflight.allocation import Queued
from orchestrator.request.settings.request import UpRequest

# Seconds for the supervisor to end agents that it has started early.
_LEAVE_S = 15.0


class EndedInQueue(Exception):
    """The run was stopped while it waited for its nodes."""


class QueuedRun:
    """Gives a run that waits for its nodes to a supervisor, and then the nodes.

    The run is created when there is something to wait for. If the nodes are there at once, it is not: `run` is None.
    """

    def __init__(self, up: UpRequest, supervisor: SupervisorLink, say: Callable[[str], None]) -> None:
        """`say` shows what the run waits for."""
        self.run: Run | None = None
        self._up = up
        self._supervisor = supervisor
        self._say = say
        self._waits = False

    def begin(self) -> None:
        """Create the run, or take over the one that the request names. It waits until place()."""
        self.run = create_run(self._supervisor, self._up, Lifetime.CLIENT, waits=True)
        self._waits = True

    def fileno(self) -> int:
        return -1 if self.run is None else self._supervisor.fileno()

    def show(self, queued: Queued) -> None:
        if self.run is None:
            self.begin()
        self._supervisor.send(QueuedOrder(job=queued.job, reason=queued.reason, start=queued.start))
        self._say(str(queued))

    def check(self) -> None:
        """Raise EndedInQueue if the run was stopped, such as by `orch down`."""
        if self._waits and self._supervisor.has_left():
            self._waits = False
            raise EndedInQueue

    @contextmanager
    def refused_on_error(self) -> Iterator[None]:
        """End the run if the block fails while it waits: its nodes were refused, or the user has interrupted it."""
        try:
            yield
        except OrchError as error:
            self._leave(RefusedOrder(text=str(error)))
            raise
        except KeyboardInterrupt:
            self._leave(StopOrder(reason=StopReason.INTERRUPT))
            raise

    def place(self, up: UpRequest) -> None:
        """Send the job with its nodes to the supervisor if the run exists already. EndedInQueue."""
        self.check()
        if self._waits:
            self._supervisor.send(PlaceOrder(place=up.spec))
            self._waits = False

    def _leave(self, order: RefusedOrder | StopOrder) -> None:
        if not self._waits:
            return
        self._waits = False
        self._supervisor.send(order)
        self._supervisor.close()
        self._supervisor.wait(_LEAVE_S)
