"""Restarts of all tasks and of single tasks: events in, actions out, no clock."""

from __future__ import annotations

import signal

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
    teardowns,
    the_result,
)
from job_making import JOB, changed

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import (
    Action,
    Deadline,
    Finish,
    PlanAttempt,
    StartTask,
    StartTasks,
    TearDown,
)
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.lifecycle.restarts import Again, Refused, Restarts
from orchestrator.core.state import events
from orchestrator.core.state.events import TeardownReason
from orchestrator.core.state.state import RunPhase, TaskPhase

RESTART = changed(JOB, on_failure=FailurePolicy.RESTART, max_restarts=3)
RESTART_TASK = changed(JOB, on_failure=FailurePolicy.RESTART_TASK, max_restarts=2)
CONTINUE = changed(JOB, on_failure=FailurePolicy.CONTINUE)
T = START


def progressed(index: int, step: int, mono: float = START, **fields: object) -> events.TaskProgressed:
    progress = events.Progress.model_validate({"phase": "training", "step": step, **fields})
    return events.TaskProgressed(at=mono, mono=mono, task=f"worker:{index}", progress=progress)


def restart(mono: float = START) -> events.RestartRequested:
    return events.RestartRequested(at=mono, mono=mono)


def attempt(number: int, mono: float, tasks: int = 2) -> list[events.Event]:
    """The events of an attempt until all tasks run."""
    plan = planned(tasks, mono).model_copy(update={"attempt": number})
    return [plan, *(started(i, mono) for i in range(tasks)), *(ready(i, mono) for i in range(tasks))]


def at_step(spec: JobSpec, step: int = 20) -> Lifecycle:
    lifecycle = running(spec=spec)
    feed(lifecycle, [progressed(0, step), progressed(1, step)])
    return lifecycle


def fail(lifecycle: Lifecycle, mono: float, code: int | None = 3, number: int | None = None) -> list[Action]:
    """worker:1 fails, worker:0 is stopped, and the teardown ends."""
    actions = feed(lifecycle, [exited(1, code, number, mono=mono)])
    return [*actions, *feed(lifecycle, [exited(0, None, 15, order=1, mono=mono), emptied(mono)])]


def test_failure_after_a_step_is_restarted() -> None:
    lifecycle = at_step(RESTART)
    assert fail(lifecycle, T + 5) == [TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)]
    assert lifecycle.next_deadline() == (T + 6, Deadline.RESTART)
    assert lifecycle.state.phase is RunPhase.STARTING
    assert feed(lifecycle, [deadline(Deadline.RESTART, T + 6)]) == [PlanAttempt(2)]
    actions = feed(lifecycle, attempt(2, T + 7))
    assert actions == [StartTasks(("worker:0", "worker:1"))]
    assert (lifecycle.state.attempt, lifecycle.state.phase) == (2, RunPhase.RUNNING)
    assert [task.restarts for task in lifecycle.state.tasks.values()] == [1, 1]
    result = the_result(feed(lifecycle, [exited(0, mono=T + 9), exited(1, mono=T + 9), emptied(T + 9)]))
    assert (result.outcome, result.exit_code, result.attempts, result.cause) == ("succeeded", 0, 2, None)
    (ended,) = result.earlier_attempts
    assert ended.cause is not None and (ended.attempt, ended.exit_code, ended.cause.task) == (
        1,
        3,
        "worker:1",
    )


def test_lost_steps_are_counted_at_the_next_first_step() -> None:
    lifecycle = running(spec=RESTART)
    feed(lifecycle, [progressed(0, 18, epoch=3, steps=20)])  # 58 steps over all epochs
    fail(lifecycle, T + 5)
    feed(lifecycle, [deadline(Deadline.RESTART, T + 6), *attempt(2, T + 7)])
    feed(lifecycle, [progressed(0, 1, T + 9, epoch=3, steps=20)])
    (ended,) = lifecycle.state.history
    assert (ended.position, ended.resumed_at, ended.steps_lost, ended.recovery_s) == (58, 40, 18, 4.0)
    assert ended.exact


