"""Chief, workers and parameter servers: which tasks decide the outcome, and which failures end the run. No clock."""

from __future__ import annotations

import signal

import pytest
from event_making import COLLATERAL, START, deadline, emptied, feed, teardowns
from job_making import JOB, changed, policies
from role_making import (
    PLAIN_JOB,
    PS_CLUSTER,
    PS_JOB,
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

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.actions import Deadline, PlanAttempt, StartTask, TearDown
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.activity import waiting_for
from orchestrator.core.state import events
from orchestrator.core.state.events import TeardownReason
from orchestrator.core.state.result import DONE_WITHOUT, Cause, CauseKind, TaskStack


def test_chief_exit_with_0_is_success_and_stops_the_others() -> None:
    lifecycle = training()
    assert feed(lifecycle, [exits("chief:0")]) == [TearDown(TeardownReason.FINISHED, JOB.grace_s)]
    result = ended(lifecycle, "worker:0", "worker:1", "ps:0")
    assert (result.outcome, result.exit_code, result.cause, result.first_failure) == (
        "succeeded",
        0,
        None,
        None,
    )
    assert ends_of(result) == {"chief:0": ("succeeded", "done")} | dict.fromkeys(
        ("worker:0", "worker:1", "ps:0"), ("stopped", "stopped by orch")
    )


def test_server_exit_codes_after_success_do_not_matter() -> None:
    lifecycle = training()
    feed(lifecycle, [exits("chief:0"), exits("ps:0", 1, order=1), exits("worker:0", 139, order=2)])
    assert ended(lifecycle, "worker:1").exit_code == 0


def test_killed_parameter_server_is_the_cause_not_the_chief() -> None:
    lifecycle = training()
    actions = feed(
        lifecycle, [exits("ps:0", None, signal.SIGKILL), exits("chief:0", 1, order=1, symptom=COLLATERAL)]
    )
    assert teardowns(actions) == [TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)]
    result = ended(lifecycle, "worker:0", "worker:1")
    assert (result.outcome, result.exit_code) == ("failed", 137)
    assert result.cause is not None and result.cause.task == "ps:0" and "SIGKILL" in result.cause.text
    assert ends_of(result)["chief:0"][1] == "failed because of it"


def test_killed_worker_of_a_coordinator_is_restarted() -> None:
    lifecycle = training()
    assert feed(lifecycle, [exits("worker:1", None, signal.SIGKILL, mono=START + 1)]) == []
    assert lifecycle.next_deadline() == (START + 2, Deadline.TASK_RESTART)
    assert feed(lifecycle, [deadline(Deadline.TASK_RESTART, START + 2)]) == [StartTask("worker:1")]
    feed(lifecycle, [*begun("worker:1", START + 3), exits("chief:0", mono=START + 9)])
    result = ended(lifecycle, "worker:0", "worker:1", "ps:0")
    assert (result.exit_code, ends_of(result)["worker:1"]) == (0, ("stopped", "stopped by orch"))
    assert [task.restarts for task in result.tasks] == [0, 0, 1, 0]


def test_success_of_the_chief_cancels_a_worker_restart() -> None:
    lifecycle = training()
    actions = feed(lifecycle, [exits("worker:1", 3), exits("chief:0", order=1)])
    assert teardowns(actions) == [TearDown(TeardownReason.FINISHED, JOB.grace_s)]
    result = ended(lifecycle, "worker:0", "ps:0")
    assert (result.exit_code, ends_of(result)["worker:1"][1]) == (0, "not started again")


def without_restarts_left(names: tuple[str, ...] = PS_CLUSTER) -> Lifecycle:
    """A lifecycle whose worker:1 has failed again after its only restart."""
    lifecycle = training(changed(PS_JOB, max_restarts=1), names)
    feed(lifecycle, [exits("worker:1", 3, mono=START + 1), deadline(Deadline.TASK_RESTART, START + 2)])
    feed(lifecycle, [*begun("worker:1", START + 2), exits("worker:1", 3, order=1, mono=START + 3)])
    return lifecycle


def test_run_continues_without_a_worker_that_used_up_its_restarts() -> None:
    lifecycle = without_restarts_left()
    assert "worker:1: exit 3; not restarted: restarted once already; the other tasks continue" in (
        lifecycle.state.notices
    )
    assert len(teardowns(feed(lifecycle, [exits("chief:0", order=2, mono=START + 9)]))) == 1
    result = ended(lifecycle, "worker:0", "ps:0")
    assert (result.outcome, result.exit_code, result.first_failure) == ("succeeded", 0, None)
    assert ends_of(result)["worker:1"] == ("failed", DONE_WITHOUT)


