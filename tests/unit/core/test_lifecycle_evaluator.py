"""How a run waits for its evaluator, and how an evaluator's failure affects the run. No clock."""

from __future__ import annotations

import signal

import pytest
from event_making import COLLATERAL, START, deadline, feed, stop, teardowns
from job_making import JOB, changed
from role_making import (
    PLAIN_JOB,
    TWO_AND_EVALUATOR,
    WITH_EVALUATOR,
    at_work,
    begun,
    ended,
    ends_of,
    exits,
    tells,
    training,
)

from orchestrator.client.view.status_document import task_statuses
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.actions import Deadline, SendSignal, TearDown
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state.events import TeardownReason
from orchestrator.core.state.state import TaskPhase


def test_run_waits_for_the_evaluator_after_the_training() -> None:
    lifecycle = at_work(PLAIN_JOB, TWO_AND_EVALUATOR)
    assert feed(lifecycle, [exits("worker:0"), exits("worker:1", order=1)]) == []
    assert lifecycle.next_deadline() == (START + 600, Deadline.EVALUATOR)
    assert lifecycle.state.notices == ("the training has ended; waiting for evaluator:0 (10m at most)",)
    assert feed(lifecycle, [exits("evaluator:0", order=2)]) == [
        TearDown(TeardownReason.FINISHED, JOB.failure_grace_s)
    ]
    assert ended(lifecycle).outcome == "succeeded"


def test_evaluator_is_stopped_after_its_timeout() -> None:
    lifecycle = at_work(PLAIN_JOB, TWO_AND_EVALUATOR)
    feed(lifecycle, [exits("worker:0"), exits("worker:1", order=1)])
    actions = feed(lifecycle, [deadline(Deadline.EVALUATOR, START + 600)])
    assert actions == [TearDown(TeardownReason.FINISHED, JOB.grace_s)]
    assert "--evaluator-timeout" in lifecycle.state.notices[-1]
    result = ended(lifecycle, "evaluator:0")
    assert (result.outcome, ends_of(result)["evaluator:0"]) == ("succeeded", ("stopped", "stopped by orch"))


def test_evaluator_timeout_of_0_is_reported_once() -> None:
    lifecycle = at_work(changed(PLAIN_JOB, evaluator_timeout_s=0.0), TWO_AND_EVALUATOR)
    feed(lifecycle, [exits("worker:0"), exits("worker:1", order=1), deadline(Deadline.EVALUATOR, START)])
    assert lifecycle.state.notices == (
        "evaluator:0 had not ended with the training (--evaluator-timeout): it is stopped",
    )


def waiting_for_evaluator_restart(on_failure: FailurePolicy = FailurePolicy.ABORT) -> Lifecycle:
    """The training is complete, and the evaluator has failed and waits for its restart."""
    spec = changed(PLAIN_JOB, evaluator_timeout_s=1.0, on_failure=on_failure)
    lifecycle = at_work(spec, TWO_AND_EVALUATOR)
    feed(lifecycle, [tells("worker:0", "training", 3), exits("worker:0"), exits("worker:1", order=1)])
    feed(lifecycle, [exits("evaluator:0", 5, order=2, mono=START + 0.5)])
    return lifecycle


@pytest.mark.parametrize("on_failure", [FailurePolicy.ABORT, FailurePolicy.RESTART])
def test_evaluator_waiting_for_its_restart_fails_at_its_timeout(on_failure: FailurePolicy) -> None:
    lifecycle = waiting_for_evaluator_restart(on_failure)
    assert task_statuses(lifecycle.state, {}, START + 1)[-1].restart_in_s == 0.5
    actions = feed(lifecycle, [deadline(Deadline.EVALUATOR, START + 1)])
    assert [action.reason for action in teardowns(actions)] == [TeardownReason.FAILURE]
    assert lifecycle.state.notices[-1].endswith("it failed and is not restarted")
    assert [task.restart_in_s for task in task_statuses(lifecycle.state, {}, START + 1)] == [None] * 3
    result = ended(lifecycle)
    assert (result.outcome, result.exit_code, result.not_restarted) == (
        "failed",
        5,
        "evaluator:0: --evaluator-timeout was over",
    )
    assert (result.cause and result.cause.task, result.first_failure and result.first_failure.task) == (
        "evaluator:0",
        "evaluator:0",
    )
    assert ends_of(result)["evaluator:0"] == ("failed", "failed")
    shown = task_statuses(lifecycle.state, {}, START + 1)[-1]
    assert (shown.state, shown.exit_code, shown.restarts) == ("failed", 5, 0)


def test_restarted_evaluator_is_stopped_at_its_timeout() -> None:
    lifecycle = waiting_for_evaluator_restart()
    feed(lifecycle, [deadline(Deadline.TASK_RESTART, START + 1.5), *begun("evaluator:0", START + 1.5)])
    feed(lifecycle, [deadline(Deadline.EVALUATOR, START + 2)])
    assert lifecycle.state.notices[-1].endswith("it is stopped")
    assert ended(lifecycle, "evaluator:0").outcome == "succeeded"


def test_timeout_reports_that_only_the_evaluator_was_left() -> None:
    lifecycle = at_work(changed(PLAIN_JOB, timeout_s=60.0), TWO_AND_EVALUATOR)
    feed(lifecycle, [exits("worker:0"), exits("worker:1", order=1), deadline(Deadline.TIMEOUT, START + 60)])
    result = ended(lifecycle, "evaluator:0")
    assert (result.outcome, result.cause and result.cause.text) == (
        "timed_out",
        "not done after 60 s (--timeout); the training had ended, and evaluator:0 had not",
    )


