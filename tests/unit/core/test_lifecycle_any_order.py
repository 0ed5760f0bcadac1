"""Events in any order cause one teardown, one end, and no start after a stop."""

from __future__ import annotations

import signal
from dataclasses import replace

from event_making import (
    COLLATERAL,
    OWN,
    agent_lost,
    deadline,
    emptied,
    exited,
    feed,
    lifecycle_of,
    not_started,
    planned,
    ready,
    started,
    starts,
    stop,
    teardowns,
)
from hypothesis import given
from hypothesis import strategies as st
from job_making import JOB, changed

from orchestrator.core.lifecycle.actions import Deadline, Finish
from orchestrator.core.state.events import (
    AttemptPlanned,
    Event,
    StopReason,
    StopRequested,
    event_line,
    parse_event,
)
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState, TaskPhase

TASKS = 3
indices = st.integers(0, TASKS - 1)
exits = st.builds(
    exited,
    indices,
    st.sampled_from([0, 0, 1, 3, 143]),
    st.sampled_from([None, None, signal.SIGKILL, signal.SIGTERM]),
    st.integers(0, 5),
    st.sampled_from([None, OWN, COLLATERAL]),
    st.dictionaries(indices.map("worker:{}".format), st.sampled_from("RSTtZX")),
)
inner = st.one_of(
    st.builds(started, indices),
    st.builds(not_started, indices),
    st.builds(ready, indices),
    exits,
    st.builds(stop, st.sampled_from(StopReason), st.booleans()),
    st.builds(deadline, st.sampled_from([Deadline.TIMEOUT, Deadline.TEARDOWN])),
    st.just(agent_lost()),
)
stops = st.lists(st.builds(stop, st.sampled_from(StopReason), st.booleans()), max_size=2)
histories = st.builds(lambda before, after: [*before, planned(TASKS), *after], stops, st.lists(inner))


@given(histories, st.booleans())
def test_every_history_ends_in_one_finish(history: list[Event], limited: bool) -> None:
    lifecycle = lifecycle_of(changed(JOB, timeout_s=60.0) if limited else JOB)
    actions = feed(lifecycle, [*history, emptied(), *history, emptied()])
    assert sum(isinstance(action, Finish) for action in actions) == 1
    assert isinstance(actions[-1], Finish)
    assert lifecycle.next_deadline() is None


@given(histories)
def test_teardown_is_repeated_only_with_a_shorter_grace_period(history: list[Event]) -> None:
    graces = [action.grace_s for action in teardowns(feed(lifecycle_of(), history))]
    assert len(graces) <= 3
    assert graces == sorted(set(graces), reverse=True)


@given(histories)
def test_tasks_start_at_most_once_and_never_after_a_stop(history: list[Event]) -> None:
    actions = feed(lifecycle_of(), history)
    stopped_first = False
    for event in history:
        if isinstance(event, AttemptPlanned):
            break
        stopped_first = stopped_first or isinstance(event, StopRequested)
    assert starts(actions) == (0 if stopped_first else 1)


@given(histories)
def test_result_is_consistent(history: list[Event]) -> None:
    actions = feed(lifecycle_of(), [*history, emptied()])
    result = actions[-1].result if isinstance(actions[-1], Finish) else None
    assert result is not None
    assert (result.exit_code == 0) == (result.outcome == "succeeded")
    if result.outcome == "succeeded":
        assert {task.state for task in result.tasks} == {"succeeded"}
        assert result.cause is None
    if result.outcome == "failed":
        assert result.cause is not None
    if result.outcome == "timed_out":
        assert result.exit_code == 124
    if result.outcome == "stopped":
        assert result.exit_code in (130, 141, 143)


@given(histories)
def test_state_equals_fold_of_written_events(history: list[Event]) -> None:
    """A client that reads the events sees the same tasks as the supervisor."""
    lifecycle = lifecycle_of()
    seen = RunState()
    for event in history:
        lifecycle.handle(event)
        seen = apply(seen, parse_event(event_line(event)))
    ours = {name: replace(task, ended_mono=None) for name, task in lifecycle.state.tasks.items()}
    theirs = {name: replace(task, ended_mono=None) for name, task in seen.tasks.items()}
    if lifecycle.state.agent_lost == seen.agent_lost:
        assert ours == theirs
    assert all(task.phase is not TaskPhase.RUNNING or task.pid is not None for task in seen.tasks.values())
