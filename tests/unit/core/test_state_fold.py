"""The fold of the events: what each of them makes of the state."""

from __future__ import annotations

from typing import get_args

import pytest
from event_making import agent_lost, began, exited, not_started, planned, ready, started, stop
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.core.state import events
from orchestrator.core.state.events import (
    Event,
    Progress,
    StopReason,
    TeardownReason,
    event_line,
    parse_event,
)
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunPhase, RunState, TaskPhase
from orchestrator.store.runs import run_end


def folded(*history: Event) -> RunState:
    state = RunState()
    for event in history:
        state = apply(state, event)
    return state


def phases(*history: Event) -> list[TaskPhase]:
    return [task.phase for task in folded(*history).tasks.values()]


ONE = planned(1)


@pytest.mark.parametrize(
    ("history", "phase"),
    [
        ([ONE], TaskPhase.PENDING),
        ([ONE, started(0)], TaskPhase.STARTING),
        ([ONE, started(0), ready(0)], TaskPhase.RUNNING),
        ([ONE, not_started(0)], TaskPhase.FAILED),
        ([ONE, started(0), exited(0, 0)], TaskPhase.SUCCEEDED),
        ([ONE, started(0), exited(0, 1)], TaskPhase.FAILED),
        ([ONE, started(0), exited(0, signal=9)], TaskPhase.FAILED),
        ([ONE, started(0), ready(0), began(TeardownReason.REQUEST)], TaskPhase.STOPPING),
        ([ONE, started(0), began(TeardownReason.REQUEST), exited(0, 0)], TaskPhase.STOPPED),
        ([ONE, started(0), began(TeardownReason.REQUEST), exited(0, signal=15)], TaskPhase.STOPPED),
        ([ONE, started(0), exited(0, 0), began(TeardownReason.FINISHED)], TaskPhase.SUCCEEDED),
        ([ONE, started(0), exited(0, 1), ready(0)], TaskPhase.FAILED),
        ([ONE, began(TeardownReason.REQUEST)], TaskPhase.PENDING),
        ([ONE, began(TeardownReason.REQUEST), started(0)], TaskPhase.STOPPING),
        ([ONE, started(0), ready(0), agent_lost()], TaskPhase.LOST),
        ([ONE, started(0), exited(0, 1), agent_lost()], TaskPhase.FAILED),
        ([ONE, agent_lost()], TaskPhase.PENDING),
    ],
)
def test_phase_of_a_task(history: list[Event], phase: TaskPhase) -> None:
    assert phases(*history) == [phase]


def test_phase_of_the_run() -> None:
    assert (RunState().phase, RunState().exit_code, RunState().ended_mono) == (RunPhase.STARTING, None, None)
    running = folded(planned(2), started(0), started(1), ready(0), ready(1))
    assert running.phase is RunPhase.RUNNING
    stopping = apply(running, began(TeardownReason.REQUEST))
    assert stopping.phase is RunPhase.STOPPING
    for outcome in ("succeeded", "failed", "stopped", "timed_out", "lost"):
        ended = apply(stopping, events.RunEndedEvent(at=1, mono=5.0, outcome=outcome, exit_code=7))
        assert (ended.phase, ended.exit_code, ended.ended_mono) == (outcome, 7, 5.0)
        assert ended.phase.is_end


def test_plan_after_a_stop_keeps_the_stop() -> None:
    state = folded(stop(), began(TeardownReason.REQUEST), planned(2))
    assert state.phase is RunPhase.STOPPING


def test_failed_start_counts_in_the_order_of_exits() -> None:
    """Which are counted over all attempts: it does not come before one that was earlier in its own."""
    later = folded(planned(3), exited(0, 1, order=4), not_started(1).model_copy(update={"order": 5}))
    assert [task.exit_order for task in later.tasks.values()] == [4, 5, None]
    # As it was written before it had a place: behind all that had ended by then.
    older = folded(planned(3), exited(0, 1, order=4), not_started(1), not_started(2))
    assert [task.exit_order for task in older.tasks.values()] == [4, 5, 6]
    assert folded(planned(1), not_started(0)).tasks["worker:0"].exit_order == 0


def test_live_tasks() -> None:
    histories = ([ONE], [ONE, started(0)], [ONE, started(0), exited(0, 1)], [ONE, not_started(0)])
    assert [folded(*history).tasks["worker:0"].is_live for history in histories] == [
        False,
        True,
        False,
        False,
    ]
    assert folded(ONE, started(0), began(TeardownReason.REQUEST)).tasks["worker:0"].is_live


