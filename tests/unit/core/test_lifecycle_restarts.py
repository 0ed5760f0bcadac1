"""Restarts of all tasks and of single tasks, and runs that another supervisor began, on a virtual clock."""

from __future__ import annotations

import signal
from typing import Any

from making import JOB, job
from story import Story, other_ends

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.actions import Deadline, PlanAttempt, StartTask, StartTasks, TearDown
from orchestrator.core.lifecycle.restarts import Again, Refused, Restarts
from orchestrator.core.state import events
from orchestrator.core.state.events import FitSteps, TeardownReason
from orchestrator.core.state.state import RunPhase, TaskPhase

RESTART = job(on_failure=FailurePolicy.RESTART, max_restarts=3)
RESTART_TASK = job(on_failure=FailurePolicy.RESTART_TASK, max_restarts=2)
CONTINUE = job(on_failure=FailurePolicy.CONTINUE)
FAILURE = TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)
NO_STEP = "it failed before it reported a training step"


def at_step(step: int = 20, **fields: Any) -> Story:
    """A run with --on-failure restart whose tasks have trained."""
    story = Story(job(**{"on_failure": FailurePolicy.RESTART, "max_restarts": 3} | fields))
    return story.ready().trains(0, step).trains(1, step).fresh()


def test_failure_after_a_step_is_restarted() -> None:
    story = at_step().at(5).exits(1, code=3)
    assert story.ordered() == [FAILURE]
    assert story.torn_down().due == (6, Deadline.RESTART)
    assert story.state.phase is RunPhase.STARTING
    assert story.at(6).ordered() == [PlanAttempt(2)]
    assert story.ready().ordered() == [StartTasks(("worker:0", "worker:1"))]
    assert (story.state.attempt, story.state.phase) == (2, RunPhase.RUNNING)
    result = story.at(9).exits(0, 1).result()
    assert (story.end(), result.attempts) == ("succeeded 0", 2)
    assert [task.restarts for task in result.tasks] == [1, 1]
    (ended,) = result.earlier_attempts
    assert ended.cause is not None and (ended.exit_code, ended.cause.task) == (3, "worker:1")
    # Preempted tasks get the whole grace period.
    assert at_step().exits(0, code=42).ordered() == [TearDown(TeardownReason.FAILURE, JOB.grace_s)]


def test_what_is_restarted() -> None:
    """A program that never worked would fail again, unless it asks for the restart."""
    silent_fit = {"phase": "training", "fit": FitSteps(done=13, start=0)}
    no_step = Story(RESTART).ready().at(5).exits(1, code=3)
    loops = [Story(RESTART).ready().at(20).reports(1, "training").at(s).exits(1, code=3) for s in (25, 24.9)]
    restarted = {
        "a step": at_step().at(5).exits(1, code=3),
        "counted steps of a silent fit": Story(RESTART).ready().reports(1, **silent_fit).exits(1, code=3),
        "a loop without steps": loops[0],
        "a plain command": Story(RESTART, serves=False).ready().at(5).exits(1, code=3),
        "the state is saved": Story(RESTART).ready().exits(1, code=42),
        "SIGTERM": Story(RESTART).ready().exits(1, code=143),
    }
    refused = {
        "no step": no_step,
        "no step of a resumed attempt": Story(RESTART)
        .ready()
        .trains(1, 0, epoch=4, steps=20)
        .exits(1, code=3),
        "a loop without steps": loops[1],
        "a plain command": Story(RESTART, serves=False).ready().at(4.9).exits(1, code=3),
        "command not found": Story(RESTART).starts(0).cannot_start(1),
        "other policy": at_step(on_failure=FailurePolicy.ABORT).exits(1, code=3),
    }
    due = {name: story.torn_down().due for name, story in restarted.items()}
    assert due == {name: (story.now + 1, Deadline.RESTART) for name, story in restarted.items()}
    assert {name: story.torn_down().due for name, story in refused.items()} == dict.fromkeys(refused)
    assert no_step.result().not_restarted == NO_STEP


