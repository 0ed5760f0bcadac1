"""Starts, exits, stops, limits and teardowns of a run of workers: events in, actions out, no clock."""

from __future__ import annotations

import signal

import pytest
from event_making import (
    COLLATERAL,
    OWN,
    START,
    agent_lost,
    began,
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
    starts,
    stop,
    sweeps,
    teardowns,
    the_result,
)
from job_making import JOB, changed

from orchestrator.core.errors import ExitCode
from orchestrator.core.lifecycle.actions import Deadline, StartTasks, SweepHost, TearDown
from orchestrator.core.lifecycle.lifecycle import TEARDOWN_MARGIN_S
from orchestrator.core.state.events import StopReason, TeardownReason
from orchestrator.core.state.result import Cause, CauseKind
from orchestrator.core.state.state import RunPhase, TaskPhase


def test_planned_attempt_starts_all_tasks() -> None:
    assert lifecycle_of().handle(planned(2)) == [StartTasks(("worker:0", "worker:1"))]


def test_run_is_running_once_all_tasks_are_ready() -> None:
    lifecycle = lifecycle_of()
    feed(lifecycle, [planned(2), started(0), ready(0), started(1)])
    phases = [lifecycle.state.phase]
    feed(lifecycle, [ready(1)])
    assert [*phases, lifecycle.state.phase] == [RunPhase.STARTING, RunPhase.RUNNING]


def test_one_successful_exit_does_not_end_the_run() -> None:
    assert feed(running(), [exited(0)]) == []


def test_run_succeeds_when_all_tasks_exit_with_0() -> None:
    lifecycle = running()
    actions = feed(lifecycle, [exited(1, order=0), exited(0, order=1)])
    assert actions == [TearDown(TeardownReason.FINISHED, JOB.failure_grace_s)]
    result = the_result(feed(lifecycle, [emptied()]))
    assert (result.outcome, result.exit_code, result.cause, result.first_failure) == (
        "succeeded",
        0,
        None,
        None,
    )
    assert [(task.state, task.end) for task in result.tasks] == [("succeeded", "done")] * 2


@pytest.mark.parametrize(
    ("code", "number", "exit_code"),
    [(1, None, 1), (3, None, 3), (255, None, 255), (None, signal.SIGKILL, 137), (None, signal.SIGSEGV, 139)],
)
@pytest.mark.parametrize("index", [0, 1])
def test_first_failure_ends_run_with_its_exit_code(
    index: int, code: int | None, number: int | None, exit_code: int
) -> None:
    lifecycle = running()
    actions = feed(lifecycle, [exited(index, code, number, noticed_s=0.25, mono=START + 1)])
    assert actions == [TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)]
    result = the_result(feed(lifecycle, [exited(1 - index, None, 15, order=1), emptied(START + 3)]))
    assert (result.outcome, result.exit_code, result.detection_s) == ("failed", exit_code, 0.25)
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.kind) == (f"worker:{index}", CauseKind.EXITED)
    assert (result.first_failure.task, result.first_failure.exit_code, result.first_failure.signal) == (
        f"worker:{index}",
        code,
        number,
    )
    assert {task.task: task.end for task in result.tasks} == {
        f"worker:{index}": "failed",
        f"worker:{1 - index}": "stopped by orch",
    }


def test_teardown_duration_starts_at_teardown_began() -> None:
    lifecycle = running()
    lifecycle.handle(exited(0, 1))
    lifecycle.handle(began(TeardownReason.FAILURE, mono=START + 5))
    (finish,) = lifecycle.handle(emptied(START + 7))
    assert the_result([finish]).teardown_s == 2.0


def test_failed_start_ends_the_run() -> None:
    lifecycle = lifecycle_of()
    actions = feed(lifecycle, [planned(2), started(0), not_started(1)])
    assert teardowns(actions) == [TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)]
    result = the_result(feed(lifecycle, [exited(0, None, 15, order=1), emptied()]))
    assert (result.outcome, result.exit_code) == ("failed", 127)
    assert result.cause is not None and result.cause.task == "worker:1"
    assert "no such file" in result.cause.text


def test_first_failure_is_chosen_by_exit_order() -> None:
    lifecycle = running(3)
    feed(lifecycle, [exited(2, 9, order=0), exited(0, 4, order=1)])
    result = the_result(feed(lifecycle, [exited(1, None, 15, order=2), emptied()]))
    assert result.exit_code == 9
    assert result.first_failure is not None and result.first_failure.task == "worker:2"


