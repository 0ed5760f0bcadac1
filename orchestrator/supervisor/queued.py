"""A run that waits for its nodes. Its client gets them from Slurm, checks them, and then sends the job with them."""

from __future__ import annotations

import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, assert_never

from orchestrator.core.errors import EngineError, ExitCode
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.outcome import Findings, run_result
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, NoticeSource, StopReason
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import Cause, CauseKind, RunResult
from orchestrator.core.state.state import RunPhase, RunState
from orchestrator.engines import Engine
from orchestrator.links.client_link import ClientLink, HostQuestions, PlaceOrder, Preparation
from orchestrator.links.control import ControlServer
from orchestrator.links.orders import DetachOrder, NoticeOrder, QueuedOrder, RefusedOrder, StopOrder
from orchestrator.links.signal_inbox import NOTICE_SIGNAL, SignalInbox
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor import now
from orchestrator.supervisor.control_orders import ControlOrders, StackRequests
from orchestrator.supervisor.notices import Notices

if TYPE_CHECKING:
    from orchestrator.supervisor.hosts import Hosts
    from orchestrator.supervisor.preparing import Prepared

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, NOTICE_SIGNAL)
# Reasons of a stop that Slurm may have caused: it ends the processes of `orch up` with its job.
_MAY_BE_SLURM = frozenset({StopReason.TERMINATE, StopReason.CLIENT_GONE})


@dataclass(frozen=True)
class Placed:
    """The job with its hosts, and its agents, if they were started early."""

    spec: JobSpec
    hosts: Hosts | None


class Waiting:
    """Serves the client, the control socket and the signals of a run until it has its nodes, or its end."""

    def __init__(
        self,
        spec: JobSpec,
        store: RunStore,
        client: ClientLink,
        remote: Engine | None,
    ) -> None:
        """`remote`: the engine that reaches hosts, in place of the one that the job names."""
        self.state = RunState()
        self.worked = False  # see NoticedRun
        self.was_signalled = False
        # Whether Slurm starts the job of the run again, so that the run has not ended.
        self.is_requeued = False
        self._spec = spec
        self._store = store
        self._client = client
        self._remote = remote
        self._began_mono = time.monotonic()
        self._selector = selectors.EpollSelector()
        self._queue: deque[Event] = deque()
        self._prepared: Prepared | None = None
        self._placed: JobSpec | None = None
        self._refusal: str | None = None
        in_job = spec.model_copy(update={"slurm_job": store.record.job})
        self._notices = Notices(in_job, self, self._queue)

    def wait(self) -> Placed | RunResult:
        """Return the job with its nodes, or the result of a run that ended without them. It is not written yet."""
        with self._selector, SignalInbox(_SIGNALS) as inbox:
            self._watch(inbox.fileno(), partial(self._read_signals, inbox))
            self._watch(self._client.fileno(), self._read_client)
            server = ControlServer(self._store.directory, self._store.paths.control.name)
            stacks = StackRequests(lambda tasks, native: ())
            orders = ControlOrders(server, self._selector, self, stacks, self._queue, is_waiting=True)
            with closing(orders):
                try:
                    if self._client.has_line:  # what came with the request
                        self._read_client()
                        self._handle_events()
                    while not self._is_over:
                        self._turn()
                except BaseException:
                    self._end_agents()
                    raise
            inbox.defer()
        # The socket of the run's next part has the same name.
        self._store.directory.unlink(self._store.paths.control.name)
        if self._placed is not None and not self._is_ended:
            return Placed(self._placed, None if self._prepared is None else self._prepared.hosts)
        self._end_agents()
        return self._result()

    @property
    def _is_over(self) -> bool:
        return self._placed is not None or self._refusal is not None or self._is_ended

    @property
    def _is_ended(self) -> bool:
        return self.state.stop is not None or self.state.notice is not None

    def _watch(self, fd: int, serve: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, serve)

    def _turn(self) -> None:
        if self._prepared is not None:
            self._prepared.serve_until_readable(self._selector.fileno(), self._client.hosts)
        for key, _ in self._selector.select():
            key.data()
        self._handle_events()

    def _handle_events(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            self._store.append(event)
            self.state = apply(self.state, event)

    def _read_signals(self, inbox: SignalInbox) -> None:
        inbox.clear()
        for number in inbox.take():
            if number == NOTICE_SIGNAL:
                self._notice(NoticeSource.SIGNAL)
                continue
            self.was_signalled = True
            self._stop(StopOrder(reason=StopReason.TERMINATE))

    def _stop(self, order: StopOrder) -> None:
        if not self._notices.take_as_notice(order):
            self._queue.append(events.StopRequested(**now(), reason=order.reason, force=order.force))

    def _notice(self, source: NoticeSource) -> None:
        """Report a notice, unless the run has no machines yet."""
        if self.state.phase is not RunPhase.QUEUED:
            self._notices.give(source)

    def _read_client(self) -> None:
        for order in self._client.orders():
            match order:
                case QueuedOrder():
                    self._queue.append(
                        events.JobQueued(**now(), job=order.job, reason=order.reason, start=order.start)
                    )
                case Preparation():
                    self._prepare(order)
                case HostQuestions():
                    if self._prepared is not None:
                        self._prepared.ask(order.questions)
                case PlaceOrder():
                    self._placed = order.spec
                case RefusedOrder():
                    self._refusal = order.text
                case StopOrder():
                    self._stop(order)
                case NoticeOrder():
                    self._notice(order.source)
                case DetachOrder():
                    pass
                case _:
                    assert_never(order)
            self._handle_events()
            if self._is_over:
                return  # the rest is for the run
        if not self._client.is_connected:
            self._stop(StopOrder(reason=StopReason.CLIENT_GONE))

    def _prepare(self, order: Preparation) -> None:
        from orchestrator.supervisor.preparing import Prepared  # links to other hosts take long to import

        try:
            self._prepared = Prepared(order, self._remote)
        except EngineError as error:
            self._client.refused(error)

    def _end_agents(self) -> None:
        if self._prepared is not None:
            self._prepared.hosts.end()
            self._prepared = None

    def _result(self) -> RunResult:
        stop = self.state.stop
        may_be_slurm = stop is None or (stop.reason in _MAY_BE_SLURM and not stop.force)
        if self.state.notice is None and may_be_slurm and self._notices.is_job_ending():
            # The end of the job has killed the client, or made the check of the nodes fail.
            self._notices.give(NoticeSource.SLURM)
            self._handle_events()
        notice = self.state.notice
        is_of_slurm = notice is not None and notice.source is NoticeSource.SLURM
        result = self._result_of_wait(notice is not None and (stop is None or (is_of_slurm and may_be_slurm)))
        requeued = self._notices.requeued(result)
        self.is_requeued = requeued is not None
        return requeued or self._notices.with_reason(result)

    def _result_of_wait(self, is_noticed: bool) -> RunResult:
        checkpoint_dir = str(self._spec.checkpoint_dir or self._store.paths.checkpoints)
        findings = Findings(took_s=time.monotonic() - self._began_mono, gives_way=is_noticed)
        result = run_result(self._store.paths.run_id, self.state, findings, checkpoint_dir)
        if self.state.stop is None and not is_noticed and self._refusal is not None:
            cause = Cause(task=None, kind=CauseKind.REFUSED, text=self._refusal)
            result = result.model_copy(
                update={"outcome": "failed", "exit_code": int(ExitCode.USAGE), "cause": cause}
            )
        return result
