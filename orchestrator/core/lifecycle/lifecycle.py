"""`Lifecycle`, the state machine of one run: events in, actions out. No clock, no process, no file.

    AttemptPlanned -> StartTasks -> tasks start, get ready, report progress
        all deciding tasks exit with 0 -> wait for the evaluator -> TearDown(finished) -> Finish: succeeded
        a task fails                   -> TearDown(failure) -> Finish: failed, or another attempt
        a loss is NaN, --stop-on-nan   -> TearDown(failure) -> Finish: failed
        a limit blames a task          -> TakeStacks -> TearDown(limit) -> Finish: timed_out, or another attempt
        a restart is requested         -> TearDown(restart) -> another attempt
        a stop or --timeout            -> TearDown(request) -> Finish: stopped or timed_out
          and a second, forced stop    -> TearDown again, grace 0
        the machines will go           -> TearDown(notice) -> Finish: stopped (42), cause notice
        the agent is lost              -> SweepHost -> Finish: failed (125), cause orch
        a host is lost with its tasks  -> TearDown(failure) -> Finish: failed (137), cause host, or another attempt
          an elastic run then tries ReopenHosts, and plans with fewer workers, or ends if too few hosts are left
    another attempt: RestartPlanned, its delay, PlanAttempt -> AttemptPlanned

Every path ends in exactly one Finish. A stop or a notice always wins over a restart. The parts: completion
(which tasks decide), task_ends (what follows the end of a task), restarts, elastic, time_limits, outcome (the result).
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.chaos.watch import ChaosWatch
from orchestrator.core.diagnosis.distribution import find_not_distributed
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle import completion, notices, outcome
from orchestrator.core.lifecycle.actions import (
    Action,
    Deadline,
    Finish,
    Happen,
    PlanAttempt,
    SendSignal,
    StartTask,
    StartTasks,
    SweepHost,
    TakeStacks,
    TearDown,
)
from orchestrator.core.lifecycle.debugging import DebugWatch
from orchestrator.core.lifecycle.elastic import HostChoice
from orchestrator.core.lifecycle.host_notices import HostNotices
from orchestrator.core.lifecycle.restarts import Again, Refused, RunRestarts
from orchestrator.core.lifecycle.task_ends import Down, TaskEnds, only_evaluator_left
from orchestrator.core.lifecycle.time_limits import SilenceWatch, TimeLimits
from orchestrator.core.progress.activity import StartWatch, late_start
from orchestrator.core.state import events
from orchestrator.core.state.changes import changed_tasks
from orchestrator.core.state.events import Event, StopReason, TeardownReason
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import Cause, CauseKind, RunResult
from orchestrator.core.state.state import RunState

# Seconds after the grace period in which the agent must report the end of a teardown; after that it counts as lost.
TEARDOWN_MARGIN_S = 5.0
# Seconds for the agent to hold the ports of an attempt; a port server takes seconds, the kernel milliseconds.
PLAN_MARGIN_S = 60.0
# Seconds after --link-timeout in which a silent host is reported as lost.
LOSS_MARGIN_S = 2.0
# The client has left: the tasks get the short grace period.
_QUICK = frozenset({StopReason.CLIENT_GONE, StopReason.OUTPUT_CLOSED, StopReason.SOURCE_CHANGED})


class Lifecycle:
    """The state machine of one run. Call handle() with every event in order, and perform the actions it returns."""

    def __init__(
        self,
        spec: JobSpec,
        run_id: str,
        started_mono: float,
        ends_mono: float | None = None,
        is_updated: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ends_mono`: the end of the allocation (monotonic seconds), if it has one. `is_updated`: whether the files of
        orch have been replaced since the start."""
        self.state = RunState()
        self.result: RunResult | None = None
        self._spec = spec
        self._run_id = run_id
        self._began_mono = started_mono
        # A silent host answers within this time, or is lost.
        self._silence_s = spec.link_timeout_s + LOSS_MARGIN_S if spec.hosts else 0.0
        self._timeout_at = None if spec.timeout_s is None else started_mono + spec.timeout_s
        self._teardown_by: float | None = None
        self._restart_at: float | None = None
        self._planned_by: float | None = started_mono + PLAN_MARGIN_S
        self._restarts = RunRestarts(spec, is_updated)
        self._start = StartWatch()
        self._limits = TimeLimits(spec)
        self._silence = SilenceWatch(spec)
        self._host_notices = HostNotices()
        self._hosts = HostChoice(spec)
        self._ends = TaskEnds(spec, is_updated)
        self._chaos = ChaosWatch(spec.chaos, started_mono)
        self._debugging = DebugWatch(spec)
        self._allocation = notices.AllocationEnd(spec.notice_s, ends_mono)
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        """Reset what belongs to one attempt."""
        self._failed_mono: float | None = None
        self._noticed_s: float | None = None
        self._late: str | None = None
        self._not_restarted: str | None = None
        self._limit: Cause | None = None
        self._nan: Cause | None = None
        self._gives_way = False
        self._is_tearing_down = False
        self._is_forced = False
        self._grace_s = 0.0
        for part in (self._ends, self._limits, self._silence):
            part.reset()

    @property
    def worked(self) -> bool:
        """Whether the run ever reached a training step or, if it reports none, ran for a while."""
        return self._restarts.worked

    def next_deadline(self) -> tuple[float, str] | None:
        """(monotonic seconds, name) of the next DeadlineReached that must be sent."""
        if self.result is not None:
            return None
        wanted: list[tuple[float | None, str]] = [
            (self._teardown_by, Deadline.TEARDOWN),
            (self._start.due, Deadline.START_LATE),
            (self._restart_at, Deadline.RESTART),
            (self._planned_by, Deadline.PLAN),
            (self._host_notices.due, Deadline.HOSTS),
            (self._hosts.awaited_until if self._is_planning else None, Deadline.HOSTS_AWAITED),
            (self._hosts.retry_due(self.state), Deadline.HOSTS_RETRY),
            (self._timeout_at if self.state.teardown is None else None, Deadline.TIMEOUT),
            (self._allocation.due, Deadline.NOTICE),
        ]
        if not self._is_tearing_down:
            wanted += [(self._chaos.due(self.state), Deadline.CHAOS), *self._ends.deadlines()]
            # orch does not know what the tasks of a silent host do, and the others may wait for them.
            if not self.state.silent_hosts:
                wanted += [*self._limits.deadlines(), (self._silence.due, Deadline.SILENCE)]
        suspends = self._debugging.suspends
        return min(((at, name) for at, name in wanted if at is not None and not suspends(name)), default=None)

    def handle(self, event: Event) -> list[Action]:
        """Apply one event; return the actions to perform now, in order."""
        if self.result is not None:
            return []
        before, self.state = self.state, apply(self.state, event)
        changed = changed_tasks(before.tasks, self.state, event)
        if suspended_s := self._debugging.update(self.state, changed, event.mono):
            self._defer_limits(suspended_s, event.mono)
        for watch in (self._restarts, self._start, self._limits, self._silence, self._host_notices):
            watch.update(self.state, changed, event.mono)
        faults = [
            Happen(fault.as_event(event.at, event.mono)) for fault in self._chaos.take(self.state, event.mono)
        ]
        actions = self._actions_for(before, event)
        if any(isinstance(action, TearDown) for action in actions):
            self._chaos.decide_teardown(self.state.attempt, event.mono)
        return [*actions, *faults]

    def _defer_limits(self, seconds: float, now: float) -> None:
        """Time for which limits were suspended does not count."""
        if self._timeout_at is not None:
            self._timeout_at += seconds
        for limit in (self._start, self._ends.after_training, self._limits, self._silence):
            limit.defer(seconds, now)

    def _actions_for(self, before: RunState, event: Event) -> list[Action]:
        match event:
            case events.AttemptPlanned():
                self._planned_by = None
                if self._is_tearing_down or before.stop is not None:
                    return []  # stopped before its start
                return [StartTasks(tuple(self.state.tasks))]
            case events.TaskExited():
                if self.state.tasks[event.task].has_failed and self._noticed_s is None:
                    self._noticed_s = event.noticed_s
                return self._task_ended(event)
            case events.StopRequested():
                return self._stop_requested(event)
            case events.NoticeGiven():
                return self._end_within(TeardownReason.NOTICE, notices.grace_of(event, self._spec.grace_s))
            case events.RestartRequested():
                return self._restart_requested(event)
            case events.RestartPlanned():
                return self._restart_planned(event)
            case events.DeadlineReached():
                return self._deadline_reached(event)
            case events.StacksTaken():
                return self._stacks_taken(event)
            case events.SignalRequested():
                task = self.state.tasks.get(event.task)
                return [SendSignal(event.task, event.signal)] if task is not None and task.is_live else []
            case events.StorageFailed():
                return self._tear_down(TeardownReason.FAILURE, self._spec.failure_grace_s)
            case events.TeardownBegan():
                self._teardown_by = event.mono + event.grace_s + TEARDOWN_MARGIN_S + self._silence_s
                return []
            case events.HostJoined():
                late = self._hosts.join(before, event, is_planning=self._is_planning)
                if self._is_planning:  # the ports can be held only when all hosts are there
                    self._planned_by = event.mono + PLAN_MARGIN_S
                return [*late, *self._choose_hosts(event)]
            case events.HostSilent() | events.HostBack():
                if isinstance(event, events.HostBack):
                    self._limits.heard(event.host, event.mono)
                    self._silence.heard(event.host, event.mono)
                return [_notice(event, text) for text in self._host_notices.take(event)]
            case events.HostLost():
                return self._host_lost(event)
            case events.AgentLost():
                self._teardown_by = self._restart_at = self._planned_by = None
                return [SweepHost()]
            case events.TeardownEnded():
                return self._attempt_over(event)
            case events.TaskProgressed():
                resumed = self._restarts.report_resumed(self.state, event)
                return [
                    *resumed,
                    *self._debugging.report(before, event),
                    *self._report_bad_loss(before, event),
                ]
            case events.Preload() if self._spec.preload and event.refused is not None:
                # Shown without -v, too, because the user gave the option.
                return [_notice(event, f"--preload has no effect: {event.refused}")]
            case _:  # it only changes the state
                return []

    def _host_lost(self, event: events.HostLost) -> list[Action]:
        """Report the loss of a host, and end the attempt unless all its tasks had ended or none has been planned."""
        host = self.state.hosts[event.host]
        if self._hosts.is_on and self._is_planning:
            return [*self._hosts.lose_planned(self.state, event), *self._end_if_too_few()]
        self._hosts.lose(event)
        if not host.was_needed or self._restart_at is not None:
            return [_notice(event, f"{event.host} is lost, but has no tasks: {event.reason}")]
        named = [] if self._is_tearing_down else [_notice(event, f"{event.host} was lost: {event.reason}")]
        if not self._is_tearing_down and self._failed_mono is None:
            self._failed_mono, self._noticed_s = host.failed_mono, event.mono - host.failed_mono
        self._planned_by = None
        return [*named, *self._tear_down(TeardownReason.FAILURE, self._spec.failure_grace_s)]

    def _task_ended(self, event: events.TaskExited) -> list[Action]:
        if self._ends.is_failure(self.state, self.state.tasks[event.task]):
            self._failed_mono = self._failed_mono or event.mono
        if self._is_tearing_down:
            return []
        worked = self._restarts.worked
        wanted = self._ends.follow(self.state, event.task, event, worked=worked)
        if isinstance(wanted, Down):
            return self._tear_down(wanted.reason, wanted.grace_s)
        if self._ends.restarts.awaits(event.task):
            self._failed_mono = self._noticed_s = None  # the restart settles this failure
        return wanted

    def _report_bad_loss(self, before: RunState, event: events.TaskProgressed) -> list[Action]:
        """Report the first loss of the attempt that is not finite. With --stop-on-nan it ends the run."""
        loss = event.progress.bad_loss
        if loss is None or before.bad_loss is not None:
            return []
        text = f"{event.task}: the loss is {loss}"
        report = Happen(events.Noticed(at=event.at, mono=event.mono, text=text, nan_in=event.task))
        if not self._spec.stop_on_nan or self._is_tearing_down:
            return [report]
        # Now, because the task's exit may be the next event.
        text = f"the loss is {loss} (--stop-on-nan)"
        self._nan = Cause(task=event.task, kind=CauseKind.NAN, text=text)
        self._failed_mono = self._failed_mono or event.mono
        return [report, *self._tear_down(TeardownReason.FAILURE, self._spec.failure_grace_s)]

    def _stop_requested(self, event: events.StopRequested) -> list[Action]:
        if event.force and not self._is_forced:
            self._is_forced = self._is_tearing_down = True
            self._grace_s = 0.0
            self._restart_at = None
            return [TearDown(self.state.teardown or TeardownReason.REQUEST, 0.0)]
        # After a notice, a teardown may take much longer. A client that waited for any teardown no longer does.
        is_quick = event.reason in _QUICK
        if is_quick or self.state.teardown is TeardownReason.NOTICE:
            grace_s = self._spec.failure_grace_s if is_quick else self._spec.grace_s
            return self._end_within(TeardownReason.REQUEST, grace_s)
        return self._tear_down(TeardownReason.REQUEST, self._spec.grace_s)

    def _end_within(self, reason: TeardownReason, grace_s: float) -> list[Action]:
        """Begin a teardown, or shorten the one that has begun."""
        if self._is_tearing_down and self._grace_s > grace_s and self.state.agent_lost is None:
            self._grace_s = grace_s
            return [TearDown(self.state.teardown or reason, grace_s)]
        return self._tear_down(reason, grace_s)

    def _deadline_reached(self, event: events.DeadlineReached) -> list[Action]:
        if self._debugging.suspends(event.deadline):
            return []
        match event.deadline:
            case Deadline.TIMEOUT if self.state.teardown is None:
                self._timeout_at = None
                self._late = only_evaluator_left(self.state) or late_start(self.state, event.mono)
                return [Happen(events.StopRequested(at=event.at, mono=event.mono, reason=StopReason.TIMEOUT))]
            case Deadline.NOTICE:
                return self._allocation.reached(event)
            case Deadline.START_LATE:
                late = self._start.notice(self.state, event.mono)
                return [] if late is None else [_notice(event, late)]
            case Deadline.START_LIMIT | Deadline.STALL_LIMIT if not self._is_tearing_down:
                why = self._limits.reached(event)
                return [] if why is None else [TakeStacks(why)]
            case Deadline.SILENCE if not self._is_tearing_down:
                return [TakeStacks(Deadline.SILENCE)] if self._silence.wants_stacks(event) else []
            case Deadline.RESTART if _is_due(self._restart_at, event):
                return self._plan_another(event)
            case Deadline.HOSTS_AWAITED:
                return self._choose_hosts(event)
            case Deadline.HOSTS_RETRY:
                return self._hosts.retry(self.state, event.mono)
            case Deadline.HOSTS:
                return [_notice(event, text) for text in self._host_notices.say(event.mono)]
            case Deadline.TASK_RESTART if not self._is_tearing_down:
                return [StartTask(name) for name in self._ends.restarts.take_due(event.mono)]
            case Deadline.EVALUATOR if not self._is_tearing_down:
                notices, down = self._ends.stop_waiting(self.state, event)
                return [*notices, *self._tear_down(down.reason, down.grace_s)]
            case Deadline.PLAN if _is_due(self._planned_by, event):
                return self._lose_agent(event, "the agent did not hold the ports in time")
            case Deadline.TEARDOWN if self._teardown_by is not None:
                return self._lose_agent(event, "the agent did not end the tasks in time")
        return []

    def _lose_agent(self, event: Event, reason: str) -> list[Action]:
        self._teardown_by = self._planned_by = None
        return [Happen(events.AgentLost(at=event.at, mono=event.mono, reason=f"{reason}; is it stopped?"))]

    def _stacks_taken(self, event: events.StacksTaken) -> list[Action]:
        silent = self._silence.notice(self.state, event)
        if silent is not None and not self._is_tearing_down:
            return [_notice(event, silent)]
        cause = self._limits.blame(self.state, event)
        if cause is None or self._is_tearing_down or self._debugging.suspends(event.why):
            return []
        if not event.stacks and any(task.is_live for task in self.state.tasks.values()):
            # The agent answers even for tasks that cannot: so the agent itself hangs.
            return self._lose_agent(event, "the agent does not answer")
        self._limit = cause
        self._failed_mono = self._failed_mono or event.mono
        return self._tear_down(TeardownReason.LIMIT, self._spec.failure_grace_s)

    def _tear_down(self, reason: TeardownReason, grace_s: float) -> list[Action]:
        """Begin a teardown, unless one has begun: the first reason counts."""
        if self._is_tearing_down or self.state.agent_lost is not None:
            return []
        self._is_tearing_down = True
        self._grace_s = grace_s
        self._restart_at = None
        return [TearDown(reason, grace_s)]

    def _restart_requested(self, event: events.RestartRequested) -> list[Action]:
        if self.state.stop is not None or (self._planned_by is not None and self.state.attempt):
            return []  # the next attempt is being planned
        if self._restart_at is not None:  # between attempts: skip the delay
            return self._plan_another(event)
        self._failed_mono = self._failed_mono or event.mono
        return self._tear_down(TeardownReason.RESTART, self._spec.grace_s)

    def _plan_another(self, event: Event) -> list[Action]:
        self._restart_at = None
        self._planned_by = event.mono + PLAN_MARGIN_S
        if self._hosts.is_on:
            return [*self._hosts.begin(self.state, event.mono), *self._choose_hosts(event)]
        return [PlanAttempt(self.state.attempt + 1)]

    @property
    def _is_planning(self) -> bool:
        return self._planned_by is not None and not self._is_tearing_down

    def _choose_hosts(self, event: Event) -> list[Action]:
        """Plan the attempt of an elastic run, once it is known which hosts it has."""
        if not self._is_planning:
            return []
        return [*self._hosts.choose(self.state, event), *self._end_if_too_few()]

    def _end_if_too_few(self) -> list[Action]:
        if self._hosts.too_few is None:
            return []
        self._planned_by = None
        return self._tear_down(TeardownReason.FAILURE, self._spec.failure_grace_s)

    def _restart_planned(self, event: events.RestartPlanned) -> list[Action]:
        self._begin_attempt()
        if self.state.agent_lost is not None:
            return []
        if self.state.stop is not None:
            return self._tear_down(TeardownReason.REQUEST, self._spec.failure_grace_s)
        self._restart_at = event.mono + event.delay_s
        return self._hosts.retry(self.state, event.mono)

    def _attempt_over(self, event: events.TeardownEnded) -> list[Action]:
        """All processes of the attempt are gone: finish, or plan another attempt."""
        self._teardown_by = None
        began = self.state.teardown_mono
        teardown_s = None if began is None else event.mono - began
        first = completion.first_failure(self.state, self._ends.done_without)
        blame = self._limit or self._ends.left_early
        decided = self._restarts.after_teardown(self.state, event.mono, blame, first)
        if isinstance(decided, Again) and self._nan is not None and not self.state.restart_asked:
            decided = Refused("--stop-on-nan ends the run")
        if self._hosts.too_few is not None:
            decided = Refused(self._hosts.too_few)
        if isinstance(decided, Again) and event.left:
            decided = Refused("processes of this attempt are still running")
        if isinstance(decided, Again) and self.state.notice is not None:
            self._gives_way, decided = True, None
        if isinstance(decided, Again):
            self._restarts.failed_mono = self._failed_mono or event.mono
            ended = outcome.attempt_end(self.state, self._findings(event.mono, teardown_s))
            mono, delay_s = event.mono, decided.delay_s
            return [Happen(events.RestartPlanned(at=event.at, mono=mono, ended=ended, delay_s=delay_s))]
        if isinstance(decided, Refused):
            self._not_restarted = decided.reason
        checkpoint_dir = None if self._spec.checkpoint_dir is None else str(self._spec.checkpoint_dir)
        findings = self._findings(event.mono, teardown_s)
        result = outcome.run_result(self._run_id, self.state, findings, checkpoint_dir)
        self.result = result.model_copy(update={"faults": self._chaos.reports(result)})
        return [Finish(self.result)]

    def _findings(self, mono: float, teardown_s: float | None) -> outcome.Findings:
        return outcome.Findings(
            timeout_s=self._spec.timeout_s,
            noticed_s=self._noticed_s,
            teardown_s=teardown_s,
            took_s=mono - self._began_mono,
            late=self._late,
            limit=self._limit,
            not_restarted=self._not_restarted or self._ends.not_restarted,
            left_early=self._ends.left_early,
            nan=self._nan,
            gives_way=self._gives_way,
            done_without=self._ends.done_without,
            not_distributed=find_not_distributed(
                self._spec, self.state, completion.deciding_tasks(self.state)
            ),
        )


def _notice(event: Event, text: str) -> Happen:
    return Happen(events.Noticed(at=event.at, mono=event.mono, text=text))


def _is_due(at: float | None, event: events.DeadlineReached) -> bool:
    return at is not None and event.mono >= at
