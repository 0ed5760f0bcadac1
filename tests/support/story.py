"""`Story`: a run told step by step on a virtual clock. The lifecycle decides, and each step is checked.

story = Story(job(on_failure=FailurePolicy.RESTART)).ready().trains(0, 20).at(5).exits(1, code=3).torn_down()
assert story.due == (6, Deadline.RESTART)
assert story.at(6).ready().exits(0, 1).result().attempts == 2
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from signal import SIGCONT
from typing import Any, Self

from making import (
    RUN_ID,
    START,
    changed,
    event,
    exited,
    joined,
    not_started,
    planned_task,
    progressed,
    started,
    worker,
)

from orchestrator.core.errors import ExitCode
from orchestrator.core.job.hosts import parse_hosts
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import (
    Action,
    Deadline,
    Finish,
    Happen,
    PlanAttempt,
    ReopenHosts,
    SendSignal,
    StartTask,
    StartTasks,
    SweepHost,
    TakeStacks,
    TearDown,
)
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.plan.placement import place
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, NoticeSource, StopReason, event_line, parse_event
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import Cause, CauseKind, RunResult, TaskStack, shell_code
from orchestrator.core.state.state import HostPhase, RunState, TaskPhase

_STOPPED_CODES = (ExitCode.NOTICE, ExitCode.INTERRUPTED, ExitCode.OUTPUT_CLOSED, ExitCode.TERMINATED)


class Story:
    """A run of `spec`. A task is named `ps:0`, a worker by its number. Times are seconds since the start of the run.

    A step happens at the time of the last at(), which first lets the deadlines before it pass. Events that the
    lifecycle or a teardown causes follow a step by themselves; what agents and tasks do are steps.

    `orders`: what the lifecycle wanted, without the events that it only adds; `events`: all that it has handled.
    """

    def __init__(
        self, spec: JobSpec, hosts: int = 1, *, serves: bool = True, ends_s: float | None = None
    ) -> None:
        """`hosts`: the tasks are spread over so many, named a, b, c. `serves`: the tasks are TensorFlow programs.
        `ends_s`: when the allocation ends."""
        if hosts > 1:
            slots = -(-len(spec.tasks) // hosts)
            spec = changed(
                spec, hosts=parse_hosts(",".join(f"{host}:{slots}" for host in "abcdefgh"[:hosts]))
            )
        self.spec = spec
        self.now = 0.0
        self.orders: list[Action] = []
        self.events: list[Event] = []
        self.lifecycle = Lifecycle(spec, RUN_ID, START, None if ends_s is None else START + ends_s)
        self._serves = serves
        # The state that a reader of the events sees.
        self.written = self.state
        self._seen = 0
        self._exits = 0
        self._wrote: dict[str, float] = {}
        self._busy: tuple[str, ...] = ()
        # The orders that the agents have not obeyed yet.
        self.plan = None if spec.is_elastic else PlanAttempt(1)
        self._to_start: set[str] = set()
        self.teardown: TearDown | SweepHost | None = None

    @property
    def state(self) -> RunState:
        return self.lifecycle.state

    @property
    def mono(self) -> float:
        return START + self.now

    @property
    def due(self) -> tuple[float, str] | None:
        """The time and the name of the next deadline."""
        due = self.lifecycle.next_deadline()
        return None if due is None else (round(due[0] - START, 6), due[1])

    @property
    def notices(self) -> tuple[str, ...]:
        return self.state.notices

    @property
    def asked_stacks(self) -> str | None:
        """Why the last stacks were asked for."""
        return next((order.why for order in reversed(self.orders) if isinstance(order, TakeStacks)), None)

    def ordered(self) -> list[Action]:
        """The orders since this was last asked."""
        orders, self._seen = self.orders[self._seen :], len(self.orders)
        return orders

    def fresh(self) -> Self:
        """Forget the orders so far."""
        self.ordered()
        return self

    @property
    def cause(self) -> Cause:
        """The cause of the end, which the run must have."""
        cause = self.result().cause
        assert cause is not None, "the run has no cause"
        return cause

    def result(self) -> RunResult:
        """The result of the run, once the teardown that has begun is over."""
        if self.lifecycle.result is None:
            self.torn_down()
        assert self.lifecycle.result is not None, "the run does not end"
        return self.lifecycle.result

    def end(self) -> str:
        """The end of the run, and the kind of its cause with its task or host: `failed 3: exited worker:1`."""
        result = self.result()
        text = f"{result.outcome} {result.exit_code}"
        if result.cause is None:
            return text
        return " ".join(filter(None, [f"{text}:", result.cause.kind, result.cause.task or result.cause.host]))

    def ends(self) -> list[str]:
        """The end of each task in words, in the order of the plan."""
        return [task.end for task in self.result().tasks]

    # -- time

    def at(self, seconds: float) -> Self:
        """Let the time pass, and with it each deadline that is due."""
        while (due := self.lifecycle.next_deadline()) is not None and due[0] <= START + seconds:
            self.now = max(self.now, due[0] - START)
            self.reaches(due[1])
            assert self.lifecycle.next_deadline() != due, f"{due[1]} stays due"
        self.now = seconds
        return self

    def reaches(self, deadline: str, **fields: Any) -> Self:
        """A deadline is reached now, due or not."""
        if deadline in (Deadline.STALL_LIMIT, Deadline.SILENCE):
            live = (task for task in self.state.tasks.values() if task.is_live)
            quiet_s = {
                task.name: self.mono - max(task.started_mono or 0.0, self._wrote.get(task.name, 0.0))
                for task in live
            }
            fields = {"quiet_s": quiet_s, "busy": self._busy} | fields
        return self.happens(events.DeadlineReached, deadline=deadline, **fields)

    # -- what the agents do

    def plans(self) -> Self:
        """All hosts are there, and the ports of the attempt are held."""
        for host in self.spec.hosts:
            if host.name not in self.state.hosts:
                self.joins(host.name)
        assert self.plan is not None, "no attempt is to be planned"
        number, plan = self.plan.attempt, self.plan.job or self.spec
        hosts = place(plan) if plan.hosts else [None] * len(plan.tasks)
        tasks = tuple(
            planned_task(str(task), host=host, serves=self._serves and task.type != "evaluator")
            for task, host in zip(plan.tasks, hosts, strict=True)
        )
        return self.happens(events.AttemptPlanned, attempt=number, tasks=tasks)

    def starts(self, *tasks: int | str) -> Self:
        """These tasks start, or all that may. Plans the attempt first if that is ordered."""
        if self.plan is not None or not self.state.attempt:
            self.plans()
        for task in tasks or [name for name in self.state.tasks if name in self._to_start]:
            assert worker(task) in self._to_start, f"{task} may not start"
            self.tell(started(task, self.mono))
        return self

    def ready(self, *tasks: int | str) -> Self:
        """These tasks listen on their ports, or all that may. They start first if they have not."""
        if self.plan is not None or not self.state.attempt:
            self.plans()
        phases = (TaskPhase.STARTING, TaskPhase.RUNNING)
        known = self.state.tasks
        for task in tasks or [
            name for name in known if name in self._to_start or known[name].phase in phases
        ]:
            if worker(task) in self._to_start:
                self.starts(task)
            self.happens(events.TaskReady, task=task)
        return self

    def cannot_start(self, task: int | str) -> Self:
        return self.tell(not_started(task, self.mono, order=self._exits))

    def torn_down(self, **fields: Any) -> Self:
        """The teardown ends: SIGTERM has ended the tasks that were left."""
        for task in [*self.state.tasks.values()]:
            if task.is_live:
                self.exits(task.name, signal=15)
        assert self.teardown is not None, "nothing ends the tasks"
        return self.happens(events.TeardownEnded, **fields)

    def joins(self, host: str, **fields: Any) -> Self:
        return self.tell(joined(host, self.mono, **fields))

    def silent(self, host: str) -> Self:
        return self.happens(events.HostSilent, host=host, seconds=3.0)

    def back(self, host: str, seconds: float = 6.0) -> Self:
        return self.happens(events.HostBack, host=host, seconds=seconds)

    def loses(self, host: str, reason: str = "it has not answered for 10s") -> Self:
        return self.happens(events.HostLost, host=host, reason=reason)

    def loses_agent(self) -> Self:
        return self.happens(events.AgentLost, reason="the agent was lost")

    def stacks(self, *stacks: TaskStack | None, why: str | None = None, **roles: TaskStack) -> Self:
        """The stacks that were asked for: of worker:0, worker:1 and so on, and `ps`: of ps:0."""
        taken = {worker(number): stack for number, stack in enumerate(stacks) if stack is not None}
        taken |= {f"{role}:0": stack for role, stack in roles.items()}
        return self.happens(events.StacksTaken, why=why or self.asked_stacks, stacks=taken)

    # -- what the tasks do

    def trains(self, task: int | str, step: int, **fields: Any) -> Self:
        return self.reports(task, phase="training", step=step, **fields)

    def reports(self, task: int | str, phase: str | None = None, **fields: Any) -> Self:
        """A task reports its progress."""
        return self.tell(progressed(task, self.mono, phase=phase, **fields))

    def writes(self, *tasks: int | str) -> Self:
        """These tasks write output."""
        self._wrote |= {worker(task): self.mono for task in tasks}
        return self

    def busy(self, *tasks: int | str) -> Self:
        """Only these tasks use the processor from now on."""
        self._busy = tuple(map(worker, tasks))
        return self

    def exits(self, *tasks: int | str, code: int = 0, signal: int | None = None, **facts: Any) -> Self:
        """These tasks exit, in this order."""
        for task in tasks:
            self.tell(exited(task, code, signal, self.mono, **{"order": self._exits} | facts))
        return self

    # -- requests of users and machines

    def stops(self, reason: StopReason = StopReason.INTERRUPT, *, force: bool = False) -> Self:
        return self.happens(events.StopRequested, reason=reason, force=force)

    def restarts(self) -> Self:
        """A user asks for another attempt."""
        return self.happens(events.RestartRequested)

    def warns(self, left_s: float | None = 60.0, source: NoticeSource = NoticeSource.USER) -> Self:
        """A preemption notice for the machines of the run."""
        return self.happens(events.NoticeGiven, source=source, left_s=left_s)

    # -- anything

    def made(self, kind: type[Any], **fields: Any) -> Event:
        """Return an event with the current time, for a later tell()."""
        made: Event = event(kind, self.mono, **fields)
        return made

    def happens(self, kind: type[Any], **fields: Any) -> Self:
        return self.tell(self.made(kind, **fields))

    def tell(self, *incoming: Event) -> Self:
        """Handle events, all of which were there before those that follow from them."""
        queue = deque(incoming)
        while queue:
            told = queue.popleft()
            self._note(told)
            actions = self.lifecycle.handle(told)
            _check_orders(self, actions)
            for action in actions:
                if isinstance(action, Happen):
                    queue.append(action.event)
                    continue
                self._obey(action)
                if isinstance(action, TearDown):
                    queue.append(
                        event(events.TeardownBegan, self.mono, reason=action.reason, grace_s=action.grace_s)
                    )
            if not queue:
                _check_rest(self)
        return self

    def _note(self, told: Event) -> None:
        """Bring what the story knows up to date with an event that is about to be handled."""
        self.events.append(told)
        self._exits += isinstance(told, events.TaskExited)
        if isinstance(told, events.TaskStarted | events.TaskExited):
            self._to_start.discard(told.task)
        elif isinstance(told, events.AttemptPlanned):
            self.plan, self._to_start = None, set()
        elif isinstance(told, events.HostLost) and self.plan is not None and self.plan.job is not None:
            if told.host in {host.name for host in self.plan.job.hosts}:
                self.plan = None
        elif isinstance(told, events.TeardownEnded):
            self.teardown = None
            self._to_start.clear()
        if self.lifecycle.result is None:
            self.written = apply(self.written, parse_event(event_line(told)))

    def _obey(self, action: Action) -> None:
        self.orders.append(action)
        match action:
            case PlanAttempt():
                self.plan = action
            case StartTasks():
                self._to_start = {*action.tasks}
            case StartTask():
                self._to_start.add(action.task)
            case TearDown() | SweepHost():
                self.plan, self.teardown = None, action

    @property
    def is_at_work(self) -> bool:
        """Whether an agent has an order, or a task a process."""
        awaited = self.plan is not None or self.teardown is not None or self._to_start
        return bool(awaited) or any(task.is_live for task in self.state.tasks.values())


def other_ends(rows: Mapping[str, tuple[Any, ...]]) -> dict[str, list[str]]:
    """The rows whose story ends otherwise, with that end. A row: the story, its end(), and its ends() or none."""
    found = {name: [row[0].end(), *row[0].ends()] for name, row in rows.items()}
    return {name: found[name] for name, row in rows.items() if found[name][: len(row) - 1] != [*row[1:]]}


def _check_orders(story: Story, actions: list[Action]) -> None:
    """Check what the lifecycle wants after an event, before it is done."""
    state, spec = story.state, story.spec
    wanted = [action for action in actions if not isinstance(action, Happen)]
    assert not (wanted and story.orders and isinstance(story.orders[-1], Finish)), f"{wanted} after the end"
    is_ending = state.stop or state.notice or state.agent_lost or state.storage_error or story.teardown
    planned = [each.event for each in actions if isinstance(each, Happen) and _is_fault(each.event)]
    assert not (planned and is_ending), f"{planned} in a run that ends"
    for action in wanted:
        if isinstance(action, StartTasks | StartTask | PlanAttempt | TakeStacks):
            assert not is_ending, f"{action} in a run that ends"
        match action:
            case StartTasks():
                assert action.tasks == tuple(state.tasks)
                assert {task.phase for task in state.tasks.values()} == {TaskPhase.PENDING}
            case StartTask():
                task = state.tasks[action.task]
                assert task.phase is TaskPhase.PENDING and task.before_restart is not None
                assert task.restart_due_mono is not None and task.restart_due_mono <= story.mono
            case PlanAttempt():
                assert action.attempt == state.attempt + 1
                assert not any(task.is_live for task in state.tasks.values())
                away = {host.name for host in state.hosts.values() if host.phase is HostPhase.LOST}
                if action.job is not None:
                    assert not away & {host.name for host in action.job.hosts}, "planned on a lost host"
                    assert (spec.fewest_workers or 0) <= action.job.workers <= spec.workers
            case ReopenHosts():
                assert spec.is_elastic
            case SendSignal():
                assert state.tasks[action.task].is_live, f"{action} to a task without a process"
            case TearDown():
                earlier = story.teardown
                if isinstance(earlier, SweepHost):
                    assert action.grace_s == 0, "torn down without an agent"
                elif earlier is not None:
                    assert action.reason is earlier.reason and action.grace_s < earlier.grace_s, "delayed"
                left_s = state.notice.left_s if state.notice is not None else None
                assert 0 <= action.grace_s <= max(spec.grace_s, left_s or 0.0)
            case Finish():
                _check_result(story, action.result)


def _is_fault(told: Event) -> bool:
    return isinstance(told, events.SignalRequested) and told.fault is not None


def _check_rest(story: Story) -> None:
    """Check a run that does nothing until the next event."""
    due = story.lifecycle.next_deadline()
    if story.lifecycle.result is not None:
        assert due is None and isinstance(story.orders[-1], Finish)
    else:
        assert story.is_at_work or due is not None, "nothing will ever happen again"
    if isinstance(story.teardown, TearDown) and story.lifecycle.result is None:
        assert due is not None, "the teardown has no limit"


def _check_result(story: Story, result: RunResult) -> None:
    """Check that the parts of a result do not contradict each other."""
    state, spec = story.state, story.spec
    assert state == story.written, "readers of the events see another state"
    assert (result.exit_code == 0) == (result.outcome == "succeeded")
    assert result.attempts == state.attempt
    # A run that ends between two attempts has the last one in its history, too. A restart may precede the first: 0.
    numbers = [end.attempt for end in result.earlier_attempts if end.attempt]
    assert numbers in ([*range(1, state.attempt)], [*range(1, state.attempt + 1)])
    assert [task.task for task in result.tasks] == [*state.tasks]
    match result.outcome:
        case "succeeded":
            assert result.cause is None and result.first_failure is None
        case "failed":
            assert result.cause is not None
        case "timed_out":
            assert result.cause is not None and result.exit_code == ExitCode.TIMED_OUT
        case "stopped":
            assert result.exit_code in _STOPPED_CODES
            assert (result.cause is not None) == (result.exit_code == ExitCode.NOTICE)
    first, cause = result.first_failure, result.cause
    if first is not None:
        assert state.tasks[first.task].has_failed and (first.signal or first.exit_code)
    if cause is not None:
        assert {*cause.tasks, *([cause.task] if cause.task else [])} <= state.tasks.keys()
        assert (cause.kind is CauseKind.HOST) == (cause.host is not None)
        if cause.kind is CauseKind.EXITED and result.outcome == "failed":
            assert first is not None and result.exit_code == shell_code(first.exit_code, first.signal)
    faults = [each for each in story.events if isinstance(each, events.SignalRequested) and _is_fault(each)]
    sent = [each.fault for each in faults if each.signal != SIGCONT]
    assert sorted(set(sent)) == [at for at, fault in enumerate(result.faults) if fault.at_s is not None]
    assert len(sent) == len(set(sent)) and len(result.faults) == len(spec.chaos)
    times = [fault.detection_s for fault in result.faults]
    for seconds in (result.detection_s, result.teardown_s, result.took_s, *times):
        assert seconds is None or seconds >= 0
