"""A notice that the machines of a run will go: events in, actions out, no clock."""

from __future__ import annotations

import pytest
from event_making import (
    START,
    deadline,
    emptied,
    exited,
    feed,
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
from orchestrator.core.lifecycle.actions import Deadline, Happen, PlanAttempt, TearDown
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events
from orchestrator.core.state.events import NoticeSource, StopReason, TeardownReason
from orchestrator.core.state.result import CauseKind
from orchestrator.core.text.durations import MAX_DURATION_S
from orchestrator.engines.slurm import parse_time_left

RESTART = changed(JOB, on_failure=FailurePolicy.RESTART, max_restarts=3)
T = START


def notice(
    left_s: float | None = 60.0, mono: float = START, source: NoticeSource = NoticeSource.USER
) -> events.NoticeGiven:
    return events.NoticeGiven(at=mono, mono=mono, source=source, left_s=left_s)


def leave() -> list[events.Event]:
    return [exited(0, 42), exited(1, 42, order=1), emptied()]


def test_tasks_end_before_the_machine_goes() -> None:
    lifecycle = running()
    assert feed(lifecycle, [notice(60)]) == [TearDown(TeardownReason.NOTICE, 50.0)]
    result = the_result(feed(lifecycle, leave()))
    assert (result.outcome, result.exit_code, result.first_failure) == ("stopped", 42, None)
    assert result.cause is not None
    assert result.cause.kind is CauseKind.NOTICE
    assert "2 of 2 tasks said that the state is saved" in result.cause.text


@pytest.mark.parametrize(("left_s", "grace_s"), [(8, 6), (0, 0), (None, JOB.grace_s)])
def test_grace_follows_the_time_that_is_left(left_s: float | None, grace_s: float) -> None:
    assert feed(running(), [notice(left_s)]) == [TearDown(TeardownReason.NOTICE, grace_s)]


def test_task_without_a_handler_has_ended_by_the_notice() -> None:
    lifecycle = running()
    feed(lifecycle, [notice()])
    # It failed before SIGTERM reached it, because its peer had gone.
    alone = exited(1, 1, order=1).model_copy(update={"asked": False})
    result = the_result(feed(lifecycle, [exited(0, 143), alone, emptied()]))
    assert (result.outcome, result.exit_code, result.first_failure) == ("stopped", 42, None)
    assert result.cause is not None
    assert "no task said that the state is saved" in result.cause.text


def test_nothing_restarts_in_place_after_a_notice() -> None:
    lifecycle = running(spec=RESTART)
    feed(lifecycle, [exited(1, 42, mono=T + 1), notice(60, T + 1)])
    result = the_result(feed(lifecycle, [exited(0, 42, order=1, mono=T + 2), emptied(T + 2)]))
    assert (result.outcome, result.exit_code) == ("stopped", 42)


def test_failure_before_the_notice_stays_a_failure() -> None:
    lifecycle = running()
    feed(lifecycle, [exited(1, 3), notice()])
    result = the_result(feed(lifecycle, [exited(0, None, 15, order=1), emptied()]))
    assert (result.outcome, result.exit_code) == ("failed", 3)


def test_notice_between_two_attempts_ends_the_run() -> None:
    lifecycle = running(spec=RESTART)
    feed(lifecycle, [exited(1, 42)])
    feed(lifecycle, [exited(0, 42, order=1), emptied()])
    assert lifecycle.next_deadline() == (T + 1, Deadline.RESTART)
    actions = [*feed(lifecycle, [notice()]), *feed(lifecycle, [emptied()])]
    assert not [action for action in actions if isinstance(action, PlanAttempt)]
    assert the_result(actions).exit_code == 42


def test_run_that_has_done_its_work_has_succeeded() -> None:
    lifecycle = running()
    by_itself = [exited(index, 0, order=index).model_copy(update={"asked": False}) for index in (0, 1)]
    feed(lifecycle, [notice()])
    result = the_result(feed(lifecycle, [*by_itself, emptied()]))
    assert result.outcome == "succeeded"


def test_stop_after_a_notice_wins_and_hastens() -> None:
    lifecycle = running()
    actions = [*feed(lifecycle, [notice(120)]), *feed(lifecycle, [stop(StopReason.DOWN)])]
    assert [action.grace_s for action in teardowns(actions)] == [110.0, JOB.grace_s]
    result = the_result(feed(lifecycle, leave()))
    assert (result.outcome, result.exit_code, result.cause) == ("stopped", 143, None)


def test_second_notice_with_less_time_hastens() -> None:
    actions = feed(running(), [notice(120), notice(8), notice(60)])
    assert [action.grace_s for action in teardowns(actions)] == [110.0, 6.0]


@pytest.mark.parametrize("is_first", [True, False])
def test_slurm_signals_the_batch_script_too(is_first: bool) -> None:
    lifecycle = running()
    both: list[events.Event] = [notice(30, source=NoticeSource.SLURM), stop(StopReason.TERMINATE)]
    feed(lifecycle, both if is_first else both[::-1])
    result = the_result(feed(lifecycle, leave()))
    assert (result.exit_code, result.cause and result.cause.kind) == (42, CauseKind.NOTICE)


def ending_at(mono: float) -> Lifecycle:
    lifecycle = Lifecycle(changed(JOB, notice_s=20.0), "run-1", START, mono)
    for event in (planned(), started(0), started(1), ready(0), ready(1)):
        lifecycle.handle(event)
    return lifecycle


def at_limit(mono: float, left_s: float | None) -> events.DeadlineReached:
    return deadline(Deadline.NOTICE, mono).model_copy(update={"left_s": left_s})


@pytest.mark.parametrize("left_s", [19.0, None])
def test_end_of_the_allocation_gives_a_notice(left_s: float | None) -> None:
    lifecycle = ending_at(T + 100)
    assert lifecycle.next_deadline() == (T + 80, Deadline.NOTICE)
    (action,) = lifecycle.handle(at_limit(T + 80, left_s))
    assert isinstance(action, Happen)
    assert isinstance(action.event, events.NoticeGiven)
    assert (action.event.source, action.event.left_s) == (NoticeSource.TIME_LIMIT, left_s or 20.0)
    assert lifecycle.next_deadline() is None


def test_allocation_that_was_given_more_time_gives_its_notice_later() -> None:
    lifecycle = ending_at(T + 100)
    assert lifecycle.handle(at_limit(T + 80, 320.0)) == []
    assert lifecycle.next_deadline() == (T + 380, Deadline.NOTICE)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("2:03:04", 7384.0),
        ("3:04", 184.0),
        ("0:00", 0.0),
        # A limit that was taken away is no reason for a notice.
        ("UNLIMITED", MAX_DURATION_S),
        ("INVALID", None),
        ("", None),
    ],
)
def test_time_left_as_slurm_writes_it(text: str, seconds: float | None) -> None:
    assert parse_time_left(text) == seconds