def test_run_is_restarted_at_most_max_restarts_times() -> None:
    story = at_step()
    for delay_s in (1, 2, 4):
        begin = story.now
        story.at(begin + 1).exits(1, code=3).torn_down()
        assert story.due == (begin + 1 + delay_s, Deadline.RESTART)
        story.at(begin + 1 + delay_s).ready().trains(0, 1)
    result = story.exits(1, signal=signal.SIGKILL).result()
    assert (result.exit_code, result.attempts, result.not_restarted) == (137, 4, "restarted 3 times already")


def test_delays_grow_to_30_s_and_reset_after_a_healthy_minute() -> None:
    restarts = Restarts(100)
    delays = [restarts.after(1.0, worked=True, asked_for=False) for _ in range(7)]
    assert delays == [Again(float(s)) for s in (1, 2, 4, 8, 16, 30, 30)]
    assert restarts.after(60.0, worked=True, asked_for=False) == Again(1.0)
    assert restarts.after(59.9, worked=True, asked_for=False) == Again(2.0)
    assert Restarts(0).after(100.0, worked=True, asked_for=True) == Refused("--max-restarts is 0")


# -- the steps that a restart loses


def test_steps_that_a_restart_loses_are_counted_at_the_next_first_step() -> None:
    story = Story(RESTART).ready().trains(0, 18, epoch=3, steps=20)
    story.at(5).exits(1, code=3).torn_down().at(7).ready().at(9).trains(0, 1, epoch=3, steps=20)
    story.at(10).trains(0, 2, epoch=3, steps=20)
    (ended,) = story.state.history
    assert (ended.position, ended.resumed_at, ended.steps_lost, ended.recovery_s) == (58, 40, 18, 4.0)
    assert ended.exact
    # They are exact only if each step was reported, or saved.
    for code, exact in ((3, False), (42, True)):
        story = Story(RESTART).ready().trains(0, 20, skips=True).trains(1, 20).exits(1, code=code)
        story.torn_down().at(7).ready().trains(0, 1, start_step=20)
        (ended,) = story.state.history
        assert (ended.steps_lost, ended.exact) == (0, exact)
    # They count from the last attempt with steps.
    story = at_step(33).exits(1, code=3).torn_down().at(1).ready().exits(1, code=3).torn_down()
    story.at(9).ready().trains(0, 1, start_step=20)
    assert (story.state.history[-1].resumed_at, story.state.history[-1].steps_lost) == (20, 13)
    # During a stop, too.
    story = at_step().at(5).exits(1, code=3).torn_down().at(6).ready().at(7).stops().trains(0, 21)
    assert [ended.recovery_s for ended in story.state.history] == [2.0]


# -- what wins over a restart


def test_what_wins_over_a_restart() -> None:
    at_end = Story(JOB).made(events.StopRequested, reason="interrupt")
    ended, lost = Story(JOB).made(events.TeardownEnded), Story(JOB).made(events.AgentLost, reason="gone")
    rows = {
        "a stop before the failure": (at_step().stops().exits(1, code=3), "stopped 130"),
        "in the teardown": (at_step().exits(1, code=3).stops(), "failed 3: exited worker:1"),
        "right after it": (at_step().exits(1, 0, code=3).tell(ended, at_end), "stopped 130"),
        "in the delay": (at_step().exits(1, code=3).torn_down().stops(), "stopped 130"),
        "a lost agent": (at_step().exits(0, 1, code=3).torn_down().loses_agent(), "failed 125: orch"),
        # Its loss is queued before the events that follow from the end of the attempt.
        "right after it, too": (at_step().exits(0, 1, code=3).tell(ended, lost), "failed 125: orch"),
        "success": (Story(JOB).ready().exits(0, 1).restarts(), "succeeded 0"),
    }
    assert other_ends(rows) == {}
    assert [row[0].result().attempts for row in rows.values()] == [1] * 7


def test_processes_that_are_left_prevent_a_restart() -> None:
    left = {"pid": 101, "start_ticks": 7, "user": "nobody", "command": "sleep"}
    story = at_step().exits(0, code=3).happens(events.TeardownEnded, left=(left,))
    assert (story.end(), story.ends()) == ("failed 3: exited worker:0", ["failed", "still running"])
    assert story.result().not_restarted == "processes of this attempt are still running"


