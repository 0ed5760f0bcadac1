"""Elastic runs: which hosts and workers each attempt has after losses and returns. Events in, actions out."""

from __future__ import annotations

import pytest
from event_making import START, deadline, emptied, exited, feed, lifecycle_of, started, teardowns, the_result
from host_making import HOSTS_JOB, feed_in_turn, joined, lost, placed, silent
from hypothesis import given
from hypothesis import strategies as st
from job_making import changed

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.hosts import parse_hosts
from orchestrator.core.lifecycle.actions import (
    Action,
    Deadline,
    Finish,
    PlanAttempt,
    ReopenHosts,
    StartTasks,
    SweepHost,
    TearDown,
)
from orchestrator.core.lifecycle.elastic import REJOIN_S, RETRY_S
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.plan.placement import place
from orchestrator.core.state import events
from orchestrator.core.state.events import Progress, TeardownReason
from orchestrator.core.state.result import CauseKind

T = START
# 4 workers on three hosts.
ELASTIC = changed(
    HOSTS_JOB,
    roles={"worker": 4},
    fewest_workers=2,
    hosts=parse_hosts("a:2,b:1,c:1"),
    on_failure=FailurePolicy.RESTART,
)


def planned_on(hosts: str, attempt: int, mono: float) -> list[events.Event]:
    """The plan of an attempt, and its tasks' starts."""
    plan = placed([*hosts], mono).model_copy(update={"attempt": attempt})
    return [plan, *(started(index, mono) for index in range(len(hosts)))]


def running(hosts: str = "aabc") -> Lifecycle:
    lifecycle = lifecycle_of(ELASTIC)
    feed_in_turn(lifecycle, [*map(joined, "abc"), *planned_on(hosts, 1, T)])
    return lifecycle


def lose_and_end(lifecycle: Lifecycle, host: str, living: str, mono: float) -> list[Action]:
    """A host is lost, and the other tasks end one second later. `living`: their indices."""
    ends = [exited(int(index), None, 15, order=int(index), mono=mono + 1) for index in living]
    return feed_in_turn(lifecycle, [lost(host, mono), *ends, emptied(mono + 1)])


def plan_in(actions: list[Action]) -> tuple[int, int, str]:
    """The attempt, its workers and its hosts."""
    (plan,) = [action for action in actions if isinstance(action, PlanAttempt)]
    assert plan.job is not None
    return plan.attempt, plan.job.workers, "".join(host.name for host in plan.job.hosts)


def test_first_attempt_has_all_hosts() -> None:
    lifecycle = lifecycle_of(ELASTIC)
    assert not feed_in_turn(lifecycle, [joined("a"), joined("c")])
    assert plan_in(feed_in_turn(lifecycle, [joined("b")])) == (1, 4, "abc")


def test_run_continues_with_fewer_workers_and_grows_at_the_next_attempt() -> None:
    lifecycle = running()
    actions = lose_and_end(lifecycle, "c", "012", T + 20)
    assert teardowns(actions) and actions[-1] == ReopenHosts()
    assert feed(lifecycle, [deadline(Deadline.RESTART, T + 22)]) == [ReopenHosts()]
    # It was just lost, and may be back soon.
    assert lifecycle.next_deadline() == (T + 20 + REJOIN_S, Deadline.HOSTS_AWAITED)
    assert plan_in(feed(lifecycle, [deadline(Deadline.HOSTS_AWAITED, T + 25)])) == (2, 3, "ab")
    assert lifecycle.state.notices[-1] == "attempt 2 has 3 workers instead of 4: c is lost"
    feed_in_turn(lifecycle, planned_on("aab", 2, T + 26))
    assert len(lifecycle.state.tasks) == 3

    # It is tried again while the attempt runs; nothing else happens when it is back.
    due = lifecycle.next_deadline()
    assert due == (T + 22 + RETRY_S, Deadline.HOSTS_RETRY)
    assert feed(lifecycle, [deadline(Deadline.HOSTS_RETRY, due[0])]) == [ReopenHosts()]
    assert feed(lifecycle, [joined("c", T + 33)]) == []
    assert lifecycle.state.notices[-1].startswith("c is back: the next attempt uses it")
    assert feed(lifecycle, [deadline(Deadline.HOSTS_RETRY, T + 22 + 2 * RETRY_S)]) == []
    assert lifecycle.next_deadline() is None

    feed_in_turn(lifecycle, [events.RestartRequested(at=T, mono=T + 50)])
    ends = [exited(index, None, 15, order=index, mono=T + 51) for index in range(3)]
    feed_in_turn(lifecycle, [*ends, emptied(T + 51)])
    assert plan_in(feed(lifecycle, [deadline(Deadline.RESTART, T + 51)])) == (3, 4, "abc")
    assert lifecycle.state.notices[-1] == "attempt 3 has 4 workers again"
    feed_in_turn(lifecycle, planned_on("aabc", 3, T + 52))
    done = [exited(index, order=index, mono=T + 60) for index in range(4)]
    result = the_result(feed_in_turn(lifecycle, [*done, emptied(T + 60)]))
    assert result.outcome == "succeeded"
    assert [end.workers for end in (*result.earlier_attempts, result)] == [4, 3, 4]