@pytest.mark.parametrize(("code", "exact"), [(3, False), (42, True)])
def test_lost_steps_are_exact_only_if_each_step_was_reported_or_saved(code: int, exact: bool) -> None:
    lifecycle = running(spec=RESTART)
    feed(lifecycle, [progressed(0, 20, skips=True), progressed(1, 20)])
    fail(lifecycle, T + 5, code)
    feed(lifecycle, [deadline(Deadline.RESTART, T + 6), *attempt(2, T + 7)])
    feed(lifecycle, [progressed(0, 1, T + 9, start_step=20)])
    (ended,) = lifecycle.state.history
    assert (ended.steps_lost, ended.exact) == (0, exact)


def test_failure_after_counted_steps_of_a_silent_fit_is_restarted() -> None:
    lifecycle = running(spec=RESTART)
    silent = events.Progress(phase="training", fit=events.FitSteps(done=13, start=0))
    feed(lifecycle, [events.TaskProgressed(at=T, mono=T, task="worker:1", progress=silent)])
    fail(lifecycle, T + 1)
    assert lifecycle.next_deadline() == (T + 2, Deadline.RESTART)


def test_run_that_never_worked_is_not_restarted() -> None:
    lifecycle = running(spec=RESTART)
    result = the_result(fail(lifecycle, T + 5))
    assert (result.outcome, result.exit_code, result.attempts) == ("failed", 3, 1)
    assert result.not_restarted is not None and "before it reported a training step" in result.not_restarted


@pytest.mark.parametrize(("after_s", "again"), [(4.9, False), (5.0, True)])
def test_loop_without_steps_has_worked_after_5_seconds(after_s: float, again: bool) -> None:
    lifecycle = running(spec=RESTART)
    made = events.TaskProgressed(
        at=T, mono=T + 20, task="worker:1", progress=events.Progress(phase="training")
    )
    feed(lifecycle, [made])
    fail(lifecycle, T + 20 + after_s)
    assert (lifecycle.result is None) is again


def test_resumed_attempt_without_a_step_has_not_worked() -> None:
    lifecycle = running(spec=RESTART)
    feed(lifecycle, [progressed(1, 0, T + 1, epoch=4, steps=20)])
    result = the_result(fail(lifecycle, T + 5))
    assert result.attempts == 1


def test_command_that_cannot_start_is_not_restarted() -> None:
    lifecycle = lifecycle_of(RESTART, T)
    feed(lifecycle, [planned(2), started(0), not_started(1)])
    assert the_result(feed(lifecycle, [exited(0, None, 15, order=1), emptied()])).exit_code == 127


@pytest.mark.parametrize("code", [42, 143])
def test_exit_code_that_asks_for_a_restart_needs_no_step(code: int) -> None:
    lifecycle = running(spec=RESTART)
    assert not any(isinstance(action, Finish) for action in fail(lifecycle, T + 5, code))
    assert lifecycle.next_deadline() == (T + 6, Deadline.RESTART)


def test_preempted_tasks_get_the_whole_grace_period() -> None:
    lifecycle = at_step(RESTART)
    assert teardowns(feed(lifecycle, [exited(0, 42)])) == [TearDown(TeardownReason.FAILURE, JOB.grace_s)]


def test_run_is_restarted_at_most_max_restarts_times() -> None:
    lifecycle = at_step(RESTART)
    at = T
    for number, delay_s in ((2, 1), (3, 2), (4, 4)):
        fail(lifecycle, at + 1)
        assert lifecycle.next_deadline() == (at + 1 + delay_s, Deadline.RESTART)
        at += 1 + delay_s
        feed(lifecycle, [deadline(Deadline.RESTART, at), *attempt(number, at), progressed(0, 1, at)])
    result = the_result(fail(lifecycle, at + 1, None, signal.SIGKILL))
    assert (result.exit_code, result.attempts, len(result.earlier_attempts)) == (137, 4, 3)
    assert result.not_restarted == "restarted 3 times already"


def test_delays_grow_to_30_s_and_reset_after_a_healthy_minute() -> None:
    restarts = Restarts(100)
    delays = [restarts.after(1.0, worked=True, asked_for=False) for _ in range(7)]
    assert delays == [Again(float(s)) for s in (1, 2, 4, 8, 16, 30, 30)]
    assert restarts.after(60.0, worked=True, asked_for=False) == Again(1.0)
    assert restarts.after(59.9, worked=True, asked_for=False) == Again(2.0)


