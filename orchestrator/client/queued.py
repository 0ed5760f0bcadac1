"""A run of `orch up` under Slurm while it waits for its nodes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.client.api import Run
from orchestrator.client.launch import create_run
from orchestrator.core.errors import OrchError
from orchestrator.core.state.events import STOP_SIGNALS, NoticeSource, StopReason
from orchestrator.core.text.durations import format_duration
from orchestrator.links.client_link import PlaceOrder
from orchestrator.links.orders import NoticeOrder, QueuedOrder, RefusedOrder, StopOrder
from orchestrator.links.signal_inbox import NOTICE_SIGNAL
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.preflight.allocation import Queued
from orchestrator.request.settings.request import UpRequest

# Seconds for the supervisor to end agents that it has started early.
_LEAVE_S = 15.0


class EndedInQueue(Exception):
    """The run was stopped while it waited for its nodes."""


class Signalled(KeyboardInterrupt):
    """A signal asked this process to stop, as Ctrl-C does, or gave notice that the machines of the run will go."""

    def __init__(self, order: StopOrder | NoticeOrder) -> None:
        super().__init__(order)
        self.order = order


class QueuedRun:
    """Gives a run that waits for its nodes to a supervisor, and then the nodes.

    The run is created when there is something to wait for. If the nodes are there at once, it is not: `run` is None.
    """

    def __init__(self, up: UpRequest, supervisor: SupervisorLink, say: Callable[[str], None]) -> None:
        """`say` shows what the run waits for."""
        self.run: Run | None = None
        # Whether the run has ended while it waited, so that its result can be read.
        self.has_ended = False
        self._up = up
        self._supervisor = supervisor
        self._say = say
        self._waits = False
        # Whether the run has its nodes. They may not have been checked yet.
        self._has_nodes = up.adopt is not None
        # The job that the run waits for, and the start of the wait (monotonic seconds).
        self._queued: tuple[str, float] | None = None
        # Whether a notice came that no supervisor has received yet.
        self._is_noticed = False
        # Whether the run ends because of a notice.
        self._leaves_for_notice = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals until the run is followed.

        A stop signal raises Signalled, or KeyboardInterrupt for Ctrl-C. A notice raises Signalled while the nodes of a
        queued run are checked, and is kept for later at other times. Signals that this process has inherited as
        ignored stay ignored.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            if self._leaves_for_notice:
                return  # Slurm sends it to end the job, which it then starts again
            raise Signalled(StopOrder(reason=STOP_SIGNALS[signal.Signals(number)]))

        def notice(number: int, frame: FrameType | None) -> None:
            if self._waits and self._has_nodes:
                self._leave_for_notice()
            self._is_noticed = True

        handlers = {signal.SIGTERM: stop, signal.SIGHUP: stop, NOTICE_SIGNAL: notice}
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                if signal.getsignal(number) is handler:
                    signal.signal(number, before[number])

    def granted(self) -> None:
        """Report that the run has its nodes. A notice that came while it was queued has no effect."""
        was_queued, self._has_nodes = not self._has_nodes, True
        if self._queued is not None:
            job, since = self._queued
            waited = format_duration(round(time.monotonic() - since))
            self._say(f"Slurm's job {job} has its nodes after {waited} in the queue")
        if self._is_noticed and self._waits:
            self._is_noticed = False
            if not was_queued:
                self._leave_for_notice()
            self._say(f"{NOTICE_SIGNAL.name} had no effect: the run was queued, and no task had started")

    def _leave_for_notice(self) -> None:
        self._leaves_for_notice = True
        raise Signalled(NoticeOrder(source=NoticeSource.SIGNAL))

    def pass_notice_on(self) -> None:
        """Send the supervisor a notice that came before the run was followed."""
        if self._is_noticed:
            self._is_noticed = False
            self._supervisor.send(NoticeOrder(source=NoticeSource.SIGNAL))

    def begin(self) -> None:
        """Create the run, or take over the one that the request names. It waits until place()."""
        self.run = create_run(self._supervisor, self._up, waits=True)
        self._waits = True

    def fileno(self) -> int:
        return -1 if self.run is None else self._supervisor.fileno()

    def show(self, queued: Queued) -> None:
        if self.run is None:
            self.begin()
        self._supervisor.send(QueuedOrder(job=queued.job, reason=queued.reason, start=queued.start))
        how_to_leave = " (Ctrl-C cancels it)" if self._queued is None else ""
        self._queued = self._queued or (queued.job, time.monotonic())
        self._say(f"{queued}{how_to_leave}")

    def warn(self, text: str) -> None:
        self._say(text)

    def check(self) -> None:
        """Raise EndedInQueue if the run was stopped, such as by `orch down`."""
        if self._waits and self._supervisor.has_left():
            self._waits = False
            self.has_ended = True
            raise EndedInQueue

    @contextmanager
    def refused_on_error(self) -> Iterator[None]:
        """End the run if the block fails while the run waits: its nodes were refused, or the user interrupted it."""
        try:
            yield
        except OrchError as error:
            self._leave(RefusedOrder(text=str(error)))
            raise
        except KeyboardInterrupt as stop:
            self._leave(stop.order if isinstance(stop, Signalled) else StopOrder(reason=StopReason.INTERRUPT))
            raise

    def place(self, up: UpRequest) -> None:
        """Send the job with its nodes to the supervisor if the run exists already. EndedInQueue."""
        self.check()
        if self._waits:
            self._supervisor.send(PlaceOrder(spec=up.spec))
            self._waits = False

    def _leave(self, order: RefusedOrder | StopOrder | NoticeOrder) -> None:
        if not self._waits:
            return
        self._waits = False
        self._supervisor.send(order)
        self.has_ended = self._supervisor.wait(_LEAVE_S)
        self._supervisor.close()