def test_simultaneous_failures_cause_one_teardown() -> None:
    assert len(teardowns(feed(running(3), [exited(0, 1), exited(1, 1, order=1)]))) == 1


@pytest.mark.parametrize(
    ("reason", "exit_code"),
    [
        (StopReason.INTERRUPT, 130),
        (StopReason.TERMINATE, 143),
        (StopReason.HANGUP, 143),
        (StopReason.DOWN, 143),
        (StopReason.CLIENT_GONE, 143),
        (StopReason.OUTPUT_CLOSED, 141),
    ],
)
def test_stop_reason_determines_exit_code(reason: StopReason, exit_code: int) -> None:
    lifecycle = running()
    (action,) = feed(lifecycle, [stop(reason)])
    client_has_left = reason in (StopReason.CLIENT_GONE, StopReason.OUTPUT_CLOSED)
    assert action == TearDown(TeardownReason.REQUEST, JOB.failure_grace_s if client_has_left else JOB.grace_s)
    # How the tasks exit after SIGTERM does not matter.
    result = the_result(feed(lifecycle, [exited(0, 45), exited(1, None, 15, order=1), emptied()]))
    assert (result.outcome, result.exit_code, result.cause) == ("stopped", exit_code, None)
    assert {task.end for task in result.tasks} == {"stopped by orch"}


def test_second_stop_is_ignored_unless_forced() -> None:
    lifecycle = running()
    feed(lifecycle, [stop()])
    assert feed(lifecycle, [stop(StopReason.DOWN)]) == []
    assert feed(lifecycle, [stop(force=True)]) == [TearDown(TeardownReason.REQUEST, 0.0)]
    assert lifecycle.next_deadline() == (START + TEARDOWN_MARGIN_S, Deadline.TEARDOWN)
    assert feed(lifecycle, [stop(force=True)]) == []
    assert the_result(feed(lifecycle, [emptied()])).exit_code == ExitCode.INTERRUPTED


def test_forced_stop_during_failure_teardown_keeps_the_failure() -> None:
    lifecycle = running()
    feed(lifecycle, [exited(0, 3)])
    assert feed(lifecycle, [stop(force=True)]) == [TearDown(TeardownReason.FAILURE, 0.0)]
    assert the_result(feed(lifecycle, [emptied()])).exit_code == 3


def test_stop_before_the_plan_prevents_the_start() -> None:
    lifecycle = lifecycle_of()
    actions = feed(lifecycle, [stop(), planned(2)])
    assert teardowns(actions) == [TearDown(TeardownReason.REQUEST, JOB.grace_s)]
    assert starts(actions) == 0
    result = the_result(feed(lifecycle, [emptied()]))
    assert (result.outcome, result.exit_code) == ("stopped", 130)
    assert {task.end for task in result.tasks} == {"never started"}


def test_stop_queued_before_a_failure_keeps_its_grace_period() -> None:
    """The supervisor reads both at once; the user asked first."""
    lifecycle = running()
    actions = feed(lifecycle, [stop(), exited(0, 1)])
    assert teardowns(actions) == [TearDown(TeardownReason.REQUEST, JOB.grace_s)]
    assert the_result(feed(lifecycle, [emptied()])).outcome == "stopped"


def test_stop_after_all_exits_is_success() -> None:
    lifecycle = running()
    actions = feed(lifecycle, [exited(0), exited(1, order=1), stop()])
    assert len(teardowns(actions)) == 1
    assert the_result(feed(lifecycle, [emptied()])).outcome == "succeeded"


def test_stop_after_a_failure_keeps_the_failure() -> None:
    lifecycle = running()
    feed(lifecycle, [exited(0, 3), stop()])
    assert the_result(feed(lifecycle, [emptied()])).exit_code == 3


def test_timeout_tears_down_and_is_the_cause() -> None:
    lifecycle = running(spec=changed(JOB, timeout_s=30.0))
    assert lifecycle.next_deadline() == (START + 30, Deadline.TIMEOUT)
    actions = feed(lifecycle, [deadline(Deadline.TIMEOUT)])
    assert actions == [TearDown(TeardownReason.REQUEST, JOB.grace_s)]
    result = the_result(feed(lifecycle, [exited(0, None, 15), emptied()]))
    assert (result.outcome, result.exit_code) == ("timed_out", 124)
    assert result.cause is not None
    assert (result.cause.task, result.cause.kind) == (None, CauseKind.LIMIT)
    assert "30 s" in result.cause.text


def test_no_deadline_without_time_limits() -> None:
    assert running().next_deadline() is None