# -- restarts on request


def test_requested_restart_does_not_count_as_a_failure() -> None:
    story = Story(job(max_restarts=0)).ready().fresh()
    assert story.restarts().ordered() == [TearDown(TeardownReason.RESTART, JOB.grace_s)]
    assert story.at(1).torn_down().due == (1, Deadline.RESTART)
    assert story.at(1).ordered() == [PlanAttempt(2)]
    result = story.ready().at(3).trains(0, 1).exits(0, 1).result()
    (ended,) = result.earlier_attempts
    assert (result.exit_code, result.attempts, ended.cause, ended.exit_code) == (0, 2, None, 0)
    assert ended.recovery_s == 3.0  # since the request


def test_requested_restart_skips_the_delay() -> None:
    story = at_step().exits(1, code=3).torn_down().fresh()
    assert story.at(0.1).restarts().ordered() == [PlanAttempt(2)]
    # The next attempt is being planned.
    assert story.at(1).reaches(Deadline.RESTART).restarts().ordered() == []
    # The delay after the next failure is that of a second one.
    assert story.ready().at(2).exits(1, code=3).torn_down().due == (4, Deadline.RESTART)
    # Also during the teardown of a failure.
    assert Story(JOB).ready().exits(1, code=3).restarts().torn_down().due == (0, Deadline.RESTART)


# -- single tasks


def test_one_task_is_restarted_while_the_others_continue() -> None:
    story = at_step(on_failure=FailurePolicy.RESTART_TASK).at(7).exits(1, signal=9)
    assert (story.ordered(), story.due) == ([], (8, Deadline.TASK_RESTART))
    assert story.state.tasks["worker:1"].phase is TaskPhase.PENDING
    assert story.at(8).ordered() == [StartTask("worker:1")]
    result = story.ready(1).exits(1, 0).result()
    assert (result.exit_code, result.attempts, [task.restarts for task in result.tasks]) == (0, 1, [0, 1])
    # The restart has settled the failure.
    assert (result.detection_s, result.not_restarted) == (None, None)


def test_end_of_single_tasks() -> None:
    one = {"on_failure": FailurePolicy.RESTART_TASK, "max_restarts": 2}
    too_often = at_step(**one).at(1).exits(1, code=5).at(3).ready(1).at(4).exits(1, code=5).at(6).ready(1)
    waits = at_step(**one).exits(1, code=5).stops().at(9)
    continued = Story(job(workers=3, on_failure=FailurePolicy.CONTINUE)).ready().exits(1, code=5).exits(0, 2)
    rows: dict[str, tuple[Any, ...]] = {
        "too often": (too_often.exits(1, code=5), "failed 5: exited worker:1"),
        "stopped while it waits": (waits, "stopped 130", "stopped by orch", "not started again"),
        "no step": (Story(RESTART_TASK).ready().at(1).exits(1, code=3), "failed 3: exited worker:1"),
        "continue": (continued, "failed 5: exited worker:1", "done", "failed", "done"),
        "the last one fails": (
            Story(CONTINUE).ready().exits(0).exits(1, code=7),
            "failed 7: exited worker:1",
        ),
        # The reason of a refusal belongs to one attempt.
        "restarted": (
            Story(RESTART_TASK).ready().exits(1, code=5).restarts().torn_down().at(1).ready().exits(0, 1),
            "succeeded 0",
        ),
    }
    assert other_ends(rows) == {}
    refused = {name: row[0].result().not_restarted for name, row in rows.items()}
    assert refused["too often"] == "worker:1: restarted 2 times already"
    assert refused["no step"] == f"worker:1: {NO_STEP}"
    assert refused["restarted"] is None
    assert continued.notices == ("worker:1: exit 5; the other tasks continue",)
    assert continued.orders[1:-1] == [FAILURE]


def test_failed_restart_counts_as_no_time_at_work() -> None:
    """The new process never ran, even if the first one ran for long."""
    story = Story(RESTART_TASK, serves=False).ready().at(100).exits(1, code=3).at(101).cannot_start(1)
    # The second delay in a row is longer than the first, because the task did not work in between.
    assert story.due == (103, Deadline.TASK_RESTART)