def test_host_that_is_back_at_once_is_used() -> None:
    """Its agent was killed, and not the machine."""
    lifecycle = running()
    lose_and_end(lifecycle, "c", "012", T + 20)
    assert feed(lifecycle, [joined("c", T + 21.5)]) == []
    assert plan_in(feed(lifecycle, [deadline(Deadline.RESTART, T + 22)])) == (2, 4, "abc")
    cause = lifecycle.state.history[0].cause
    assert cause is not None and (cause.kind, cause.host) == (CauseKind.HOST, "c")


def test_host_of_an_earlier_loss_is_not_waited_for() -> None:
    lifecycle = running()
    lose_and_end(lifecycle, "c", "012", T + 20)
    feed(lifecycle, [deadline(Deadline.RESTART, T + 22), deadline(Deadline.HOSTS_AWAITED, T + 25)])
    feed_in_turn(lifecycle, planned_on("aab", 2, T + 26))
    failed = [exited(0, 1, mono=T + 90), *(exited(i, None, 15, order=i, mono=T + 91) for i in (1, 2))]
    feed_in_turn(lifecycle, [stepped(T + 80), *failed, emptied(T + 91)])
    assert plan_in(feed(lifecycle, [deadline(Deadline.RESTART, T + 93)])) == (2 + 1, 3, "ab")


def stepped(mono: float) -> events.TaskProgressed:
    progress = Progress(phase="training", step=3)
    return events.TaskProgressed(at=mono, mono=mono, task="worker:0", progress=progress)


def test_no_retry_during_a_teardown() -> None:
    """A host that is back would no longer be the cause."""
    lifecycle = running()
    feed_in_turn(lifecycle, [lost("c", T + 1)])  # the teardown may take longer than the interval
    due = lifecycle.next_deadline()
    assert due is not None and due[1] == Deadline.TEARDOWN


def test_host_lost_between_two_attempts_is_left_out() -> None:
    """Its ports were ordered already: they are ordered again without it, and at once."""
    lifecycle = running()
    lose_and_end(lifecycle, "c", "012", T + 20)
    feed(lifecycle, [deadline(Deadline.RESTART, T + 22), deadline(Deadline.HOSTS_AWAITED, T + 25)])
    feed(lifecycle, [silent("b", 3, T + 28)])
    assert plan_in(feed(lifecycle, [lost("b", T + 37)])) == (2, 2, "a")
    # A host that returns before the plan waits for the next attempt, too: it may fail in the same way again.
    assert feed(lifecycle, [joined("b", T + 38)]) == []
    assert lifecycle.state.notices[-1].startswith("b is back: the next attempt uses it")
    assert isinstance(feed(lifecycle, planned_on("aa", 2, T + 39)[:1])[0], StartTasks)


def test_run_ends_when_too_few_hosts_are_left() -> None:
    lifecycle = running()
    lose_and_end(lifecycle, "a", "23", T + 20)
    feed(lifecycle, [deadline(Deadline.RESTART, T + 22)])
    feed(lifecycle, [deadline(Deadline.HOSTS_AWAITED, T + 25)])
    assert feed_in_turn(lifecycle, planned_on("bc", 2, T + 26)[:1])
    actions = lose_and_end(lifecycle, "b", "1", T + 40)
    assert feed(lifecycle, [deadline(Deadline.RESTART, T + 44)]) == [ReopenHosts()]
    actions = feed(lifecycle, [deadline(Deadline.HOSTS_AWAITED, T + 45)])
    assert teardowns(actions)[0].reason is TeardownReason.FAILURE
    result = the_result(feed(lifecycle, [emptied(T + 45)]))
    assert (result.outcome, result.exit_code) == ("failed", 137)
    assert result.cause is not None and (result.cause.kind, result.cause.host) == (CauseKind.HOST, "b")
    assert result.not_restarted == "c has too few slots for 2 workers, the fewest of --workers"