def test_max_restarts_0_refuses_every_restart() -> None:
    assert Restarts(0).after(100.0, worked=True, asked_for=True) == Refused("--max-restarts is 0")


@pytest.mark.parametrize("when", ["before", "torn down", "empty", "waiting"])
def test_stop_wins_over_a_restart(when: str) -> None:
    lifecycle = at_step(RESTART)
    steps: list[tuple[str, list[events.Event]]] = [
        ("before", [exited(1, 3)]),
        ("torn down", [exited(0, None, 15, order=1)]),
        ("empty", [emptied()]),
        ("waiting", []),
    ]
    actions: list[Action] = []
    for name, happening in steps:
        incoming = [stop(), *happening] if name == when and name != "empty" else happening
        # The stop is queued after the end of the attempt, before the events that follow from it.
        incoming = [*happening, stop()] if name == when == "empty" else incoming
        actions += feed(lifecycle, incoming)
    if not any(isinstance(action, Finish) for action in actions):
        actions += feed(lifecycle, [emptied()])
    result = the_result(actions)
    assert result.attempts == 1
    assert not any(isinstance(action, PlanAttempt) for action in actions)


def test_agent_lost_between_attempts_ends_the_run() -> None:
    lifecycle = at_step(RESTART)
    fail(lifecycle, T)
    feed(lifecycle, [agent_lost()])
    assert lifecycle.next_deadline() is None
    assert the_result(feed(lifecycle, [emptied()])).exit_code == 125


def test_requested_restart_does_not_count_as_a_failure() -> None:
    lifecycle = running(spec=changed(JOB, max_restarts=0))
    assert feed(lifecycle, [restart()]) == [TearDown(TeardownReason.RESTART, JOB.grace_s)]
    feed(lifecycle, [exited(0, None, 15), exited(1, None, 15, order=1), emptied(T + 1)])
    assert lifecycle.next_deadline() == (T + 1, Deadline.RESTART)
    assert feed(lifecycle, [deadline(Deadline.RESTART, T + 1)]) == [PlanAttempt(2)]
    feed(lifecycle, attempt(2, T + 2))
    result = the_result(feed(lifecycle, [exited(0), exited(1, order=1), emptied(T + 3)]))
    assert (result.exit_code, result.attempts, result.earlier_attempts[0].cause) == (0, 2, None)


def test_requested_restart_skips_the_delay() -> None:
    lifecycle = at_step(RESTART)
    fail(lifecycle, T)
    assert feed(lifecycle, [restart(T + 0.1)]) == [PlanAttempt(2)]
    assert feed(lifecycle, [deadline(Deadline.RESTART, T + 1)]) == []
    assert feed(lifecycle, [restart(T + 0.2)]) == []  # the next attempt is being planned


def test_restart_requested_during_failure_teardown_happens() -> None:
    lifecycle = running()
    feed(lifecycle, [exited(1, 3), restart(), exited(0, None, 15, order=1), emptied()])
    assert lifecycle.next_deadline() == (T, Deadline.RESTART)


def test_failure_after_a_requested_restart_counts() -> None:
    lifecycle = at_step(RESTART)
    fail(lifecycle, T)
    feed(lifecycle, [restart(), *attempt(2, T + 1)])
    fail(lifecycle, T + 2)
    assert lifecycle.next_deadline() == (T + 4, Deadline.RESTART)


def test_one_task_is_restarted_while_the_others_continue() -> None:
    lifecycle = at_step(RESTART_TASK)
    assert feed(lifecycle, [exited(1, None, 9, mono=T + 7)]) == []
    assert lifecycle.next_deadline() == (T + 8, Deadline.TASK_RESTART)
    assert lifecycle.state.tasks["worker:1"].phase is TaskPhase.PENDING
    assert feed(lifecycle, [deadline(Deadline.TASK_RESTART, T + 8)]) == [StartTask("worker:1")]
    feed(lifecycle, [started(1, T + 8), ready(1, T + 8)])
    assert {name: task.restarts for name, task in lifecycle.state.tasks.items()} == {
        "worker:0": 0,
        "worker:1": 1,
    }
    result = the_result(feed(lifecycle, [exited(1, order=1), exited(0, order=2), emptied()]))
    assert (result.exit_code, result.attempts) == (0, 1)