def test_timeout_during_a_teardown_is_ignored() -> None:
    lifecycle = running(spec=changed(JOB, timeout_s=30.0))
    feed(lifecycle, [exited(0, 3)])
    assert feed(lifecycle, [deadline(Deadline.TIMEOUT)]) == []
    assert the_result(feed(lifecycle, [emptied()])).exit_code == 3


def test_host_is_swept_when_agent_does_not_end_the_tasks() -> None:
    lifecycle = running()
    feed(lifecycle, [stop()])
    assert lifecycle.next_deadline() == (START + JOB.grace_s + TEARDOWN_MARGIN_S, Deadline.TEARDOWN)
    assert feed(lifecycle, [deadline(Deadline.TEARDOWN)]) == [SweepHost()]
    assert lifecycle.next_deadline() is None
    result = the_result(feed(lifecycle, [emptied()]))
    assert (result.outcome, result.exit_code) == ("failed", 125)
    assert result.cause is not None and result.cause.kind is CauseKind.ORCH


def test_lost_agent_is_a_failure_of_orch() -> None:
    lifecycle = running()
    actions = feed(lifecycle, [agent_lost()])
    assert actions == [SweepHost()]
    assert {task.phase for task in lifecycle.state.tasks.values()} == {TaskPhase.LOST}
    result = the_result(feed(lifecycle, [emptied()]))
    assert (result.outcome, result.exit_code) == ("failed", 125)
    assert result.cause is not None
    assert (result.cause.task, result.cause.kind) == (None, CauseKind.ORCH)
    assert {(task.state, task.end) for task in result.tasks} == {("lost", "lost with the agent")}


def test_agent_lost_after_a_failure_keeps_the_failure() -> None:
    lifecycle = running()
    feed(lifecycle, [exited(0, 3)])
    assert sweeps(feed(lifecycle, [agent_lost()])) == 1
    assert the_result(feed(lifecycle, [emptied()])).exit_code == 3


def test_events_after_the_end_are_ignored() -> None:
    lifecycle = running()
    feed(lifecycle, [exited(0), exited(1, order=1), emptied()])
    before = lifecycle.result
    assert feed(lifecycle, [stop(force=True), agent_lost(), emptied(), exited(0, 1), planned()]) == []
    assert lifecycle.result is before
    assert lifecycle.next_deadline() is None


def test_peer_that_fails_during_the_teardown_failed_because_of_it() -> None:
    lifecycle = running(3)
    feed(lifecycle, [exited(0, 1, symptom=OWN)])
    feed(lifecycle, [exited(1, 1, order=1, symptom=COLLATERAL), exited(2, None, 9, order=2)])
    result = the_result(feed(lifecycle, [emptied()]))
    assert [task.end for task in result.tasks] == ["failed", "failed because of it", "stopped by orch"]


def test_task_started_during_the_teardown_is_reported_as_stopped() -> None:
    lifecycle = lifecycle_of()
    feed(lifecycle, [planned(2), started(0), exited(0, 3)])
    feed(lifecycle, [started(1), ready(1), exited(1, None, 15, order=1)])
    result = the_result(feed(lifecycle, [emptied()]))
    assert [(task.state, task.end) for task in result.tasks] == [
        ("failed", "failed"),
        ("stopped", "stopped by orch"),
    ]


def test_failed_start_keeps_its_place_in_the_exit_order() -> None:
    lifecycle = lifecycle_of()
    feed(lifecycle, [planned(2), started(0), not_started(1), exited(0, 1, order=1)])
    result = the_result(feed(lifecycle, [emptied()]))
    assert result.first_failure is not None and result.first_failure.task == "worker:1"


def test_stop_with_reason_timeout_exits_with_124() -> None:
    lifecycle = running()
    feed(lifecycle, [stop(StopReason.TIMEOUT)])
    assert the_result(feed(lifecycle, [emptied()])).exit_code == 124


def test_task_that_saved_its_state_when_stopped_is_reported() -> None:
    lifecycle = running()
    feed(lifecycle, [stop()])
    result = the_result(feed(lifecycle, [exited(0, 42), exited(1, 143, order=1), emptied()]))
    assert [task.end for task in result.tasks] == [
        "stopped by orch, its state saved (exit 42)",
        "stopped by orch",
    ]


def test_processes_gone_without_a_reason_are_a_failure_of_orch() -> None:
    result = the_result(feed(running(), [emptied()]))
    assert (result.outcome, result.exit_code) == ("failed", 125)
    assert result.cause == Cause(task=None, kind=CauseKind.ORCH, text="the run ended before its tasks did")