def test_loss_before_the_first_step_is_restarted() -> None:
    """It says nothing about the program. Without a range, the program must have done a step."""
    lifecycle = running()
    lose_and_end(lifecycle, "c", "012", T + 1)
    assert len(lifecycle.state.history) == 1
    fixed = lifecycle_of(changed(ELASTIC, fewest_workers=None))
    feed_in_turn(fixed, [*map(joined, "abc"), *planned_on("aabc", 1, T)])
    result = the_result(lose_and_end(fixed, "c", "012", T + 1))
    assert result.not_restarted == "it failed before it reported a training step"


@pytest.mark.parametrize(
    ("batches", "lost_steps"),
    [((96, 96), 20), ((128, 96), None), ((None, None), None)],
)
def test_steps_of_other_batches_are_not_compared(
    batches: tuple[int | None, int | None], lost_steps: int | None
) -> None:
    def at(step: int, batch: int | None, mono: float) -> events.TaskProgressed:
        progress = Progress(phase="training", step=step, start_step=0, global_batch=batch)
        return events.TaskProgressed(at=mono, mono=mono, task="worker:0", progress=progress)

    lifecycle = running()
    feed_in_turn(lifecycle, [at(20, batches[0], T + 10)])
    lose_and_end(lifecycle, "c", "012", T + 20)
    feed(lifecycle, [deadline(Deadline.RESTART, T + 22), deadline(Deadline.HOSTS_AWAITED, T + 25)])
    feed_in_turn(lifecycle, [*planned_on("aab", 2, T + 26), at(1, batches[1], T + 30)])
    assert lifecycle.state.history[0].steps_lost == lost_steps


class _Hosts:
    """A supervisor with three hosts: what the lifecycle orders is done, in any order with losses and returns."""

    def __init__(self) -> None:
        self.lifecycle = lifecycle_of(ELASTIC)
        self.now = T
        self.here: set[str] = set()
        self.reopened = {"a", "b", "c"}
        self.plan: PlanAttempt | None = None
        self.ended = 0

    def handle(self, event: events.Event) -> None:
        for action in feed(self.lifecycle, [event]):
            match action:
                case ReopenHosts():
                    self.reopened = {"a", "b", "c"} - self.here
                case PlanAttempt():
                    assert action.job is not None and 2 <= action.job.workers <= 4
                    assert {host.name for host in action.job.hosts} <= self.here
                    self.plan = action
                case TearDown() | SweepHost():
                    self.plan = None
                    self.handle(emptied(self.now))
                case Finish():
                    self.ended += 1

    def join(self, host: str) -> None:
        if host in self.reopened and host not in self.here:
            self.here.add(host)
            self.handle(joined(host, self.now))

    def lose(self, host: str) -> None:
        if host in self.here:
            self.here.discard(host)
            if self.plan is not None and host in {each.name for each in self.plan.job.hosts}:  # type: ignore[union-attr]
                self.plan = None
            self.handle(lost(host, self.now))

    def hold(self, _: str) -> None:
        """The ports are held: the attempt starts, and does a step."""
        if self.plan is not None and self.plan.job is not None:
            plan, self.plan = self.plan, None
            assert plan.job is not None
            for event in planned_on("".join(place(plan.job)), plan.attempt, self.now):
                self.handle(event)
            self.handle(stepped(self.now))

    def wait(self, _: str) -> None:
        """The next deadline is reached."""
        due = self.lifecycle.next_deadline()
        if due is not None:
            self.now = max(self.now, due[0])
            self.handle(deadline(due[1], self.now))
            # Otherwise the supervisor would never sleep.
            assert self.lifecycle.next_deadline() != due


@given(
    st.lists(
        st.tuples(st.sampled_from(["join", "lose", "hold", "wait"]), st.sampled_from("abc")), max_size=60
    )
)
def test_any_order_of_losses_and_returns(happened: list[tuple[str, str]]) -> None:
    hosts = _Hosts()
    for what, host in happened:
        getattr(hosts, what)(host)
        hosts.now += 1.0
    assert hosts.ended == (hosts.lifecycle.result is not None)
    # When all hosts are there, a run that has not ended gets a plan or runs.
    for _ in range(40):
        if hosts.lifecycle.result is not None or hosts.lifecycle.state.is_ready or hosts.plan is not None:
            break
        for host in "abc":
            hosts.join(host)
        hosts.wait("")
    state = hosts.lifecycle.state
    assert hosts.lifecycle.result is not None or hosts.plan is not None or state.tasks