def test_first_stop_and_teardown_count() -> None:
    state = folded(
        planned(1),
        stop(StopReason.DOWN),
        stop(StopReason.INTERRUPT),
        began(TeardownReason.FAILURE, mono=3.0),
        began(TeardownReason.REQUEST, mono=9.0),
    )
    assert state.stop is not None and state.stop.reason is StopReason.DOWN
    assert (state.teardown, state.teardown_mono) == (TeardownReason.FAILURE, 3.0)


def test_state_is_never_mutated() -> None:
    before = folded(planned(2), started(0))
    tasks = dict(before.tasks)
    for event in (started(1), ready(0), exited(0, 1), began(TeardownReason.FAILURE), agent_lost()):
        apply(before, event)
    assert before.tasks == tasks
    assert before.phase is RunPhase.STARTING


numbers = st.floats(allow_nan=False, allow_infinity=False)
progress = st.builds(
    Progress,
    phase=st.none() | st.text(),
    epoch=st.none() | st.integers(-(2**63), 2**63 - 1),
    loss=st.none() | numbers,
    metrics=st.dictionaries(st.text(), st.none() | numbers),
)


@given(st.floats(0, 1e12), progress)
def test_event_is_one_line_and_reads_back(mono: float, made: Progress) -> None:
    event = events.TaskProgressed(at=mono, mono=mono, task="worker:0", progress=made)
    line = event_line(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert parse_event(line) == event


def test_nan_loss_keeps_the_other_values() -> None:
    diverged = events.TaskProgressed(at=0, mono=0, task="worker:0", progress=Progress(loss=float("nan")))
    read = parse_event(event_line(diverged))
    assert isinstance(read, events.TaskProgressed) and read.progress.loss is None


def test_event_of_a_newer_version_is_readable() -> None:
    line = b'{"type": "task_ready", "at": 1, "mono": 1, "task": "worker:0", "mood": "good"}'
    assert parse_event(line) == events.TaskReady(at=1, mono=1, task="worker:0")
    with pytest.raises(ValidationError):
        parse_event(b'{"type": "unheard_of", "at": 1, "mono": 1}')


def test_lost_run_has_no_tensorboard() -> None:
    served = events.TensorBoardServes(at=1, mono=1, url="http://127.0.0.1:6006/")
    state = folded(ONE, served)
    assert state.tensorboard == served.url
    assert run_end.mark_lost(state, 2.0).tensorboard is None


def test_full_disk_is_kept_while_the_task_waits_for_its_restart() -> None:
    again = events.TaskRestartPlanned(at=2, mono=2.0, task="worker:0", delay_s=1.0, text="exit 1")
    full = events.DiskFull(at=2, mono=2.0, task="worker:0", reason="/data: full")
    given_up = events.TaskGivenUp(at=3, mono=3.0, task="worker:0")
    waiting = folded(ONE, started(0), exited(0, 1), again, full)
    assert (waiting.tasks["worker:0"].phase, waiting.tasks["worker:0"].full_disk) == (TaskPhase.PENDING, None)
    failed = apply(waiting, given_up).tasks["worker:0"]
    assert (failed.phase, failed.exit_code, failed.full_disk) == (TaskPhase.FAILED, 1, "/data: full")


def test_planned_task_has_no_history() -> None:
    task = folded(ONE).tasks["worker:0"]
    unknown = (task.pid, task.started_mono, task.since_mono, task.ended_mono, task.exit_code, task.signal)
    assert set(unknown) == {None}


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_type_of_an_event_is_the_one_it_is_read_by(kind: type[Event]) -> None:
    field = kind.model_fields["type"]
    assert (field.default,) == get_args(field.annotation)


def test_event_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        started(0).mono = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("mono", [float("nan"), float("inf")])
def test_event_needs_a_finite_time(mono: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        events.TaskReady(at=1.0, mono=mono, task="worker:0")


def test_stacks_of_a_user_do_not_replace_those_of_a_deadline() -> None:
    by_limit = events.StacksTaken(at=1, mono=1, why="stall_limit", stacks={})
    by_user = events.StacksTaken(at=2, mono=2, why=events.StacksTaken.BY_USER, stacks={})
    assert folded(ONE, by_limit, by_user).stacks == by_limit
    assert folded(ONE, by_user).stacks is None
