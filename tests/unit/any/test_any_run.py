"""Any events at any moment, under every policy: each run ends once, with the right result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fuzzing import effort
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from making import JOB, changed, policies
from run_model import World

from orchestrator.core.errors import ExitCode
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.fault import Fault
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.lifecycle.restarts import LONGEST_DELAY_S
from orchestrator.core.state import events
from orchestrator.core.state.events import StopReason
from orchestrator.core.state.result import CauseKind, RunResult, shell_code
from orchestrator.core.state.state import TaskPhase

# Hundreds of whole runs take long on a busy machine.
pytestmark = pytest.mark.timeout(900)

CLUSTERS = (
    ("worker:0",),
    ("worker:0", "worker:1"),
    ("worker:0", "worker:1", "worker:2"),
    ("worker:0", "worker:1", "evaluator:0"),
    ("chief:0", "worker:0", "evaluator:0"),
    ("chief:0", "worker:0", "worker:1", "ps:0"),
    ("chief:0", "worker:0", "ps:0", "evaluator:0"),
    ("worker:0", "ps:0"),
)
NAMES = st.sampled_from(sorted({name for cluster in CLUSTERS for name in cluster}))
POLICIES = st.dictionaries(
    st.sampled_from(["chief", "worker", "ps", "evaluator"]), st.sampled_from(FailurePolicy), max_size=2
)
EXITS = st.sampled_from([0, 0, 1, 3, 42, 143])
ANY_TASK = st.none() | st.integers(0, 2).map(lambda index: TaskRef(type="worker", index=index))
FAULTS = st.one_of(
    st.builds(Fault, signal=st.just(9), task=ANY_TASK, step=st.integers(0, 3), attempt=st.integers(1, 2)),
    st.builds(Fault, signal=st.sampled_from([9, 15]), task=ANY_TASK, at_s=st.sampled_from([0.0, 3.0])),
    st.builds(Fault, signal=st.just(19), task=ANY_TASK, for_s=st.sampled_from([None, 2.0])),
    st.builds(Fault, signal=st.just(10), task=ANY_TASK, epoch=st.integers(1, 2)),
)
JOBS = st.builds(
    changed,
    st.just(JOB),
    timeout_s=st.sampled_from([None, None, 5.0, 200.0]),
    start_timeout_s=st.sampled_from([None, 20.0]),
    stall_timeout_s=st.sampled_from([None, 5.0]),
    evaluator_timeout_s=st.sampled_from([None, 0.0, 30.0]),
    on_failure=st.sampled_from(FailurePolicy),
    role_settings=POLICIES.map(policies),
    max_restarts=st.integers(0, 3),
    chaos=st.lists(FAULTS, max_size=2).map(tuple),
)


TASK_ACTS: list[Callable[[World, str], None]] = [
    lambda world, name: world.exits(name, None, 9),
    lambda world, name: world.exits(name, None, 9, over_limit=(2, 1)),
    World.is_ready,
]
FULL = "/x: No space left on device"


def _policies(spec: JobSpec) -> set[FailurePolicy]:
    return {spec.policy_of(role) for role in spec.role_settings}


_STOPPED = {
    StopReason.INTERRUPT: ExitCode.INTERRUPTED,
    StopReason.OUTPUT_CLOSED: ExitCode.OUTPUT_CLOSED,
    StopReason.TIMEOUT: ExitCode.TIMED_OUT,
}


class AnyRun(RuleBasedStateMachine):
    """Each rule is an event that may happen next. Events are handled at any later moment."""

    @initialize(spec=JOBS, names=st.sampled_from(CLUSTERS), serves=st.booleans())
    def begin(self, spec: JobSpec, names: tuple[str, ...], serves: bool) -> None:
        self.world = World(spec, len(names), serves, names)
        self.users_restarts = 0

    # -- orch continues

    @precondition(lambda self: self.world.queue and not self.world.is_over)
    @rule()
    def take_in_next(self) -> None:
        self.world.take_in()

    @precondition(lambda self: not self.world.is_over)
    @rule()
    def take_in_all(self) -> None:
        self.world.take_in_all()

    @precondition(lambda self: self.world.agent.orders)
    @rule()
    def agent_executes_its_orders(self) -> None:
        self.world.obey()

    @precondition(lambda self: self.world.agent.orders)
    @rule()
    def agent_catches_up(self) -> None:
        while self.world.agent.orders:
            self.world.obey()

    @rule()
    def all_is_done(self) -> None:
        settle(self.world)

    @precondition(lambda self: self.world.agent.is_ending)
    @rule()
    def nothing_is_left(self) -> None:
        self.world.emptied()

    @precondition(lambda self: self.world.agent.orders)
    @rule()
    def a_start_fails(self) -> None:
        self.world.cannot_start()

    # -- tasks

    @rule(name=NAMES, code=EXITS)
    def a_task_exits(self, name: str, code: int) -> None:
        if name in self.world.agent.running:
            self.world.exits(name, code)

    @rule(name=NAMES, act=st.sampled_from(TASK_ACTS))
    def a_task_acts(self, name: str, act: Callable[[World, str], None]) -> None:
        if name in self.world.agent.running:
            act(self.world, name)

    @rule(name=NAMES, step=st.integers(0, 3))
    def a_task_steps(self, name: str, step: int) -> None:
        if name in self.world.agent.running:
            self.world.steps(name, step)

    @rule()
    def all_tasks_listen(self) -> None:
        for name in self.world.agent.running:
            self.world.is_ready(name)

    # -- users, and the machine

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 20.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        if not self.world.is_over:
            self.world.wait(seconds)

    @rule(reason=st.sampled_from([*StopReason]), force=st.booleans(), chance=st.integers(0, 2))
    def a_user_stops_the_run(self, reason: StopReason, force: bool, chance: int) -> None:
        if chance == 0:
            self.world.stop(reason, force=force)

    @rule()
    def a_user_restarts_the_run(self) -> None:
        self.users_restarts += 1
        self.world.happens(events.RestartRequested)

    @rule(name=NAMES, number=st.sampled_from([9, 19]))
    def a_user_signals_a_task(self, name: str, number: int) -> None:
        if name in self.world.lifecycle.state.tasks:
            self.world.happens(events.SignalRequested, task=name, signal=number, by="user")

    @rule(chance=st.integers(0, 9))
    def a_machine_fails(self, chance: int) -> None:
        if chance == 0:
            self.world.happens(events.StorageFailed, reason=FULL)
        elif chance == 1 and self.world.agent.is_there:
            self.world.is_lost()

    # -- what holds at every moment

    @invariant()
    def restarts_stay_within_the_limit(self) -> None:
        if not hasattr(self, "world"):
            return
        spec = self.world.spec
        by_itself = [delay for delay, asked in self.world.restarts if not asked]
        is_restarted = FailurePolicy.RESTART in {spec.on_failure, *_policies(spec)}
        assert len(by_itself) <= (spec.max_restarts if is_restarted else 0)
        assert len(self.world.restarts) - len(by_itself) <= self.users_restarts
        for name, delays in self.world.task_restarts.items():
            assert spec.policy_of(name.partition(":")[0]) is FailurePolicy.RESTART_TASK
            check_delays(delays)
        check_delays(by_itself)

    @invariant()
    def the_run_ends_once(self) -> None:
        if not hasattr(self, "world") or not self.world.is_over:
            return
        assert len(self.world.results) == 1
        assert self.world.lifecycle.next_deadline() is None

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.run_to_end(code=1 if self.world.planned % 2 else 0)
        (result,) = self.world.results
        check_ends_of_tasks(self.world)
        check_result(self.world, result)


def check_delays(delays: list[float]) -> None:
    """The delays are 1, 2, 4 ... 30 seconds, and start again from 1 after a healthy minute."""
    for before, delay in zip([0.0, *delays], delays, strict=False):
        assert delay in (1.0, min(LONGEST_DELAY_S, 2 * before)), delays


def check_ends_of_tasks(world: World) -> None:
    state = world.lifecycle.state
    assert all(task.phase.is_end or task.phase is TaskPhase.PENDING for task in state.tasks.values()), state
    assert [past.attempt for past in state.history] == list(range(1, len(state.history) + 1))


def check_result(world: World, result: RunResult) -> None:
    """The parts of the result agree, and the exit code is that of the table in docs/cli.md."""
    state = world.lifecycle.state
    cause, first = result.cause, result.first_failure
    assert (result.exit_code == 0) == (result.outcome == "succeeded")
    assert len(result.faults) == len(world.spec.chaos)
    match result.outcome:
        case "succeeded":
            assert cause is None
            assert first is None
            assert {task.state for task in result.tasks if task.task in deciding(world)} == {"succeeded"}
            others = {task.task: task.state for task in result.tasks if task.task not in deciding(world)}
            assert others.pop("evaluator:0", "") != "failed"
            assert not others or "ps:0" in world.names
        case "stopped":
            assert state.stop is not None
            assert result.exit_code == _STOPPED.get(state.stop.reason, ExitCode.TERMINATED)
        case "timed_out":
            assert result.exit_code == ExitCode.TIMED_OUT
            assert cause is not None
        case "failed":
            assert cause is not None
            if cause.kind is CauseKind.ORCH or state.storage_error is not None:
                return
            blamed = world.spec.on_failure
            if cause.kind is CauseKind.LEFT_EARLY:
                assert "ps:0" in world.names
            if first is None:
                assert (result.exit_code, cause.kind) == (1, CauseKind.LEFT_EARLY)
            else:
                assert result.exit_code == shell_code(first.exit_code, first.signal)
                blamed = world.spec.policy_of(first.task.partition(":")[0])
            if blamed in (FailurePolicy.RESTART, FailurePolicy.RESTART_TASK) and first is not None:
                lost = state.stop is not None or state.agent_lost is not None
                assert result.not_restarted or lost, f"it could have been restarted: {result}"
            if {world.spec.policy_of(name.partition(":")[0]) for name in world.names} == {
                FailurePolicy.CONTINUE
            }:
                workers = {task.state for task in result.tasks if task.task in deciding(world)}
                assert workers <= {"succeeded", "failed"}
        case other:
            raise AssertionError(other)


def deciding(world: World) -> set[str]:
    """Return the tasks that decide the run's success."""
    if "ps:0" in world.names:
        return {world.names[0]}
    return {name for name in world.names if name != "evaluator:0"}