def test_failure_of_the_last_worker_ends_the_run() -> None:
    lifecycle = without_restarts_left()
    feed(lifecycle, [exits("worker:0", 4, order=2, mono=START + 4)])
    feed(lifecycle, [deadline(Deadline.TASK_RESTART, START + 5), *begun("worker:0", START + 5)])
    feed(lifecycle, [exits("worker:0", 4, order=3, mono=START + 6)])
    result = ended(lifecycle, "chief:0", "ps:0")
    assert (result.outcome, result.exit_code, result.not_restarted) == (
        "failed",
        4,
        "worker:0: restarted once already",
    )
    assert ends_of(result)["worker:1"] == ("failed", DONE_WITHOUT)


def test_later_failure_is_not_blamed_on_the_abandoned_worker() -> None:
    lifecycle = without_restarts_left()
    feed(lifecycle, [exits("ps:0", None, signal.SIGKILL, order=5, mono=START + 99)])
    result = ended(lifecycle, "chief:0", "worker:0")
    assert result.cause is not None and result.cause.task == "ps:0"
    assert (result.exit_code, result.first_failure and result.first_failure.task) == (137, "ps:0")


def test_worker_failure_before_the_chief_trains_ends_the_run() -> None:
    """The chief would wait for it for ever."""
    lifecycle = at_work(PS_JOB)
    feed(lifecycle, [tells("chief:0", "waiting"), exits("worker:1", 1, mono=START + 30)])
    result = ended(lifecycle, "chief:0", "worker:0", "ps:0")
    assert result.not_restarted == "worker:1: it failed before it reported a training step"
    assert result.cause is not None and result.cause.task == "worker:1"


def test_chief_without_steps_is_working_once_it_trains() -> None:
    lifecycle = at_work(PS_JOB)
    feed(lifecycle, [tells("chief:0", "training"), exits("worker:1", 1, mono=START + 1)])
    assert lifecycle.next_deadline() == (START + 2, Deadline.TASK_RESTART)


@pytest.mark.parametrize("name", ["worker:1", "ps:0"])
def test_server_failure_after_the_training_is_ignored(name: str) -> None:
    """The server fails just before it is dismissed."""
    lifecycle = training(names=WITH_EVALUATOR)
    actions = feed(lifecycle, [exits("chief:0"), exits(name, 1, order=1), exits("evaluator:0", order=2)])
    assert [action.reason for action in teardowns(actions)] == [TeardownReason.FINISHED]
    assert ended(lifecycle, "worker:0").outcome == "succeeded"


def test_evaluator_that_fails_after_the_training_is_restarted() -> None:
    lifecycle = at_work(PLAIN_JOB, TWO_AND_EVALUATOR)
    feed(lifecycle, [exits("worker:0"), exits("worker:1", order=1), exits("evaluator:0", 1, order=2)])
    assert lifecycle.next_deadline() == (START + 1, Deadline.TASK_RESTART)


def test_chief_failure_ends_the_run() -> None:
    lifecycle = training()
    feed(lifecycle, [exits("chief:0", 3)])
    assert ended(lifecycle, "worker:0", "worker:1", "ps:0").exit_code == 3


def test_chief_failure_ends_the_run_under_policy_continue() -> None:
    lifecycle = training(changed(JOB, on_failure=FailurePolicy.CONTINUE))
    assert len(teardowns(feed(lifecycle, [exits("chief:0", 3)]))) == 1


def test_parameter_server_exit_with_0_is_a_failure() -> None:
    lifecycle = training()
    actions = feed(lifecycle, [exits("ps:0", 0)])
    assert teardowns(actions) == [TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)]
    result = ended(lifecycle, "chief:0", "worker:0", "worker:1")
    assert (result.outcome, result.exit_code, result.first_failure) == ("failed", 1, None)
    assert result.cause is not None
    assert (result.cause.task, result.cause.kind) == ("ps:0", CauseKind.LEFT_EARLY)
    assert ends_of(result)["ps:0"] == ("succeeded", "left early")


def test_worker_exit_with_0_before_the_chief_trains_is_a_failure() -> None:
    lifecycle = at_work(changed(PS_JOB, role_settings=policies({})))
    feed(lifecycle, [tells("chief:0", "waiting"), exits("worker:1", 0)])
    result = ended(lifecycle, "chief:0", "worker:0", "ps:0")
    assert result.cause is not None
    assert (result.cause.task, result.cause.kind) == ("worker:1", CauseKind.LEFT_EARLY)
    assert "join" in result.cause.text


