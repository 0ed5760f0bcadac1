"""The activity of each task, which tasks wait for which, and the notice of a slow start."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from making import START, attempt_planned, event, exited, job, progressed, ready, started, state_of
from story import Story

from orchestrator.core.lifecycle.actions import Deadline
from orchestrator.core.progress import activity
from orchestrator.core.progress.activity import LATE_S, cluster_of, doing, late_start, waiting_for
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, Progress
from orchestrator.core.state.state import RunState, TaskPhase


def says(index: int, phase: str | None, **facts: object) -> events.TaskProgressed:
    return progressed(index, phase=phase, **facts)


def cluster(count: int, *history: Event) -> RunState:
    """`count` workers that were all started, and what else happened."""
    return state_of(attempt_planned(count), *map(started, range(count)), *history)


def words(state: RunState) -> list[str]:
    return [doing(task, state) for task in state.tasks.values()]


def awaited(state: RunState) -> list[tuple[str, ...]]:
    return [waiting_for(task, state) for task in state.tasks.values()]


def test_activity_of_each_task() -> None:
    began = event(events.Preload, modules=("tensorflow", "keras"))
    place = {"epoch": 2, "epochs": 5, "step": 37, "steps": 1200}
    coordinated = ("chief:0", "ps:0", "worker:0")
    missing = cluster(4, says(0, "waiting"), ready(0), says(1, "waiting"), says(2, "importing"))
    state = cluster(3, ready(0), ready(1))
    # worker:0 has no server, worker:1 is an evaluator.
    for index, changes in enumerate(({"serves": False}, {"role": "evaluator"})):
        task = state.tasks[f"worker:{index}"]
        state = state.with_task(replace(task, plan=replace(task.plan, **changes)))
    rows: dict[str, tuple[RunState, list[str]]] = {
        "planned": (state_of(attempt_planned(1)), [""]),
        "to be forked": (state_of(attempt_planned(1), began), ["preloading tensorflow, keras"]),
        "started": (cluster(1), ["starting"]),
        "importing": (cluster(1, says(0, "importing")), ["importing tensorflow"]),
        "starting": (cluster(1, says(0, "starting")), ["starting"]),
        "ready": (cluster(1, ready(0)), ["port open"]),
        "waiting": (cluster(1, says(0, "waiting")), ["waiting"]),
        "training": (cluster(1, says(0, "training")), ["training"]),
        "at a step": (cluster(1, says(0, "training", **place)), ["epoch 2/5 step 37/1,200"]),
        # An open port means joined and waiting, also of another than the first worker.
        "one port open": (cluster(2, ready(0)), ["waiting for worker:1", "starting"]),
        "the other one": (cluster(2, ready(1)), ["starting", "waiting for worker:0"]),
        "a parameter server and a coordinator's worker serve others": (
            state_of(attempt_planned(coordinated), *map(started, coordinated), *map(ready, coordinated[1:])),
            ["starting", "port open", "port open"],
        ),
        "both ports open": (cluster(2, ready(0), ready(1)), ["port open", "port open"]),
        "all have joined": (cluster(2, says(0, "waiting"), says(1, "waiting")), ["connecting"] * 2),
        "one trains": (cluster(2, says(0, "training", step=3), ready(0)), ["step 3", "starting"]),
        "one ended": (cluster(2, ready(0), ready(1), exited(1, 0)), ["port open", ""]),
        "no server, evaluator": (state, ["", "port open", "starting"]),
        "an ended task keeps its last activity": (
            cluster(2, says(0, "waiting"), says(1, "training", epoch=1, epochs=2), exited(0, 1)),
            ["waiting", "epoch 1/2"],
        ),
        "two are missing": (
            missing,
            ["waiting for worker:2 and worker:3"] * 2 + ["importing tensorflow", "starting"],
        ),
    }
    wrong = {what: words(state) for what, (state, shown) in rows.items() if words(state) != shown}
    assert not wrong, wrong
    assert all(task.has_arrived for task in cluster_of(rows["all have joined"][0]))
    assert awaited(rows["one trains"][0]) == [(), ()]
    assert awaited(missing) == [("worker:2", "worker:3")] * 2 + [()] * 2
    assert not all(task.has_arrived for task in cluster_of(missing))
    gone = cluster(2, says(0, "waiting"), says(1, "importing"), exited(1, 0))
    assert words(gone)[0] == "waiting for worker:1"
    assert late_start(gone, START) == "worker:0 waits for worker:1 (succeeded, exit code 0)"


def test_text_of_progress_and_of_names() -> None:
    rows = [
        (Progress(), ""),
        (Progress(phase="tuning", epoch=3), "epoch 3"),
        (Progress(phase="tuning"), "tuning"),
        (Progress(phase="evaluating", epoch=5, epochs=5, step=3, steps=70), "evaluating step 3/70"),
        (Progress(phase="saving", epoch=5, step=70), "saving"),
        (Progress(phase="done", epoch=5, epochs=5, step=70, steps=70), "done"),
    ]
    assert [activity.progress_text(progress) for progress, _ in rows] == [text for _, text in rows]
    shown = ["a", "a and b", "a, b and c", "a and 3 others", "a and 7 others"]
    assert [activity.join_names("abcdefgh"[:count]) for count in (1, 2, 3, 4, 8)] == shown


def test_slow_start_is_noticed_once() -> None:
    story = Story(job(workers=4)).starts().at(1).reports(3, "importing")
    assert story.due is None
    due = (2 + LATE_S, Deadline.START_LATE)
    assert story.at(2).reports(0, "waiting").due == due
    assert story.at(5).reports(1, "waiting").reports(2, "waiting").due == due
    late = "worker:0, worker:1 and worker:2 wait for worker:3 (importing tensorflow, 16s)"
    assert story.at(due[0]).notices == (late,)
    assert story.at(100).reports(0, "waiting").due is None and story.notices == (late,)


def test_start_that_makes_progress_or_ends_is_not_noticed() -> None:
    story = Story(job()).starts().reports(0, "waiting").ready(1)
    assert story.due is None
    assert story.at(100).reaches(Deadline.START_LATE).notices == ()
    story = Story(job()).starts().reports(0, "waiting").exits(1, code=1)
    assert story.due is not None and story.due[1] != Deadline.START_LATE
    story = Story(job(timeout_s=60.0)).starts().reports(0, "waiting").at(60)
    assert story.cause.text == "not done after 60 s (--timeout); worker:0 waits for worker:1 (starting, 1m)"


phases = st.sampled_from(["importing", "starting", "waiting", "training", "done", "odd\x1b", None])
index = st.integers(0, 2)
happenings = (
    st.builds(says, index, phases)
    | st.builds(ready, index)
    | st.builds(exited, index, st.sampled_from([0, 1]))
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
    if all(task.has_arrived for task in cluster_of(state)):
        assert not any(awaited(state))
