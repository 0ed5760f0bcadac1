"""A run that another supervisor began continues as its next attempt: events in, actions out, no clock."""

from __future__ import annotations

from event_making import (
    START,
    agent_lost,
    deadline,
    emptied,
    exited,
    feed,
    planned,
    ready,
    running,
    started,
    the_result,
)
from job_making import JOB, changed

from orchestrator.core.lifecycle.actions import Deadline, PlanAttempt, StartTasks
from orchestrator.core.lifecycle.continuing import fence_s, interrupted_end
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events
from orchestrator.core.state.events import NoticeSource
from orchestrator.core.state.result import CauseKind
from orchestrator.core.state.state import RunPhase, RunState, TaskPhase

T = START + 1000


def told() -> RunState:
    """The last state of a run after a notice."""
    lifecycle = running()
    feed(lifecycle, [events.NoticeGiven(at=START, mono=START, source=NoticeSource.SLURM, left_s=30.0)])
    feed(lifecycle, [exited(0, 42), exited(1, 42, order=1), emptied()])
    return lifecycle.state


def restart(state: RunState, delay_s: float = 0.0) -> events.RestartPlanned:
    return events.RestartPlanned(at=T, mono=T, ended=interrupted_end(state), delay_s=delay_s, job="7")


def test_attempt_is_recorded_once_if_the_next_one_does_not_begin() -> None:
    lifecycle = Lifecycle(JOB, "run-1", T, earlier=told(), began_mono=START)
    feed(lifecycle, [restart(lifecycle.state)])
    once = lifecycle.state.history
    feed(lifecycle, [restart(lifecycle.state)])
    assert [end.attempt for end in once] == [1]
    assert lifecycle.state.history == once


def test_next_attempt_follows_those_of_the_earlier_supervisor() -> None:
    lifecycle = Lifecycle(JOB, "run-1", T, earlier=told(), began_mono=START)
    assert feed(lifecycle, [restart(lifecycle.state)]) == []
    assert (lifecycle.state.phase, lifecycle.state.notice) == (RunPhase.STARTING, None)
    assert feed(lifecycle, [deadline(Deadline.RESTART, T)]) == [PlanAttempt(2)]
    plan = planned(2, T).model_copy(update={"attempt": 2})
    assert feed(lifecycle, [plan]) == [StartTasks(("worker:0", "worker:1"))]
    feed(lifecycle, [*(started(index, T) for index in (0, 1)), *(ready(index, T) for index in (0, 1))])
    progress = events.Progress(phase="training", step=1)
    feed(lifecycle, [events.TaskProgressed(at=T, mono=T, task="worker:0", progress=progress)])
    feed(lifecycle, [exited(0, 0, mono=T), exited(1, 0, order=1, mono=T)])
    result = the_result(feed(lifecycle, [emptied(T)]))
    assert (result.outcome, result.attempts, [task.restarts for task in result.tasks]) == (
        "succeeded",
        2,
        [1, 1],
    )
    assert result.took_s == T - START  # with the attempts of the earlier supervisor
    (end,) = result.earlier_attempts
    assert (end.attempt, end.exit_code, end.cause and end.cause.kind) == (1, 42, CauseKind.NOTICE)
    assert end.recovery_s == T - START  # since the notice, also by the clock of the next supervisor


def test_attempt_waits_until_the_earlier_one_has_surely_ended() -> None:
    lifecycle = Lifecycle(JOB, "run-1", T, earlier=told())
    feed(lifecycle, [restart(lifecycle.state, delay_s=100)])
    assert lifecycle.next_deadline() == (T + 100, Deadline.RESTART)
    assert feed(lifecycle, [deadline(Deadline.RESTART, T + 99)]) == []
    # Between other attempts, `orch restart` skips the delay.
    assert feed(lifecycle, [events.RestartRequested(at=T, mono=T + 50)]) == []
    assert lifecycle.next_deadline() == (T + 100, Deadline.RESTART)


def test_notice_before_the_next_attempt_ends_it() -> None:
    lifecycle = Lifecycle(JOB, "run-1", T, earlier=told())
    feed(lifecycle, [restart(lifecycle.state, delay_s=100)])
    feed(lifecycle, [events.NoticeGiven(at=T, mono=T + 1, source=NoticeSource.SIGNAL, left_s=30.0)])
    result = the_result(feed(lifecycle, [emptied(T + 2)]))
    assert result.cause is not None
    assert (result.exit_code, result.cause.text) == (
        42,
        "its machines go in 30s (SIGUSR2); no task had started",
    )


def test_tasks_of_a_killed_supervisor_are_lost() -> None:
    interrupted = running().state
    end = interrupted_end(interrupted)
    assert end.cause is not None
    assert (end.cause.kind, end.cause.text) == (CauseKind.NOTICE, "Slurm ended its job before orch could")
    lifecycle = Lifecycle(JOB, "run-1", T, earlier=interrupted)
    feed(lifecycle, [restart(interrupted)])
    assert {task.phase for task in lifecycle.state.tasks.values()} == {TaskPhase.LOST}


def test_what_ended_the_earlier_supervisor_does_not_end_the_next() -> None:
    lifecycle = running()
    feed(lifecycle, [agent_lost()])
    again = Lifecycle(JOB, "run-1", T, earlier=lifecycle.state)
    feed(again, [restart(again.state)])
    assert feed(again, [deadline(Deadline.RESTART, T)]) == [PlanAttempt(2)]


def test_fence_counts_from_the_last_sign() -> None:
    spec = changed(JOB, link_timeout_s=10.0, grace_s=5.0, failure_grace_s=1.0)
    assert [fence_s(spec, age) for age in (0.0, 6.0, 26.0, 3600.0)] == [26.0, 20.0, 0.0, 0.0]
