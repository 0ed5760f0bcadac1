"""Chief, workers, parameter servers and evaluator: which tasks decide, and which failures end the run."""

from __future__ import annotations

import signal
from typing import Any

from making import COLLATERAL, IN_TENSORFLOW, JOB, STOPPED, job, policies
from story import Story, other_ends

from orchestrator.client.view.status_document import task_statuses
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.actions import Deadline, PlanAttempt, StartTask, TearDown
from orchestrator.core.progress.activity import waiting_for
from orchestrator.core.state.events import TeardownReason
from orchestrator.core.state.result import DONE_WITHOUT, Cause, CauseKind

KILL = signal.SIGKILL
CLUSTER = {"chief": 1, "worker": 2, "ps": 1}
CHIEF, PS, EVALUATOR = "chief:0", "ps:0", "evaluator:0"
OK = "succeeded 0"
ENDED = "stopped by orch"
NO_STEP = "it failed before it reported a training step"


def at_work(*, serves: bool = True, **fields: Any) -> Story:
    """A coordinated cluster whose tasks run. A worker or evaluator is restarted alone, as is the default."""
    alone = policies({"worker": FailurePolicy.RESTART_TASK, "evaluator": FailurePolicy.RESTART_TASK})
    spec = job(**{"roles": CLUSTER, "evaluator_timeout_s": 600.0, "role_settings": alone} | fields)
    return Story(spec, serves=serves).ready().fresh()


def training(**fields: Any) -> Story:
    """The same, and the chief trains."""
    story = at_work(**fields)
    for name in story.state.tasks:
        if name.startswith(("ps", "worker")):
            story.reports(name, "serving")
    return story.trains(CHIEF, 3)


def evaluated(**fields: Any) -> Story:
    """Two workers and an evaluator, which is restarted alone."""
    alone = policies({"evaluator": FailurePolicy.RESTART_TASK})
    return at_work(**{"roles": {"worker": 2, "evaluator": 1}, "role_settings": alone} | fields)


def with_evaluator() -> Story:
    return training(roles=CLUSTER | {"evaluator": 1})


def without_restarts_left() -> Story:
    """worker:1 has failed again after its only restart."""
    return training(max_restarts=1).at(1).exits(1, code=3).at(2).ready(1).at(3).exits(1, code=3)


def test_end_of_a_coordinated_run() -> None:
    others, chief_3 = (ENDED, ENDED, ENDED), "failed 3: exited chief:0"
    abort = {"role_settings": policies({})}
    both = {"role_settings": policies({"worker": FailurePolicy.RESTART, "ps": FailurePolicy.RESTART})}
    alone = {"on_failure": FailurePolicy.CONTINUE, **abort}
    restarted = training().at(1).exits(1, signal=KILL).at(2).ready(1)
    last_worker = without_restarts_left().at(4).exits(0, code=4).at(5).ready(0).at(6).exits(0, code=4)
    ps_4, left_1 = "failed 137: exited ps:0", "failed 1: left_early worker:1"
    because = training().exits(PS, signal=KILL).exits(CHIEF, code=1, symptom=COLLATERAL)
    waits = at_work().reports(CHIEF, "waiting").exits(1, code=1)
    rows = {
        "chief done": (training().exits(CHIEF), OK, "done", *others),
        "servers' codes": (training().exits(CHIEF).exits(PS, code=1).exits(0, code=139), OK, "done", *others),
        "killed ps": (because, ps_4, "failed because of it", ENDED, ENDED, "failed"),
        "restarted worker": (restarted.exits(CHIEF), OK, "done", *others),
        "waiting worker": (
            training().exits(1, code=3).exits(CHIEF),
            *(OK, "done", ENDED, "not started again", ENDED),
        ),
        "worker given up": (without_restarts_left().exits(CHIEF), OK, "done", ENDED, DONE_WITHOUT, ENDED),
        "last worker": (last_worker, "failed 4: exited worker:0", ENDED, "failed", DONE_WITHOUT, ENDED),
        "later failure": (
            without_restarts_left().at(99).exits(PS, signal=KILL),
            *(ps_4, ENDED, ENDED, DONE_WITHOUT, "failed"),
        ),
        "worker before the chief trains": (waits, "failed 1: exited worker:1"),
        "chief fails": (training().exits(CHIEF, code=3), chief_3),
        "chief fails, continue": (training(**alone).exits(CHIEF, code=3), chief_3),
        "chief fails, others restart": (training(**both).exits(CHIEF, code=3), chief_3),
        "ps leaves": (training().exits(PS), "failed 1: left_early ps:0", ENDED, ENDED, ENDED, "left early"),
        "worker leaves early": (at_work(**abort).reports(CHIEF, "waiting").exits(1), left_1),
        # Some workers train by themselves.
        "workers leave": (training().exits(1, 0, CHIEF), OK),
        "plain commands leave": (at_work(serves=False).exits(PS, 0, 1, CHIEF), OK),
        "worker:0 decides": (
            at_work(roles={"worker": 2, "ps": 1}).trains(0, 3).exits(0),
            OK,
            "done",
            *others[1:],
        ),
    }
    assert other_ends(rows) == {}
    results = {name: row[0].result() for name, row in rows.items()}
    assert results["ps leaves"].first_failure is None
    assert "join" in str(results["worker leaves early"].cause)
    assert "SIGKILL" in str(results["killed ps"].cause)
    refused = {name: result.not_restarted for name, result in results.items()}
    assert refused["worker before the chief trains"] == f"worker:1: {NO_STEP}"
    assert refused["last worker"] == "worker:0: restarted once already"
    assert [task.restarts for task in results["restarted worker"].tasks] == [0, 0, 1, 0]
    assert rows["worker given up"][0].notices[-1] == (
        "worker:1: exit 3; not restarted: restarted once already; the other tasks continue"
    )


