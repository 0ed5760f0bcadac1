"""The activity of each task, which tasks wait for which, and the notice of a slow start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from event_making import (
    START,
    deadline,
    emptied,
    exited,
    feed,
    lifecycle_of,
    name,
    planned,
    ready,
    started,
    the_result,
)
from hypothesis import given
from hypothesis import strategies as st
from job_making import JOB, changed

from orchestrator.core.lifecycle.actions import Deadline, Happen
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.activity import (
    LATE_S,
    cluster_of,
    doing,
    has_arrived,
    join_names,
    late_start,
    progress_text,
    waiting_for,
)
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, Progress
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState, TaskPhase

LIMITED = changed(JOB, timeout_s=60.0)


def says(index: int, phase: str | None, mono: float = START, **facts: object) -> events.TaskProgressed:
    progress = Progress.model_validate({"phase": phase, **facts})
    return events.TaskProgressed(at=mono, mono=mono, task=name(index), progress=progress)


def cluster(count: int, *history: Event) -> RunState:
    """`count` workers that were all started, and what else happened."""
    state = RunState()
    for event in (planned(count), *map(started, range(count)), *history):
        state = apply(state, event)
    return state


def words(state: RunState) -> list[str]:
    return [doing(task, state) for task in state.tasks.values()]


def awaited(state: RunState) -> list[tuple[str, ...]]:
    return [waiting_for(task, state) for task in state.tasks.values()]


def test_activity_until_the_first_step() -> None:
    assert words(apply(RunState(), planned(1))) == [""]
    assert words(cluster(1)) == ["starting"]
    assert words(cluster(1, says(0, "importing"))) == ["importing tensorflow"]
    assert words(cluster(1, says(0, "starting"))) == ["starting"]
    assert words(cluster(1, ready(0))) == ["port open"]
    assert words(cluster(1, says(0, "waiting"))) == ["waiting"]
    assert words(cluster(1, says(0, "training"))) == ["training"]
    assert words(cluster(1, says(0, "training", epoch=2, epochs=5, step=37, steps=1200))) == [
        "epoch 2/5 step 37/1,200"
    ]


def test_tasks_to_be_forked_wait_for_the_preload() -> None:
    began = events.PreloadBegan(at=START, mono=START, modules=("tensorflow", "keras"))
    assert words(apply(apply(RunState(), planned(1)), began)) == ["preloading tensorflow, keras"]


def test_waiting_task_names_the_missing_ones() -> None:
    state = cluster(4, says(0, "waiting"), ready(0), says(1, "waiting"), says(2, "importing"))
    assert words(state) == [
        "waiting for worker:2 and worker:3",
        "waiting for worker:2 and worker:3",
        "importing tensorflow",
        "starting",
    ]
    assert awaited(state) == [("worker:2", "worker:3")] * 2 + [()] * 2
    assert not all(map(has_arrived, cluster_of(state)))


def test_open_port_means_joined_and_waiting() -> None:
    state = cluster(2, ready(0))
    assert words(state) == ["waiting for worker:1", "starting"]
    assert words(apply(state, ready(1))) == ["port open", "port open"]


def test_no_task_is_named_after_all_have_joined() -> None:
    state = cluster(2, says(0, "waiting"), says(1, "waiting"))
    assert words(state) == ["connecting", "connecting"]
    assert all(map(has_arrived, cluster_of(state)))


def test_training_task_does_not_wait() -> None:
    state = cluster(2, says(0, "training", step=3), ready(0))
    assert awaited(state) == [(), ()]
    assert words(state)[0] == "step 3"


def test_task_that_exited_before_joining_is_missing() -> None:
    state = cluster(2, says(0, "waiting"), says(1, "importing"), exited(1, 0))
    assert words(state)[0] == "waiting for worker:1"
    assert late_start(state, START) == "worker:0 waits for worker:1 (succeeded, exit code 0)"


def test_finished_silent_task_is_not_missing() -> None:
    assert words(cluster(2, ready(0), ready(1), exited(1, 0))) == ["port open", ""]


def test_tasks_without_server_and_evaluators_do_not_wait() -> None:
    state = cluster(3, ready(0), ready(1))
    bare = replace(state.tasks[name(0)], plan=replace_plan(state, 0, serves=False))
    evaluator = replace(state.tasks[name(1)], plan=replace_plan(state, 1, role="evaluator"))
    state = replace(state, tasks=state.tasks.with_task(bare).with_task(evaluator))
    assert words(state) == ["", "port open", "starting"]


def replace_plan(state: RunState, index: int, **changes: object) -> events.PlannedTask:
    return replace(state.tasks[name(index)].plan, **changes)


def test_ended_task_keeps_its_last_activity() -> None:
    state = cluster(2, says(0, "waiting"), says(1, "training", epoch=1, epochs=2), exited(0, 1))
    assert words(state) == ["waiting", "epoch 1/2"]


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(), ""),
        (Progress(phase="tuning", epoch=3), "epoch 3"),
        (Progress(phase="tuning"), "tuning"),
        (Progress(phase="evaluating", epoch=5, epochs=5, step=3, steps=70), "evaluating step 3/70"),
        (Progress(phase="predicting"), "predicting"),
        (Progress(phase="saving", epoch=5, step=70), "saving"),
        (Progress(phase="done", epoch=5, epochs=5, step=70, steps=70), "done"),
    ],
)
def test_progress_text(progress: Progress, text: str) -> None:
    assert progress_text(progress) == text


def test_long_list_of_names_is_shortened() -> None:
    assert [join_names("abcdefgh"[:count]) for count in (1, 2, 3, 4, 8)] == [
        "a", "a and b", "a, b and c", "a and 3 others", "a and 7 others",
    ]  # fmt: skip


def late(lifecycle: Lifecycle, mono: float) -> list[str]:
    """Return the notices when the deadline passes."""
    actions = lifecycle.handle(deadline(Deadline.START_LATE, mono))
    assert all(isinstance(action, Happen) for action in actions)
    happened = [action.event for action in actions if isinstance(action, Happen)]
    return [event.text for event in happened if isinstance(event, events.Noticed)]


def test_slow_start_is_noticed_once() -> None:
    lifecycle = lifecycle_of(JOB)
    feed(lifecycle, [planned(4), *map(started, range(4)), says(3, "importing", START + 1)])
    assert lifecycle.next_deadline() is None
    feed(lifecycle, [says(0, "waiting", START + 2)])
    due = START + 2 + LATE_S
    assert lifecycle.next_deadline() == (due, Deadline.START_LATE)
    feed(lifecycle, [says(1, "waiting", START + 5), says(2, "waiting", START + 5)])
    assert lifecycle.next_deadline() == (due, Deadline.START_LATE)
    assert late(lifecycle, due) == [
        "worker:0, worker:1 and worker:2 wait for worker:3 (importing tensorflow, 16s)"
    ]
    assert lifecycle.next_deadline() is None
    feed(lifecycle, [says(0, "waiting", START + 100)])
    assert lifecycle.next_deadline() is None


def test_start_that_makes_progress_is_not_noticed() -> None:
    lifecycle = lifecycle_of(JOB)
    feed(lifecycle, [planned(2), started(0), started(1), says(0, "waiting"), ready(1)])
    assert lifecycle.next_deadline() is None
    assert late(lifecycle, START + 100) == []


def test_no_task_is_late_during_a_teardown() -> None:
    lifecycle = lifecycle_of(JOB)
    feed(lifecycle, [planned(2), started(0), started(1), says(0, "waiting"), exited(1, 1)])
    assert all(which != Deadline.START_LATE for _, which in [lifecycle.next_deadline() or (0.0, "")])


def test_time_out_in_a_slow_start_names_the_missing_task() -> None:
    lifecycle = lifecycle_of(LIMITED)
    history: list[Event] = [
        planned(2),
        started(0),
        started(1),
        says(0, "waiting"),
        deadline(Deadline.TIMEOUT, START + 60),
    ]
    ends: list[Event] = [exited(0, None, 15), exited(1, None, 15, order=1), emptied()]
    feed(lifecycle, history)
    result = the_result(feed(lifecycle, ends))
    assert result.cause is not None
    assert result.cause.text == "not done after 60 s (--timeout); worker:0 waits for worker:1 (starting, 1m)"


phases = st.sampled_from(["importing", "starting", "waiting", "training", "done", "odd\x1b", None])
happenings = st.one_of(
    st.builds(says, st.integers(0, 2), phases),
    st.builds(ready, st.integers(0, 2)),
    st.builds(exited, st.integers(0, 2), st.sampled_from([0, 1])),
)


@given(st.lists(happenings, max_size=12))
def test_awaited_tasks_have_not_joined(history: list[Event]) -> None:
    state = cluster(3, *history)
    for task in state.tasks.values():
        assert isinstance(doing(task, state), str)
        for missing in waiting_for(task, state):
            other = state.tasks[missing]
            assert other is not task
            assert other.phase is not TaskPhase.RUNNING
            assert other.progress.phase not in ("waiting", "training", "done")
    assert (late_start(state, START) is None) == (not any(awaited(state)))
    if all(map(has_arrived, cluster_of(state))):
        assert not any(awaited(state))
