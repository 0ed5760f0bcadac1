"""The fold of the events: what each of them makes of the state. Events as lines, and the table of tasks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import (
    attempt_end,
    attempt_planned,
    event,
    exited,
    not_started,
    planned_task,
    progressed,
    ready,
    started,
    state_of,
)
from pydantic import ValidationError

from orchestrator.core.state import events
from orchestrator.core.state.changes import Matching, changed_tasks
from orchestrator.core.state.events import Event, StopReason, TeardownReason, event_line, parse_event
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunPhase, RunState, TaskPhase, TaskState
from orchestrator.core.state.tasks import Tasks
from orchestrator.store.runs import run_end


def began(reason: TeardownReason, mono: float = 1000.0) -> events.TeardownBegan:
    return event(events.TeardownBegan, mono, reason=reason, grace_s=0.5)


stop = partial(event, events.StopRequested)
ONE, STARTED = attempt_planned(1), started(0)
ENDING, LOST = began(TeardownReason.REQUEST), event(events.AgentLost, reason="the agent was lost")


def test_phase_of_a_task() -> None:
    rows = [
        ([], TaskPhase.PENDING),
        ([STARTED], TaskPhase.STARTING),
        ([STARTED, ready(0)], TaskPhase.RUNNING),
        ([not_started(0)], TaskPhase.FAILED),
        ([STARTED, exited(0)], TaskPhase.SUCCEEDED),
        ([STARTED, exited(0, 1)], TaskPhase.FAILED),
        ([STARTED, exited(0, signal=9)], TaskPhase.FAILED),
        ([STARTED, ready(0), ENDING], TaskPhase.STOPPING),
        ([STARTED, ENDING, exited(0)], TaskPhase.STOPPED),
        ([STARTED, ENDING, exited(0, signal=15)], TaskPhase.STOPPED),
        ([STARTED, exited(0), began(TeardownReason.FINISHED)], TaskPhase.SUCCEEDED),
        ([STARTED, exited(0, 1), ready(0)], TaskPhase.FAILED),
        ([ENDING], TaskPhase.PENDING),
        ([ENDING, STARTED], TaskPhase.STOPPING),
        ([STARTED, ready(0), LOST], TaskPhase.LOST),
        ([STARTED, exited(0, 1), LOST], TaskPhase.FAILED),
        ([LOST], TaskPhase.PENDING),
    ]
    tasks = [state_of(ONE, *history).tasks["worker:0"] for history, _ in rows]
    assert [task.phase for task in tasks] == [phase for _, phase in rows]
    live = {TaskPhase.STARTING, TaskPhase.RUNNING, TaskPhase.STOPPING}
    assert [task.is_live for task in tasks] == [phase in live for _, phase in rows]


def test_phase_of_the_run() -> None:
    assert (RunState().phase, RunState().exit_code, RunState().ended_mono) == (RunPhase.STARTING, None, None)
    running = state_of(attempt_planned(2), started(0), started(1), ready(0), ready(1))
    stopping = apply(running, ENDING)
    # A plan after a stop keeps the stop.
    planned = state_of(stop(reason=StopReason.DOWN), ENDING, attempt_planned(2))
    assert [state.phase for state in (running, stopping, planned)] == ["running", "stopping", "stopping"]
    for outcome in ("succeeded", "failed", "stopped", "timed_out", "lost"):
        ended = apply(stopping, event(events.RunEndedEvent, 5.0, outcome=outcome, exit_code=7))
        assert (ended.phase, ended.exit_code, ended.ended_mono) == (outcome, 7, 5.0) and ended.phase.is_end


def test_first_stop_and_teardown_count() -> None:
    stops = stop(reason=StopReason.DOWN), stop(reason=StopReason.INTERRUPT)
    state = state_of(ONE, *stops, began(TeardownReason.FAILURE, 3.0), began(TeardownReason.REQUEST, 9.0))
    assert state.stop is not None and state.stop.reason is StopReason.DOWN
    assert (state.teardown, state.teardown_mono) == (TeardownReason.FAILURE, 3.0)
    noticed = [event(events.Noticed, text="look", verbose=verbose) for verbose in (True, False)]
    assert state_of(ONE, *noticed).notices == ("look",)


def test_state_is_never_mutated() -> None:
    before = state_of(attempt_planned(2), STARTED)
    tasks = dict(before.tasks)
    for each in (started(1), ready(0), exited(0, 1), began(TeardownReason.FAILURE), LOST):
        apply(before, each)
    assert before.tasks == tasks and before.phase is RunPhase.STARTING


def test_event_is_one_line_and_reads_back() -> None:
    """Also that of a newer version. A loss that is not finite is left out."""
    metrics: dict[str, float | None] = {"é\n\u2028": 1e300, "none": None}
    told = progressed(0, 1.5, phase="a\nb", epoch=-(2**63), loss=0.1, metrics=metrics)
    line = event_line(told)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and parse_event(line) == told
    read = parse_event(event_line(progressed(0, loss=float("nan"), step=3)))
    assert read == progressed(0, step=3, loss=None)
    newer = b'{"type": "task_ready", "at": 1, "mono": 1, "task": "worker:0", "mood": "good"}'
    assert parse_event(newer) == ready(0, 1)
    for wrong in (newer.replace(b"task_ready", b"unheard_of"), newer.replace(b'mono": 1', b'mono": NaN')):
        with pytest.raises(ValidationError):
            parse_event(wrong)
    fields = {kind.__name__: kind.model_fields["type"] for kind in get_args(Event)}
    others = [name for name, field in fields.items() if (field.default,) != get_args(field.annotation)]
    assert not others, others


def test_run_is_preloading_until_done_or_refused() -> None:
    begun = state_of(event(events.Preload, modules=("tensorflow", "keras")), ONE)
    assert begun.preloading == ("tensorflow", "keras")
    for fields in ({"modules": ("tensorflow", "keras"), "seconds": 2.14}, {"refused": "it has 3 threads"}):
        assert apply(begun, event(events.Preload, **fields)).preloading == ()
    # A lost run has no TensorBoard.
    serves = state_of(ONE, event(events.TensorBoardServes, url="http://127.0.0.1:6006/"))
    assert serves.tensorboard and run_end.mark_lost(serves, 2.0).tensorboard is None


def test_full_disk_is_kept_while_the_task_waits_for_its_restart() -> None:
    again = event(events.TaskRestartPlanned, task=0, delay_s=1.0, text="exit 1")
    state = state_of(ONE, STARTED, exited(0, 1), again, event(events.DiskFull, task=0, reason="/data: full"))
    waiting = state.tasks["worker:0"]
    assert (waiting.phase, waiting.full_disk) == (TaskPhase.PENDING, None)
    assert waiting.before_restart is not None and waiting.before_restart.full_disk == "/data: full"


def test_stacks_of_a_user_do_not_replace_those_of_a_deadline() -> None:
    by_limit = event(events.StacksTaken, why="stall_limit", stacks={})
    by_user = event(events.StacksTaken, why=events.StacksTaken.BY_USER, stacks={})
    assert state_of(ONE, by_limit, by_user).stacks == by_limit
    assert state_of(ONE, by_user).stacks is None


CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(TaskPhase)), max_size=30)


@given(st.integers(1, 200), CHANGES)
def test_table_is_a_mapping_in_plan_order(count: int, changes: list[tuple[int, TaskPhase]]) -> None:
    """Also if a damaged file names a task twice."""
    model = {f"worker:{index}": TaskState(plan=planned_task(index)) for index in range(count)}
    table = Tasks([*model.values(), *model.values()])
    for number, phase in changes:
        before, old = table, dict(model)
        task = replace(model[f"worker:{number % count}"], phase=phase, restarts=number)
        table, model[task.name] = table.with_task(task), task
        assert list(before.values()) == list(old.values())
        assert table[task.name] is task and table.get("worker:x") is None
    assert list(table.items()) == list(model.items()) and (len(table), dict(table)) == (count, model)
    for phase in TaskPhase:
        assert table.count((phase,)) == sum(task.phase is phase for task in model.values())
    assert table.count(tuple(TaskPhase), without="worker") == 0


@given(st.lists(st.sampled_from([0, 1, 2, "all", "none"]), max_size=20))
def test_matching_tasks_follow_the_changes(changes: list[int | str]) -> None:
    """Also after another attempt with fewer tasks has begun."""
    live, state = Matching(lambda task, state: task.is_live), RunState()
    others = {"all": began(TeardownReason.FAILURE), "none": event(events.Noticed, text="x")}
    again = event(events.RestartPlanned, ended=attempt_end(), delay_s=0)
    made = [others[each] if isinstance(each, str) else started(each) for each in changes]
    for attempt in (1, 2):
        for each in (attempt_planned(5 - attempt, attempt), *made, exited(0, 1), again):
            before, state = state.tasks, apply(state, each)
            live.update(state, changed_tasks(before, state, each))
            assert live.names == {task.name for task in state.tasks.values() if task.is_live}