def test_restart_policy_of_the_failed_role_applies() -> None:
    """A killed worker of a coordinator is restarted alone."""
    story = training().at(1).exits(1, signal=KILL)
    assert (story.ordered(), story.due) == ([], (2, Deadline.TASK_RESTART))
    assert story.at(2).ordered() == [StartTask("worker:1")]
    # A chief that reports no steps has worked once it trains.
    assert at_work().reports(CHIEF, "training").exits(1, code=1).due == (1, Deadline.TASK_RESTART)
    story = training(role_settings=policies({"ps": FailurePolicy.RESTART})).exits(PS, code=3).torn_down()
    assert story.at(9).orders[-1] == PlanAttempt(2)


def test_grace_of_tasks_that_serve() -> None:
    assert training().exits(CHIEF).orders[-1] == TearDown(TeardownReason.FINISHED, JOB.grace_s)
    for failed in (training().exits(PS), training().exits(PS, signal=KILL)):
        assert failed.orders[-1] == TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)
    story = with_evaluator().exits(CHIEF)
    assert not any(isinstance(order, TearDown) for order in story.orders)
    assert story.exits(EVALUATOR).orders[-1] == TearDown(TeardownReason.FINISHED, JOB.grace_s)
    assert (story.end(), story.ends()[3]) == (OK, ENDED)


# -- silence


def test_silence_of_serving_tasks_is_not_a_stall() -> None:
    """They neither wait nor are waited for."""
    state = at_work().reports(PS, "serving").state
    assert {waiting_for(task, state) for task in state.tasks.values()} == {()}
    limit = {"stall_timeout_s": 5.0}
    # Before the servers report, too, only the chief is watched.
    for begin in (training, at_work):
        assert begin(**limit).at(3).trains(CHIEF, 4).due == (8, Deadline.STALL_LIMIT)
    assert at_work(roles={"worker": 2, "ps": 1}, **limit).due == (5, Deadline.STALL_LIMIT)
    # A stopped parameter server is blamed for the silence of others.
    story = training(**limit).at(5).stacks(chief=IN_TENSORFLOW, ps=STOPPED)
    text = "silent for 0s (--stall-timeout); stopped by SIGSTOP"
    assert story.result().cause == Cause(task=PS, kind=CauseKind.STOPPED, text=text)


# -- the evaluator