def test_worker_may_exit_with_0_while_the_chief_trains() -> None:
    """Some workers train by themselves."""
    lifecycle = training()
    assert feed(lifecycle, [exits("worker:1", 0), exits("worker:0", 0, order=1)]) == []
    feed(lifecycle, [exits("chief:0", 0, order=2)])
    assert ended(lifecycle, "ps:0").outcome == "succeeded"


def test_plain_command_may_exit_with_0_at_any_time() -> None:
    lifecycle = at_work(PS_JOB, serves=False)
    assert feed(lifecycle, [exits("ps:0", 0), exits("worker:0", 0, order=1)]) == []


def test_worker_0_decides_without_a_separate_chief() -> None:
    lifecycle = at_work(PS_JOB, ("worker:0", "worker:1", "ps:0"))
    feed(lifecycle, [tells("worker:0", "training", 3), exits("worker:0")])
    assert ended(lifecycle, "worker:1", "ps:0").outcome == "succeeded"


def test_restart_policy_of_the_failed_role_applies() -> None:
    spec = changed(PS_JOB, role_settings={**PS_JOB.role_settings, **policies({"ps": FailurePolicy.RESTART})})
    lifecycle = training(spec)
    feed(lifecycle, [exits("ps:0", 3, mono=START + 1)])
    stopped = [exits(name, None, 15, 1, START + 2) for name in ("chief:0", "worker:0", "worker:1")]
    feed(lifecycle, [*stopped, emptied(START + 2)])
    assert feed(lifecycle, [deadline(Deadline.RESTART, START + 9)]) == [PlanAttempt(2)]


@pytest.mark.parametrize("policy", [FailurePolicy.ABORT, FailurePolicy.RESTART])
def test_policies_of_other_roles_do_not_apply(policy: FailurePolicy) -> None:
    others = dict.fromkeys(("worker", "ps"), policy)
    lifecycle = training(changed(JOB, role_settings=policies({**others, "chief": FailurePolicy.ABORT})))
    feed(lifecycle, [exits("chief:0", 3)])
    assert ended(lifecycle, "worker:0", "worker:1", "ps:0").outcome == "failed"


def test_serving_task_neither_waits_nor_is_waited_for() -> None:
    lifecycle = at_work(PS_JOB)
    feed(lifecycle, [tells("ps:0", "serving")])
    state = lifecycle.state
    assert {name: waiting_for(task, state) for name, task in state.tasks.items()} == dict.fromkeys(
        state.tasks, ()
    )


def test_silence_of_serving_tasks_is_not_a_stall() -> None:
    lifecycle = training(changed(PS_JOB, stall_timeout_s=5.0))
    feed(lifecycle, [tells("chief:0", "training", 4, START + 100)])
    assert lifecycle.next_deadline() == (START + 105, Deadline.STALL_LIMIT)


def test_silence_of_a_leading_worker_is_watched() -> None:
    lifecycle = at_work(changed(PS_JOB, stall_timeout_s=5.0), ("worker:0", "worker:1", "ps:0"))
    assert lifecycle.next_deadline() == (START + 5, Deadline.STALL_LIMIT)


def test_stopped_parameter_server_is_blamed_for_the_silence_of_others() -> None:
    lifecycle = training(changed(PS_JOB, stall_timeout_s=5.0))
    at = {"at": START + 5, "mono": START + 5}
    quiet = events.DeadlineReached(**at, deadline=Deadline.STALL_LIMIT, quiet_s={"chief:0": 5.0})
    stacks = {"chief:0": TaskStack(how="none"), "ps:0": TaskStack(how="none", state="T")}
    feed(lifecycle, [quiet, events.StacksTaken(**at, why=Deadline.STALL_LIMIT, stacks=stacks)])
    result = ended(lifecycle, "chief:0", "worker:0", "worker:1", "ps:0")
    assert result.cause == Cause(
        task="ps:0",
        kind=CauseKind.STOPPED,
        text="silent for 0s (--stall-timeout); stopped by SIGSTOP",
    )


def test_only_the_chief_is_watched_before_servers_report() -> None:
    lifecycle = at_work(changed(PS_JOB, stall_timeout_s=5.0))
    feed(lifecycle, [tells("chief:0", "training", 4, START + 100)])
    assert lifecycle.next_deadline() == (START + 105, Deadline.STALL_LIMIT)