def settle(world: World) -> None:
    """Handle events and orders until none is left."""
    while not world.is_over and (world.queue or world.agent.orders or world.agent.is_ending):
        world.take_in_all()
        while world.agent.orders:
            world.obey()
        if world.agent.is_ending:
            world.emptied()


# -- failures that the test above has found


def at_work(policy: FailurePolicy) -> World:
    """Two tasks that have done three steps. The first one fails."""
    world = World(changed(JOB, on_failure=policy), 2, serves=True)
    settle(world)
    for name in world.names:
        world.is_ready(name)
        world.steps(name, 3)
    world.take_in_all()
    world.exits("worker:0", 1)
    return world


def test_restarted_task_is_awaited_when_another_finishes() -> None:
    world = at_work(FailurePolicy.RESTART_TASK)
    world.exits("worker:1", 0)
    world.run_to_end(code=0)
    assert (world.results[0].outcome, world.task_restarts) == ("succeeded", {"worker:0": [1.0]})


def test_restart_before_the_ports_leaves_no_task() -> None:
    world = World(JOB, 1, serves=True)
    world.happens(events.RestartRequested)
    world.obey()
    world.take_in_all()
    assert not world.agent.running
    world.run_to_end(code=0)
    assert (world.results[0].outcome, world.results[0].attempts) == ("succeeded", 2)


def test_disk_full_between_two_attempts_is_the_cause() -> None:
    world = at_work(FailurePolicy.RESTART)
    settle(world)
    assert world.restarts == [(1.0, False)]
    world.happens(events.StorageFailed, reason=FULL)
    world.run_to_end(code=0)
    (result,) = world.results
    assert (result.exit_code, result.cause and result.cause.kind) == (ExitCode.ORCH, CauseKind.LIMIT)


AnyRun.TestCase.settings = effort(60, stateful_step_count=40)
test_any_run = AnyRun.TestCase