def test_run_waits_for_the_evaluator_after_the_training() -> None:
    story = evaluated().exits(0, 1)
    assert (story.ordered(), story.due) == ([], (600, Deadline.EVALUATOR))
    assert story.notices == ("the training has ended; waiting for evaluator:0 (10m at most)",)
    assert evaluated(evaluator_timeout_s=None).exits(0, 1).due is None
    assert story.exits(EVALUATOR).ordered() == [TearDown(TeardownReason.FINISHED, JOB.failure_grace_s)]
    late = evaluated().exits(0, 1).at(600)
    assert late.ordered() == [TearDown(TeardownReason.FINISHED, JOB.grace_s)]
    text = "evaluator:0 had not ended 10m after the training (--evaluator-timeout): it is stopped"
    assert late.notices[1:] == (text,)
    at_once = evaluated(evaluator_timeout_s=0.0).exits(0, 1).at(0)
    assert at_once.notices == (text.replace("10m after", "with"),)


def test_end_of_an_evaluated_run() -> None:
    never, by_5 = {"max_restarts": 0}, "failed 5: exited evaluator:0"
    trained = evaluated(timeout_s=60.0).exits(0, 1).at(60)
    peer = evaluated().exits(EVALUATOR).exits(0, code=1, symptom=COLLATERAL)
    again = evaluated().trains(0, 3).at(1).exits(EVALUATOR, code=1).exits(0, 1).at(2).ready(EVALUATOR)
    failed = evaluated(**never).trains(0, 3).exits(EVALUATOR, code=5)
    worker = evaluated(**never).trains(0, 3).exits(EVALUATOR, code=5).exits(1, code=3)
    after = [with_evaluator().exits(CHIEF).exits(name, code=1).exits(EVALUATOR) for name in (1, PS)]
    rows = {
        "done": (evaluated().exits(0, 1, EVALUATOR), OK, "done", "done", "done"),
        "late": (evaluated().exits(0, 1).at(600), OK, "done", "done", ENDED),
        "--timeout": (trained, "timed_out 124: limit"),
        "stop": (evaluated().exits(0, 1).stops(), "stopped 130"),
        "early": (evaluated().exits(EVALUATOR, 0, 1), OK),
        "not blamed for a lost peer": (peer, "failed 1: exited worker:0"),
        "restarted alone": (again.exits(EVALUATOR), OK),
        "failed before the end": (failed.exits(0, 1), by_5, "done", "done", "failed"),
        "failed after the end": (evaluated(**never).trains(0, 3).exits(0, 1).exits(EVALUATOR, code=5), by_5),
        "a worker fails later": (worker, "failed 3: exited worker:1"),
        # A server fails while the run waits for the evaluator.
        "a worker fails after the training": (after[0], OK),
        "ps fails after the training": (after[1], OK),
    }
    assert other_ends(rows) == {}
    refused = rows["failed after the end"][0].result().not_restarted
    assert refused == "evaluator:0: --max-restarts is 0"
    text = "not done after 60 s (--timeout); the training had ended, and evaluator:0 had not"
    assert trained.result().cause == Cause(task=None, kind=CauseKind.LIMIT, text=text)
    assert evaluated().exits(0, 1).exits(EVALUATOR, code=1).due == (1, Deadline.TASK_RESTART)


def test_evaluator_that_waits_for_its_restart_fails_at_its_timeout() -> None:
    for on_failure in (FailurePolicy.ABORT, FailurePolicy.RESTART):
        fields = {"evaluator_timeout_s": 1.0, "on_failure": on_failure}
        story = evaluated(**fields).trains(0, 3).exits(0, 1).at(0.5).exits(EVALUATOR, code=5)
        assert task_statuses(story.state, {}, story.mono + 0.5)[-1].restart_in_s == 0.5
        assert [order.reason for order in story.at(1).ordered()] == [TeardownReason.FAILURE]
        assert story.notices[-1].endswith("it failed and is not restarted")
        assert [task.restart_in_s for task in task_statuses(story.state, {}, story.mono)] == [None] * 3
        assert (story.end(), story.ends()[-1]) == ("failed 5: exited evaluator:0", "failed")
        result = story.result()
        assert result.not_restarted == "evaluator:0: --evaluator-timeout was over"
        assert result.first_failure is not None and result.first_failure.task == EVALUATOR
        shown = task_statuses(story.state, {}, story.mono)[-1]
        assert (shown.state, shown.exit_code, shown.restarts) == ("failed", 5, 0)

    again = evaluated(evaluator_timeout_s=2.0).trains(0, 3).exits(0, 1).exits(EVALUATOR, code=5)
    again.at(1).ready().at(2)
    assert again.notices[-1].endswith("it is stopped") and again.end() == OK
