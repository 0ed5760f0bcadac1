"""Steps over all epochs: what a task says of its place, where it began to count, and what was the furthest."""

from __future__ import annotations

import pytest
from event_making import name, planned, started
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.progress.activity import began_at, furthest
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.state.events import FitSteps, Progress, TaskProgressed, TaskRestartPlanned
from orchestrator.core.state.fold import apply
from orchestrator.core.state.position import Course, position
from orchestrator.core.state.state import RunState

counts = st.none() | st.integers(-3, 9)
words = st.builds(
    Progress,
    phase=st.sampled_from([None, "training", "evaluating", "saving"]),
    epoch=counts,
    step=counts,
    steps=counts,
    start_step=counts,
)


def after(*said: Progress) -> Course:
    course = Course()
    for progress in said:
        course = course.after(progress)
    return course


def tell(state: RunState, index: int, progress: Progress) -> RunState:
    return apply(state, TaskProgressed(at=1.0, mono=1.0, task=name(index), progress=progress))


def two_tasks() -> RunState:
    state = RunState()
    for event in (planned(2), started(0), started(1)):
        state = apply(state, event)
    return state


@pytest.mark.parametrize(
    ("progress", "steps_done"),
    [
        (Progress(phase="training", epoch=3, step=14, steps=45), 104),
        (Progress(phase="training", epoch=3, step=0, steps=45), 90),
        (Progress(phase="training", epoch=3, step=0, steps=1), 2),
        (Progress(phase="training", epoch=1, step=12), 12),
        (Progress(phase="training", step=12, steps=70), 12),
        (Progress(step=12), 12),
        (Progress(phase="training", epoch=3, step=14), None),
        (Progress(phase="training", epoch=3, step=14, steps=0), None),
        (Progress(phase="training", epoch=3, steps=45), None),
        (Progress(phase="training", epoch=0, step=14, steps=45), None),
        (Progress(phase="training", epoch=-2, step=14, steps=45), None),
        (Progress(phase="training", epoch=2, step=-1, steps=45), None),
        (Progress(phase="evaluating", epoch=3, step=14, steps=70), None),
        (Progress(phase="predicting", step=14), None),
        (Progress(phase="importing"), None),
        (Progress(), None),
    ],
)
def test_steps_count_over_all_epochs_if_known(progress: Progress, steps_done: int | None) -> None:
    assert position(progress) == steps_done


def test_resume_without_a_report_is_at_the_start_of_an_epoch() -> None:
    first_frame = Progress(phase="training", epoch=3, step=14, steps=45)
    assert after(first_frame) == Course(began_at=90, reached=104, stepped=True)


def test_reported_start_counts_at_any_time() -> None:
    first = Progress(phase="training", epoch=3, step=20, steps=45, start_step=100)
    assert after(first).began_at == 100
    late = Progress(phase="training", epoch=4, step=1, steps=45)
    assert after(late, late.model_copy(update={"start_step": 90})).began_at == 90


def test_start_stays_while_steps_advance_or_go_back() -> None:
    course = after(
        Progress(phase="training", epoch=2, step=0, steps=10),
        Progress(phase="training", epoch=5, step=9, steps=10),
        Progress(phase="training", epoch=1, step=3, steps=10),
        Progress(phase="evaluating", step=800),
    )
    assert course == Course(began_at=10, reached=49, stepped=True)


def test_before_its_first_step_a_resumed_task_has_not_stepped() -> None:
    begun = Progress(phase="training", epoch=3, step=0, steps=45)
    assert after(Progress(phase="importing"), begun) == Course(began_at=90, reached=90, stepped=False)
    assert not after(Progress(phase="evaluating", step=3)).stepped


def test_later_epoch_means_stepped_without_a_reported_step() -> None:
    told = [Progress(phase="training", epoch=epoch, step=0, steps=45) for epoch in (3, 4)]
    assert [after(*told[:count]).stepped for count in (1, 2)] == [False, True]


def test_step_at_an_unknown_place_counts_as_stepped() -> None:
    assert after(Progress(phase="training", epoch=2, step=3)) == Course(None, None, stepped=True)


def test_counted_steps_of_fit_are_the_position() -> None:
    counted = Progress(phase="training", epoch=3, step=0, steps=5, fit=FitSteps(done=3, start=10, skips=True))
    assert after(counted) == Course(began_at=10, reached=13, stepped=True, skips=True)
    silent = Progress(phase="training", fit=FitSteps(done=1))
    assert after(silent) == Course(None, None, stepped=True)


def test_run_counts_its_furthest_task_and_common_start() -> None:
    state = two_tasks()
    assert (furthest(state), began_at(state)) == (None, None)
    state = tell(state, 1, Progress(phase="training", epoch=3, step=0, steps=45))
    assert (furthest(state), began_at(state)) == (90, 90)
    state = tell(state, 0, Progress(phase="training", epoch=2, step=5, steps=45))
    assert (furthest(state), began_at(state)) == (90, 45)


def test_restarted_task_or_attempt_counts_from_zero() -> None:
    state = tell(two_tasks(), 1, Progress(phase="training", epoch=3, step=1, steps=45))
    again = TaskRestartPlanned(at=2.0, mono=2.0, task=name(1), delay_s=1.0, text="SIGKILL")
    assert furthest(apply(state, again)) is None
    assert furthest(apply(state, planned(2))) is None


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_keras_lines_give_the_start_of_the_first_epoch(cut: int) -> None:
    """Two epochs may be over before anybody has read a line."""
    text = (
        b"Epoch 3/9\n20/20 - 0s - 2ms/step - loss: 0.1000\n"
        b"Epoch 4/9\n20/20 - 0s - 2ms/step - loss: 0.1000\nEpoch 5/9\n"
    )
    reader, course, last = LineProgress(), Course(), Progress()
    for start in range(0, len(text), cut):
        said = reader.read(text[start : start + cut], 0.0)
        if said is not None:
            fields = {field: getattr(said, field) for field in said.model_fields_set}
            last = last.model_copy(update=fields)
    course = course.after(last)
    assert (course.began_at, course.reached) == (40, 80)


def test_missed_lines_give_no_start() -> None:
    reader = LineProgress()
    said = reader.read(b"e\nEpoch 3/9\n20/20 - 0s - 2ms/step - loss: 0.1000\n", 0.0, missed=True)
    assert said is not None and said.start_step is None


@given(st.lists(words))
def test_course_never_goes_back(said: list[Progress]) -> None:
    course = Course()
    for progress in said:
        later = course.after(progress)
        assert (later.reached or 0) >= (course.reached or 0)
        assert later.stepped >= course.stepped
        assert course.began_at is None or later.began_at is not None
        course = later