def test_task_that_fails_too_often_ends_the_run() -> None:
    lifecycle = at_step(RESTART_TASK)
    for due in (T + 2, T + 5):
        feed(lifecycle, [exited(1, 5, mono=due - 1)])
        feed(lifecycle, [deadline(Deadline.TASK_RESTART, due + 1), started(1, due + 1), ready(1, due + 1)])
    assert teardowns(feed(lifecycle, [exited(1, 5, mono=T + 9)]))
    result = the_result(feed(lifecycle, [exited(0, None, 15, order=3), emptied()]))
    assert (result.exit_code, result.not_restarted) == (5, "worker:1: restarted 2 times already")


def test_stop_cancels_a_pending_task_restart() -> None:
    lifecycle = at_step(RESTART_TASK)
    feed(lifecycle, [exited(1, 5), stop()])
    assert feed(lifecycle, [deadline(Deadline.TASK_RESTART, T + 60)]) == []
    result = the_result(feed(lifecycle, [exited(0, None, 15, order=1), emptied()]))
    assert result.outcome == "stopped"
    assert [task.end for task in result.tasks] == ["stopped by orch", "not started again"]


def test_other_tasks_continue_without_a_failed_one() -> None:
    lifecycle = running(3, spec=CONTINUE)
    assert feed(lifecycle, [exited(1, 5)]) == []
    assert lifecycle.state.notices == ("worker:1: exit 5; the other tasks continue",)
    assert feed(lifecycle, [exited(0, order=1)]) == []
    assert teardowns(feed(lifecycle, [exited(2, order=2)])) == [TearDown(TeardownReason.FAILURE, 0.5)]
    result = the_result(feed(lifecycle, [emptied()]))
    assert (result.outcome, result.exit_code) == ("failed", 5)
    assert [task.state for task in result.tasks] == ["succeeded", "failed", "succeeded"]


def test_last_failure_ends_a_run_with_policy_continue() -> None:
    lifecycle = running(spec=CONTINUE)
    assert feed(lifecycle, [exited(0)]) == []
    assert teardowns(feed(lifecycle, [exited(1, 7, order=1)])) == [TearDown(TeardownReason.FAILURE, 0.5)]
    assert the_result(feed(lifecycle, [emptied()])).exit_code == 7


def test_settled_failure_does_not_appear_in_a_later_result() -> None:
    lifecycle = at_step(RESTART_TASK)
    feed(lifecycle, [exited(1, 5, mono=T + 1, noticed_s=0.2)])
    feed(lifecycle, [deadline(Deadline.TASK_RESTART, T + 2), started(1, T + 2), ready(1, T + 2)])
    result = the_result(feed(lifecycle, [exited(0, order=1), exited(1, order=2), emptied()]))
    assert (result.exit_code, result.detection_s, result.not_restarted) == (0, None, None)


def test_refusal_reason_belongs_to_one_attempt() -> None:
    lifecycle = running(spec=RESTART_TASK)
    feed(lifecycle, [exited(1, 5), restart(), exited(0, None, 15, order=1), emptied()])
    feed(lifecycle, [deadline(Deadline.RESTART, T), *attempt(2, T + 1)])
    result = the_result(feed(lifecycle, [exited(0), exited(1, order=1), emptied()]))
    assert (result.exit_code, result.not_restarted) == (0, None)


def test_finished_run_is_not_restarted() -> None:
    lifecycle = running()
    feed(lifecycle, [exited(0), exited(1, order=1), restart()])
    assert the_result(feed(lifecycle, [emptied()])).outcome == "succeeded"


def test_lost_steps_count_from_the_last_attempt_with_steps() -> None:
    lifecycle = at_step(changed(RESTART, max_restarts=9), step=33)
    fail(lifecycle, T + 5)
    feed(lifecycle, [deadline(Deadline.RESTART, T + 6), *attempt(2, T + 7)])
    fail(lifecycle, T + 8)
    feed(
        lifecycle,
        [deadline(Deadline.RESTART, T + 10), *attempt(3, T + 10), progressed(0, 1, T + 11, start_step=20)],
    )
    assert (lifecycle.state.history[-1].resumed_at, lifecycle.state.history[-1].steps_lost) == (20, 13)
