"""Simulates what is around a lifecycle: the supervisor, an agent with tasks, a clock and users."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from making import attempt_planned, event, exited, not_started, planned_task, progressed

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle import actions
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, StopReason, TeardownReason, event_line, parse_event
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import RunResult, TaskStack
from orchestrator.core.state.state import RunState

START = 1000.0
# Bound on the turns in which a run of a few tasks ends without further requests.
MANY = 3000


@dataclass
class Agent:
    """`orders`: not executed yet, oldest first. `running`: the tasks, and when they started."""

    orders: deque[Callable[[], None]] = field(default_factory=deque)
    running: dict[str, float] = field(default_factory=dict)
    exits: int = 0
    is_ending: bool = False
    is_there: bool = True


class World:
    """`queue`: the events that are not handled yet. `written`: the state by the handled events, as on disk."""

    def __init__(self, spec: JobSpec, tasks: int, serves: bool, names: Sequence[str] | None = None) -> None:
        """`names`: of the tasks. Without names, there are `tasks` workers."""
        self.spec = spec
        self.lifecycle = Lifecycle(spec, "run-1", START)
        self.names = list(names or (f"worker:{index}" for index in range(tasks)))
        self.serves = serves
        self.now = START
        self.queue: deque[Event] = deque()
        self.written = RunState()
        self.agent = Agent()
        self.results: list[RunResult] = []
        self.restarts: list[tuple[float, bool]] = []
        self.task_restarts: dict[str, list[float]] = {}
        self.is_torn_down = False
        self.has_stopped = False
        self.was_asked = False
        self.planned = 0
        self.agent.orders.append(lambda: self._held(1))

    # -- what the supervisor does

    @property
    def is_over(self) -> bool:
        return bool(self.results)

    def happened(self, told: Event) -> None:
        self.queue.append(told)

    def happens(self, kind: type[Event], **fields: Any) -> None:
        self.happened(event(kind, self.now, **fields))

    def take_in(self) -> list[actions.Action]:
        """Handle the next event, and execute the actions of the lifecycle."""
        told = self.queue.popleft()
        before = self.written
        self.written = apply(self.written, parse_event(event_line(told)))
        wanted = self.lifecycle.handle(told)
        assert self.lifecycle.state == self.written, "the events on disk give another state"
        match told:
            case events.StopRequested():
                self.has_stopped = True
            case events.AttemptPlanned() if not self.is_torn_down:
                self.was_asked = False
            case events.RestartRequested():
                self.was_asked = True
            case events.RestartPlanned():
                assert self.was_asked or before.teardown in (TeardownReason.FAILURE, TeardownReason.LIMIT)
                self.restarts.append((told.delay_s, self.was_asked))
                self.is_torn_down = False
            case events.TaskRestartPlanned():
                self.task_restarts.setdefault(told.task, []).append(told.delay_s)
        for action in wanted:
            self._perform(action)
        return wanted

    def _perform(self, action: actions.Action) -> None:
        assert not self.is_over, f"{action} after the end"
        match action:
            case actions.StartTasks():
                self._may_start()
                assert action.tasks == tuple(self.names)
                for name in action.tasks:
                    self._order(lambda name=name: self._start(name))  # type: ignore[misc]
            case actions.StartTask():
                self._may_start()
                assert self.lifecycle.state.tasks[action.task].phase == "pending"
                assert action.task not in self.agent.running
                self._order(lambda: self._start(action.task))
            case actions.PlanAttempt():
                self._may_start()
                assert action.attempt == self.lifecycle.state.attempt + 1
                self._order(lambda: self._held(action.attempt))
            case actions.SendSignal():
                self._order(lambda: self._signal(action.task, action.signal))
            case actions.TakeStacks():
                self._order(lambda: self._stacks(action.why))
            case actions.TearDown():
                self.is_torn_down = True
                self.happens(events.TeardownBegan, reason=action.reason, grace_s=action.grace_s)
                self._order(self._stop)
            case actions.SweepHost():
                self.agent = Agent(is_there=False)
                self.happens(events.TeardownEnded, swept=1)
            case actions.Happen():
                self.happened(action.event)
            case actions.Finish():
                self.results.append(action.result)

    def _may_start(self) -> None:
        assert not self.is_torn_down, "a start during the teardown of the attempt"
        assert not self.has_stopped, "a start after a stop"

    def _order(self, order: Callable[[], None]) -> None:
        if self.agent.is_there:
            self.agent.orders.append(order)

    # -- what the agent does

    def obey(self) -> None:
        """Execute the agent's next order."""
        self.agent.orders.popleft()()

    def _held(self, attempt: int) -> None:
        plans = [planned_task(name, serves=self.serves and name != "evaluator:0") for name in self.names]
        self.planned += 1
        self.happened(attempt_planned(plans, attempt, self.now))

    def _start(self, name: str) -> None:
        if self.agent.is_ending:
            return  # the stop came first
        self.agent.running[name] = self.now
        pid = 100 + self.agent.exits * 10 + self.names.index(name)
        self.happens(events.TaskStarted, task=name, pid=pid, start_ticks=pid)

    def cannot_start(self) -> None:
        """Let the next order fail if it is a start."""
        self.obey()
        if self.queue and isinstance(self.queue[-1], events.TaskStarted):
            started = self.queue.pop()
            assert isinstance(started, events.TaskStarted)
            del self.agent.running[started.task]
            self.happened(not_started(started.task, self.now, order=self.agent.exits))
            self.agent.exits += 1

    def _signal(self, name: str, number: int) -> None:
        if number == 9 and name in self.agent.running:
            self.exits(name, None, 9)

    def _stacks(self, why: str) -> None:
        stacks = {
            name: TaskStack(how="signal", state="S", frames=("a.py:1 f",)) for name in self.agent.running
        }
        self.happens(events.StacksTaken, why=why, stacks=stacks)

    def _stop(self) -> None:
        self.agent.is_ending = True

    def emptied(self) -> None:
        """End the teardown of the agent: no process is left."""
        assert self.agent.is_ending
        for name in list(self.agent.running):
            self.exits(name, None, 15)
        self.agent.is_ending = False
        self.happens(events.TeardownEnded)

    def is_lost(self) -> None:
        self.agent = Agent(is_there=False)
        self.happens(events.AgentLost, reason="the agent was lost")

    # -- what tasks do

    def exits(self, name: str, code: int | None, signal: int | None = None, **facts: Any) -> None:
        del self.agent.running[name]
        times = {"mono": self.now, "ended_mono": self.now - 0.01}
        self.happened(exited(name, code, signal, order=self.agent.exits, **times, **facts))
        self.agent.exits += 1

    def is_ready(self, name: str) -> None:
        self.happens(events.TaskReady, task=name)

    def steps(self, name: str, step: int) -> None:
        self.happened(progressed(name, self.now, epoch=1, epochs=2, step=step, steps=50))

    # -- what users do

    def stop(self, reason: StopReason, *, force: bool) -> None:
        self.happens(events.StopRequested, reason=reason, force=force)

    # -- the clock

    def wait(self, seconds: float) -> None:
        """Let the time pass. Each deadline is reported when it is due."""
        until = self.now + seconds
        while (wanted := self.lifecycle.next_deadline()) is not None and wanted[0] <= until:
            self.now = max(self.now, wanted[0])
            self.reach(wanted)
        self.now = until

    def reach(self, wanted: tuple[float, str]) -> None:
        """Report a deadline. It must have an effect, because the lifecycle would otherwise request it for ever."""
        before = self.lifecycle.state
        self.take_in_all()
        if self.is_over or self.lifecycle.next_deadline() != wanted:
            return
        quiet_s = {name: self.now - at for name, at in self.agent.running.items()}
        self.happens(events.DeadlineReached, deadline=wanted[1], quiet_s=quiet_s)
        effects = self.take_in()
        moved = self.lifecycle.next_deadline() != wanted or self.lifecycle.state != before
        assert effects or moved, f"{wanted} at {self.now} had no effect"
        self.take_in_all()

    def take_in_all(self) -> None:
        while self.queue and not self.is_over:
            self.take_in()

    def run_to_end(self, code: int) -> None:
        """Run to the end without further requests: tasks exit with `code`, the agent executes its orders."""
        for _ in range(MANY):
            if self.is_over:
                return
            if self.queue:
                self.take_in()
            elif self.agent.orders:
                self.obey()
            elif self.agent.is_ending:
                self.emptied()
            elif self.agent.running:
                name = next(iter(self.agent.running))
                self.exits(name, code)
            else:
                wanted = self.lifecycle.next_deadline()
                assert wanted is not None, f"it waits for ever: {self.lifecycle.state}"
                self.now = max(self.now, wanted[0])
                self.reach(wanted)
        raise AssertionError(f"it does not end: {self.lifecycle.state}")
