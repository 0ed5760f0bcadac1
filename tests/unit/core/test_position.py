"""Steps over all epochs: the position that a task reports, its first step, and the furthest step of a run."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from making import attempt_planned, event, progressed, started, state_of

from orchestrator.core.progress.activity import began_at, furthest
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.state.events import FitSteps, Progress, TaskRestartPlanned
from orchestrator.core.state.position import Course, position

training = partial(Progress, phase="training")


def after(*said: Progress) -> Course:
    course = Course()
    for progress in said:
        course = course.after(progress)
    return course


def test_steps_count_over_all_epochs_if_known() -> None:
    rows = [
        (training(epoch=3, step=14, steps=45), 104),
        (training(epoch=3, step=0, steps=45), 90),
        (training(epoch=3, step=0, steps=1), 2),
        (training(epoch=1, step=12), 12),
        (training(step=12, steps=70), 12),
        (Progress(step=12), 12),
        (training(epoch=3, step=14), None),
        (training(epoch=3, step=14, steps=0), None),
        (training(epoch=3, steps=45), None),
        (training(epoch=0, step=14, steps=45), None),
        (training(epoch=-2, step=14, steps=45), None),
        (training(epoch=2, step=-1, steps=45), None),
        (Progress(phase="evaluating", epoch=3, step=14, steps=70), None),
        (Progress(phase="predicting", step=14), None),
        (Progress(phase="importing"), None),
        (Progress(), None),
    ]
    wrong = [(said, position(said)) for said, steps in rows if position(said) != steps]
    assert not wrong, wrong


def test_course_of_a_task() -> None:
    in_epoch = partial(training, steps=45)
    begun, late = in_epoch(epoch=3, step=0), in_epoch(epoch=4, step=1)
    evaluating = Progress(phase="evaluating", step=800)
    back = [training(epoch=epoch, step=step, steps=10) for epoch, step in ((2, 0), (5, 9), (1, 3))]
    fit = training(epoch=3, step=0, steps=5, fit=FitSteps(done=3, start=10, skips=True))
    rows: dict[str, tuple[Course, Course]] = {
        "resumed without a report: at an epoch's start": (
            after(in_epoch(epoch=3, step=14)),
            Course(90, 104, True),
        ),
        "a reported start": (after(in_epoch(epoch=3, step=20, start_step=100)), Course(100, 110, True)),
        "a late start": (after(late, late.model_copy(update={"start_step": 90})), Course(90, 136, True)),
        "the start stays while steps advance or go back": (after(*back, evaluating), Course(10, 49, True)),
        "resumed, before its first step": (after(Progress(phase="importing"), begun), Course(90, 90, False)),
        "an evaluation is not a step": (after(evaluating), Course(None, None, False)),
        "a later epoch means stepped": (after(begun, in_epoch(epoch=4, step=0)), Course(90, 135, True)),
        "a step at an unknown place": (after(training(epoch=2, step=3)), Course(None, None, True)),
        "steps that fit counts are the position": (after(fit), Course(10, 13, stepped=True, skips=True)),
        "steps of fit without a start": (after(training(fit=FitSteps(done=1))), Course(None, None, True)),
    }
    wrong = {what: course for what, (course, expected) in rows.items() if course != expected}
    assert not wrong, wrong


def test_run_counts_its_furthest_task_and_common_start() -> None:
    trained = progressed(1, epoch=3, step=0, steps=45), progressed(0, epoch=2, step=5, steps=45)
    history = [attempt_planned(2), started(0), started(1), *trained]
    states = [state_of(*history[:count]) for count in (3, 4, 5)]
    assert [(furthest(state), began_at(state)) for state in states] == [(None, None), (90, 90), (90, 45)]
    # A restarted task or attempt counts from zero.
    alone = event(TaskRestartPlanned, task=1, delay_s=1.0, text="SIGKILL")
    assert [furthest(state_of(*history, last)) for last in (alone, attempt_planned(2))] == [50, None]


def test_keras_lines_give_the_start_of_the_first_epoch() -> None:
    """Two epochs may be over before a line is read."""
    line = b"20/20 - 0s - 2ms/step - loss: 0.1000\n"
    text = b"Epoch 3/9\n" + line + b"Epoch 4/9\n" + line + b"Epoch 5/9\n"
    for cut in (1, 7, 1000):
        reader, last = LineProgress(), Progress()
        for start in range(0, len(text), cut):
            said = reader.read(text[start : start + cut], 0.0)
            if said is not None:
                last = last.model_copy(update=said.model_dump(exclude_unset=True))
        course = Course().after(last)
        assert (course.began_at, course.reached) == (40, 80), cut
    missed = LineProgress().read(b"e\nEpoch 3/9\n" + line, 0.0, missed=True)
    assert missed is not None and missed.start_step is None


counts = st.none() | st.integers(-3, 9)
phases = st.sampled_from([None, "training", "evaluating", "saving"])


@given(
    st.lists(st.builds(Progress, phase=phases, epoch=counts, step=counts, steps=counts, start_step=counts))
)
def test_course_never_decreases(said: list[Progress]) -> None:
    course = Course()
    for progress in said:
        later = course.after(progress)
        assert (later.reached or 0) >= (course.reached or 0)
        assert later.stepped >= course.stepped
        assert course.began_at is None or later.began_at is not None
        course = later
