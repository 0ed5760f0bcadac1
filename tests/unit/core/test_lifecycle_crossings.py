"""Events that arrive after another decision, or about a task that has ended: events in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from event_making import (
    START,
    agent_lost,
    deadline,
    emptied,
    exited,
    feed,
    lifecycle_of,
    not_started,
    planned,
    ready,
    running,
    started,
    stop,
    the_result,
)
from job_making import JOB, changed
from test_lifecycle_limits import AT_WORK, LATE, STALL, STOPPED, end, silence, stacks
from test_lifecycle_restarts import CONTINUE, RESTART, RESTART_TASK, at_step, fail, progressed, restart

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Deadline, PlanAttempt, SweepHost, TakeStacks, TearDown
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.activity import LATE_S
from orchestrator.core.state.events import SignalRequested, TeardownReason
from orchestrator.core.state.result import CauseKind

T = START


def plain(tasks: int, spec: JobSpec) -> Lifecycle:
    """A lifecycle of running commands that are not TensorFlow programs and report no progress."""
    lifecycle = lifecycle_of(spec, T)
    plan = planned(tasks)
    unserved = tuple(replace(task, serves=False) for task in plan.tasks)
    feed(lifecycle, [plan.model_copy(update={"tasks": unserved})])
    for index in range(tasks):
        feed(lifecycle, [started(index), ready(index)])
    return lifecycle


def test_restart_request_during_a_stop_is_ignored() -> None:
    lifecycle = running()
    feed(lifecycle, [stop()])
    assert feed(lifecycle, [restart()]) == []
    result = end(lifecycle)
    assert (result.outcome, result.exit_code, result.attempts) == ("stopped", 130, 1)


def test_agent_lost_while_next_attempt_is_planned_ends_the_run() -> None:
    lifecycle = at_step(RESTART)
    feed(lifecycle, [exited(1, 3), exited(0, None, 15, order=1)])
    # The loss is queued before the events that follow from the end of the attempt.
    assert SweepHost() in feed(lifecycle, [emptied(T + 1), agent_lost(T + 1)])
    assert lifecycle.next_deadline() is None
    result = the_result(feed(lifecycle, [emptied(T + 2)]))
    assert (result.outcome, result.exit_code, result.attempts) == ("failed", 125, 1)
    assert result.cause is not None and result.cause.kind is CauseKind.ORCH


def test_late_start_is_reported_once() -> None:
    lifecycle = lifecycle_of(JOB, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0)])
    assert lifecycle.next_deadline() == (T + LATE_S, Deadline.START_LATE)
    feed(
        lifecycle, [deadline(Deadline.START_LATE, T + LATE_S), deadline(Deadline.START_LATE, T + LATE_S + 1)]
    )
    (notice,) = lifecycle.state.notices
    assert notice.startswith("worker:0 waits for worker:1 (")
    assert lifecycle.next_deadline() is None


def test_early_start_late_deadline_reports_nothing() -> None:
    lifecycle = lifecycle_of(JOB, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0), deadline(Deadline.START_LATE, T + 1)])
    assert lifecycle.state.notices == ()
    assert lifecycle.next_deadline() == (T + LATE_S, Deadline.START_LATE)


def test_stacks_are_taken_once_when_both_limits_are_reached() -> None:
    lifecycle = lifecycle_of(changed(STALL, start_timeout_s=120.0), T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0)])
    at = T + 120
    both = [silence(at, {}), deadline(Deadline.START_LIMIT, at)]
    assert feed(lifecycle, both) == [TakeStacks(Deadline.STALL_LIMIT)]
    feed(lifecycle, [stacks(at + 1, Deadline.STALL_LIMIT, w0=AT_WORK)])
    cause = end(lifecycle).cause
    assert cause is not None and cause.kind is CauseKind.STALLED


def test_output_of_an_ended_task_is_not_a_sign_of_life() -> None:
    lifecycle = running(3, spec=changed(CONTINUE, stall_timeout_s=5.0))
    feed(lifecycle, [exited(2, 5)])
    quiet = {"worker:0": 5.0, "worker:1": 5.0, "worker:2": 0.0}
    assert feed(lifecycle, [silence(T + 5, quiet)]) == [TakeStacks(Deadline.STALL_LIMIT)]
    feed(lifecycle, [stacks(T + 6, Deadline.STALL_LIMIT, w0=AT_WORK, w1=STOPPED)])
    cause = end(lifecycle).cause
    assert cause is not None and cause.task == "worker:1"


def test_slow_task_with_output_is_not_blamed() -> None:
    lifecycle = running(spec=STALL)
    feed(lifecycle, [progressed(0, 3, T + 1), progressed(1, 20, T + 1), silence(T + 9, {"worker:0": 0.5})])
    feed(lifecycle, [stacks(T + 10, Deadline.STALL_LIMIT, w0=AT_WORK, w1=AT_WORK)])
    cause = end(lifecycle).cause
    assert cause is not None and (cause.task, cause.kind) == ("worker:1", CauseKind.STALLED)
    assert cause.text.endswith("; in load_data (train.py:31)")


def test_no_task_is_silent_before_it_is_ready() -> None:
    lifecycle = lifecycle_of(STALL, T)
    feed(lifecycle, [planned(2), started(0), started(1)])
    assert feed(lifecycle, [silence(T + 60, {"worker:0": 60.0, "worker:1": 60.0})]) == []


def test_task_stopped_before_it_listened_is_reported_as_stopped() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0)])
    by_hand = SignalRequested(at=T, mono=T + 1, task="worker:1", signal=19, by="user")
    feed(lifecycle, [by_hand, deadline(Deadline.START_LIMIT, T + 120)])
    feed(lifecycle, [stacks(T + 121, Deadline.START_LIMIT, w0=AT_WORK, w1=STOPPED)])
    cause = end(lifecycle).cause
    assert cause is not None and (cause.task, cause.kind) == ("worker:1", CauseKind.STOPPED)
    assert cause.text.endswith("; stopped by SIGSTOP, sent by `orch kill`)")


def test_late_task_without_stack_is_blamed() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0)])
    feed(lifecycle, [deadline(Deadline.START_LIMIT, T + 120)])
    feed(lifecycle, [stacks(T + 121, Deadline.START_LIMIT, w0=AT_WORK)])
    cause = end(lifecycle).cause
    assert cause is not None and (cause.task, cause.kind) == ("worker:1", CauseKind.LIMIT)


@pytest.mark.parametrize(("ran_s", "again"), [(4.9, False), (5.0, True)])
def test_plain_command_has_worked_after_5_seconds(ran_s: float, again: bool) -> None:
    lifecycle = plain(2, RESTART)
    fail(lifecycle, T + ran_s)
    assert (lifecycle.result is None) is again
    if again:
        assert feed(lifecycle, [deadline(Deadline.RESTART, T + ran_s + 1)]) == [PlanAttempt(2)]


def test_failed_restart_counts_as_no_time_at_work() -> None:
    """The new process never ran, even if the first one ran for long."""
    lifecycle = plain(2, RESTART_TASK)
    feed(lifecycle, [exited(1, 3, mono=T + 100), deadline(Deadline.TASK_RESTART, T + 101)])
    # The second delay in a row is longer than the first, because the task did not work in between.
    feed(lifecycle, [not_started(1, T + 101)])
    assert lifecycle.next_deadline() == (T + 103, Deadline.TASK_RESTART)


def test_task_is_not_restarted_before_the_first_step() -> None:
    lifecycle = running(spec=RESTART_TASK)
    assert feed(lifecycle, [exited(1, 3, mono=T + 1)]) == [
        TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)
    ]
    not_restarted = end(lifecycle).not_restarted
    assert not_restarted is not None and not_restarted.startswith("worker:1: ")


def test_first_step_during_a_stop_is_still_reported() -> None:
    lifecycle = at_step(RESTART)
    fail(lifecycle, T + 5)
    again = planned(2, T + 6).model_copy(update={"attempt": 2})
    feed(lifecycle, [deadline(Deadline.RESTART, T + 6), again, started(0), started(1), ready(0), ready(1)])
    feed(lifecycle, [stop(mono=T + 7), progressed(0, 21, T + 7)])
    assert any(ended.recovery_s == 2.0 for ended in lifecycle.state.history)
