"""Follows a run of `orch up` whose supervisor is on a node of its Slurm job, or is not there yet."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from orchestrator.client.orders import ask_run
from orchestrator.client.stop import end_unstarted, waiting_job
from orchestrator.core.errors import EngineError
from orchestrator.core.state.result import Cause, CauseKind, RunResult
from orchestrator.core.state.state import RunPhase
from orchestrator.links.orders import DetachOrder, NoticeOrder, StopOrder
from orchestrator.preflight.allocation import endless_wait
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.slurm_jobs import job_status

_LOOK_S = 0.1
# Seconds until an order that no supervisor has taken is sent again.
_AGAIN_S = 1.0


class SubmittedLink:
    """Sends orders to a submitted run, and learns when it has ended: see SupervisorLink.

    A thread asks Slurm and sends the orders, which may take seconds.
    """

    def __init__(self, run: RunView) -> None:
        # A separate view, because a view must not be used in two threads.
        view = RunView.open(run.paths)
        if view is None:
            raise EngineError(f"{run.paths.root}: the run's directory was removed")
        self._view = view
        self._orders: deque[StopOrder | NoticeOrder] = deque()
        self._has_left = threading.Event()
        self._end_fd = os.eventfd(0, os.EFD_CLOEXEC)
        threading.Thread(target=self._work, daemon=True).start()

    def fileno(self) -> int:
        """Readable when the run is over."""
        return self._end_fd

    def send(self, order: StopOrder | NoticeOrder | DetachOrder) -> None:
        if not isinstance(order, DetachOrder):
            self._orders.append(order)

    def detach(self) -> None:
        """Do nothing: the run continues without its client."""

    def has_left(self) -> bool:
        """Whether the run is over."""
        return self._has_left.is_set()

    def received_result(self) -> RunResult | None:
        return None

    def close(self) -> None:
        """Do nothing: the thread may still need the descriptor, which the exit of this process closes."""

    def _work(self) -> None:
        try:
            with self._view.keep_open():
                self._serve_to_end()
                self._name_cancelled()
        finally:
            self._has_left.set()
            os.eventfd_write(self._end_fd, 1)

    def _serve_to_end(self) -> None:
        again_at = 0.0
        while self._view.is_live:
            self._view.refresh()
            self._end_endless_wait()
            if self._orders and time.monotonic() >= again_at:
                if self._deliver(self._orders[0]):
                    self._orders.popleft()
                else:
                    again_at = time.monotonic() + _AGAIN_S
            time.sleep(_LOOK_S)

    def _deliver(self, order: StopOrder | NoticeOrder) -> bool:
        """Return True if a supervisor has taken the order, or the run does not need it."""
        is_queued = self._view.state.phase is RunPhase.QUEUED
        if isinstance(order, NoticeOrder) and is_queued:
            return True  # it has no machines yet
        if isinstance(order, StopOrder) and waiting_job(self._view):
            return end_unstarted(self._view, order.reason)
        return ask_run(self._view, order) is not None

    def _end_endless_wait(self) -> None:
        """Refuse a job that could never start, which Slurm may find out after the submission."""
        queued = self._view.state.queued
        if queued is not None and (text := endless_wait(queued)):
            end_unstarted(self._view, cause=Cause(task=None, kind=CauseKind.REFUSED, text=text))

    def _name_cancelled(self) -> None:
        """Record that the job was cancelled before it had nodes."""
        record = self._view.record
        if record.job is None or record.supervisor_pid:
            return
        if job_status(record.job, record.cluster, record.job_mark).state == "CANCELLED":
            text = f"Slurm's job {record.job} was cancelled while it was queued"
            cause = Cause(task=None, kind=CauseKind.REFUSED, text=text)
            end_unstarted(self._view, cause=cause, cancels=False)