def test_run_waits_for_ever_without_evaluator_timeout() -> None:
    lifecycle = at_work(changed(PLAIN_JOB, evaluator_timeout_s=None), TWO_AND_EVALUATOR)
    feed(lifecycle, [exits("worker:0"), exits("worker:1", order=1)])
    assert lifecycle.next_deadline() is None


def test_early_evaluator_exit_is_not_a_failure() -> None:
    lifecycle = at_work(PLAIN_JOB, TWO_AND_EVALUATOR)
    assert feed(lifecycle, [exits("evaluator:0"), exits("worker:0", order=1)]) == []
    feed(lifecycle, [exits("worker:1", order=2)])
    assert ended(lifecycle).outcome == "succeeded"


def test_evaluator_exit_is_not_blamed_for_a_lost_peer() -> None:
    lifecycle = at_work(PLAIN_JOB, TWO_AND_EVALUATOR)
    feed(lifecycle, [exits("evaluator:0"), exits("worker:0", 1, order=1, symptom=COLLATERAL)])
    result = ended(lifecycle, "worker:1")
    assert result.cause is not None and result.cause.task == "worker:0"


def test_failed_evaluator_is_restarted_alone() -> None:
    lifecycle = at_work(PLAIN_JOB, TWO_AND_EVALUATOR)
    feed(lifecycle, [tells("worker:0", "training", 3), exits("evaluator:0", 1, mono=START + 1)])
    assert lifecycle.next_deadline() == (START + 2, Deadline.TASK_RESTART)
    feed(lifecycle, [exits("worker:0", order=1), exits("worker:1", order=2)])
    feed(lifecycle, [deadline(Deadline.TASK_RESTART, START + 2), *begun("evaluator:0", START + 2)])
    feed(lifecycle, [exits("evaluator:0", order=3, mono=START + 9)])
    assert ended(lifecycle).outcome == "succeeded"


def test_run_fails_after_the_training_if_evaluator_was_not_restarted() -> None:
    lifecycle = at_work(changed(PLAIN_JOB, max_restarts=0), TWO_AND_EVALUATOR)
    assert feed(lifecycle, [tells("worker:0", "training", 3), exits("evaluator:0", 5)]) == []
    actions = feed(lifecycle, [exits("worker:0", order=1), exits("worker:1", order=2)])
    assert [action.reason for action in teardowns(actions)] == [TeardownReason.FAILURE]
    result = ended(lifecycle)
    assert (result.outcome, result.exit_code, result.cause and result.cause.task) == (
        "failed",
        5,
        "evaluator:0",
    )
    assert ends_of(result)["worker:0"] == ("succeeded", "done")


def test_worker_failure_after_an_evaluator_failure_is_the_cause() -> None:
    lifecycle = at_work(changed(PLAIN_JOB, max_restarts=0), TWO_AND_EVALUATOR)
    feed(lifecycle, [tells("worker:0", "training", 3), exits("evaluator:0", 5)])
    feed(lifecycle, [exits("worker:1", 3, order=1)])
    result = ended(lifecycle, "worker:0")
    assert (result.exit_code, result.cause and result.cause.task) == (3, "worker:1")


def test_serving_tasks_are_dismissed_while_run_waits_for_evaluator() -> None:
    lifecycle = training(names=WITH_EVALUATOR)
    actions = feed(lifecycle, [exits("chief:0")])
    asked = [action for action in actions if isinstance(action, SendSignal)]
    assert [action.task for action in asked if action.signal == signal.SIGTERM] == [
        "worker:0",
        "worker:1",
        "ps:0",
    ]
    assert not teardowns(actions)
    stopped = [exits(name, 143, order=1) for name in ("worker:0", "worker:1")]
    feed(lifecycle, stopped)
    assert lifecycle.state.tasks["worker:0"].phase is TaskPhase.STOPPED
    kill = feed(lifecycle, [deadline(Deadline.DISMISSAL, START + JOB.grace_s)])
    assert kill == [SendSignal("ps:0", signal.SIGKILL)]
    feed(lifecycle, [exits("ps:0", None, signal.SIGKILL, 3), exits("evaluator:0", order=4)])
    result = ended(lifecycle)
    assert (result.outcome, ends_of(result)["ps:0"]) == ("succeeded", ("stopped", "stopped by orch"))


def test_stop_while_waiting_for_the_evaluator_is_a_stop() -> None:
    lifecycle = at_work(PLAIN_JOB, TWO_AND_EVALUATOR)
    feed(lifecycle, [exits("worker:0"), exits("worker:1", order=1), stop()])
    assert ended(lifecycle, "evaluator:0").outcome == "stopped"


def test_evaluator_without_restarts_left_fails_the_run_after_the_training() -> None:
    lifecycle = at_work(changed(PLAIN_JOB, max_restarts=0), TWO_AND_EVALUATOR)
    feed(lifecycle, [tells("worker:0", "training", 3), exits("worker:0"), exits("worker:1", order=1)])
    actions = feed(lifecycle, [exits("evaluator:0", 5, order=2)])
    assert [action.reason for action in teardowns(actions)] == [TeardownReason.FAILURE]
    assert ended(lifecycle).not_restarted == "evaluator:0: --max-restarts is 0"
