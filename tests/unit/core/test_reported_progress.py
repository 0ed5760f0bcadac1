"""Progress that a task reports: each field counts for itself, its size is bounded, an event is due once a second.

Steps over all epochs: the position that a task reports, its first step, and the furthest step of a run.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from making import attempt_planned, event, progressed, started, state_of

from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.progress import reported
from orchestrator.core.progress.activity import began_at, furthest
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.progress.reported import INTERVAL_S, ProgressThrottle, parse_progress
from orchestrator.core.state.events import FitSteps, Progress, TaskRestartPlanned
from orchestrator.core.state.position import Course, position


def test_fields_are_read_each_for_itself() -> None:
    """An invalid one keeps the others. Words and metrics are bounded."""
    wrong = {}
    for bad in (
        *(
            '"epoch": 1e400',
            '"epoch": NaN',
            '"epoch": 99999999999999999999',
            '"step": [3]',
            '"steps": "many"',
        ),
        *('"phase": 7', r'"phase": "a\ud800"', '"metrics": 4', r'"metrics": {"\ud800": 1}'),
        *('"metrics": {"a": "good"}', f'"examples_per_s": 1{"0" * 400}', '"unknown": {"deep": [[[[]]]]}'),
    ):
        found = parse_progress(f'{{"loss": 0.5, {bad}}}'), parse_progress(f"{{{bad}}}")
        if found != (Progress(loss=0.5), None):
            wrong[bad] = found
    assert not wrong, wrong
    told = parse_progress('{"epoch": 3, "loss": null, "metrics": {"a": 1, "b": "x", "c": null}, "else": 1}')
    assert told is not None and told.metrics == {"a": 1.0, "c": None}
    assert told.model_fields_set == {"epoch", "loss", "bad_loss", "metrics"}
    many = {"phase": "\U0001f40c" * 5_000, "metrics": {f"{number}x": 0.1 for number in range(1000)}}
    told = parse_progress(json.dumps(many))
    assert told is not None
    assert (told.phase, len(told.metrics)) == ("\U0001f40c" * reported.LONGEST_WORD, reported.MOST_METRICS)
    texts = ("", "3", "[]", "null", "{", "{}", '{"else": 1}', "[" * 100_000)
    assert [parse_progress(text) for text in texts] == [None] * len(texts)


def test_first_progress_is_immediate_and_the_next_a_second_later() -> None:
    throttle = ProgressThrottle()
    assert throttle.due() is None
    throttle.put("a", Progress(step=1))
    assert throttle.take(100.0) == [("a", Progress(step=1))]
    throttle.put("a", Progress(step=2))
    assert throttle.due() == 100.0 + INTERVAL_S
    assert throttle.take(100.5) == []
    throttle.put("a", Progress(step=3))
    assert throttle.take(100.0 + INTERVAL_S) == [("a", Progress(step=3))]
    assert throttle.due() is None
    # Repeated progress is dropped.
    throttle.put("a", Progress(step=3))
    assert throttle.take(200.0) == []
    # The last progress is taken when the task exits.
    throttle.put("a", Progress(step=4))
    assert [throttle.take_last(task, 200.1) for task in "aab"] == [Progress(step=4), None, None]
    # A restarted task has none.
    throttle.put("a", Progress(epoch=5, step=70))
    throttle.forget("a")
    assert throttle.take(300.0) == []
    throttle.put_from_lines("a", Progress(step=1))
    assert throttle.take(300.0) == [("a", Progress(step=1, skips=True))]


@given(st.lists(st.tuples(st.floats(0, 0.9), st.integers(0, 100)), min_size=1))
def test_last_progress_always_arrives(words: list[tuple[float, int]]) -> None:
    throttle = ProgressThrottle()
    now, told, times = 100.0, [], []
    for pause, step in words:
        now += pause
        throttle.put("a", Progress(step=step))
        for _, progress in throttle.take(now):
            told.append(progress.step)
            times.append(now)
    due = throttle.due()
    told += [progress.step for _, progress in throttle.take(due)] if due is not None else []
    assert told[-1] == words[-1][1]
    assert all(later - earlier >= INTERVAL_S for earlier, later in pairwise(times))


def merged(*told: Progress, lines: Progress | None = None) -> Progress | None:
    """The progress that becomes of these reports, and then of what was read from lines."""
    throttle = ProgressThrottle()
    for progress in told:
        throttle.put("a", progress)
    if lines is not None:
        throttle.put_from_lines("a", lines)
    return throttle.latest_of("a")


def test_reports_are_merged() -> None:
    trained = Progress(phase="training", epoch=5, step=70, steps=70, loss=0.5, steps_per_s=9.0)
    accuracy = {"accuracy": 0.9}
    assert merged(Progress(epoch=2, loss=0.5), Progress(loss=0.4)) == Progress(epoch=2, loss=0.4)
    # Another phase has other steps.
    done = Progress(phase="done", epoch=5, loss=0.5, metrics=accuracy)
    assert merged(trained, Progress(phase="done", metrics=accuracy)) == done
    # The bootstrap does not count the steps of a script that reports them.
    counted = Progress(fit=FitSteps(done=1))
    assert merged(counted) == counted
    own = Progress(epoch=7, step=1, start_step=60)
    assert merged(counted, own.model_copy(update={"fit": FitSteps(done=2)}), counted) == own


def test_reported_fields_are_not_read_from_lines() -> None:
    own = Progress(phase="tuning", epoch=2, loss=0.5)
    read = Progress(phase="training", epoch=1, step=7, loss=0.1)
    assert merged(own, lines=read) == Progress(phase="tuning", epoch=2, step=7, loss=0.5, skips=True)
    # Every task reports its phase until its first step.
    evaluating = Progress(phase="evaluating", step=7)
    read = evaluating.model_copy(update={"skips": True})
    assert merged(Progress(phase="training"), lines=evaluating) == read
    throttle = ProgressThrottle()
    throttle.put_from_lines("a", evaluating)
    throttle.put("a", Progress(phase="waiting"))
    assert throttle.take(200.0) == [("a", Progress(phase="waiting", skips=True))]


def test_progress_of_many_tasks_is_due_less_often() -> None:
    names = [f"worker:{number}" for number in range(1000)]
    for longest_s, expected in ((inf, 10.0), (4.0, 4.0), (0.1, INTERVAL_S)):
        throttle = ProgressThrottle(longest_s=longest_s)
        for step, times in ((1, [100.0]), (2, [100.0 + expected - 0.01, 100.0 + expected])):
            for name in names:
                throttle.put(name, Progress(step=step))
            counts = [len(throttle.take(now)) for now in times]
            assert counts == [0, 1000][-len(times) :], longest_s


def test_only_progress_that_a_planned_fault_waits_for_passes_immediately() -> None:
    def after_step_1(chaos: str) -> ProgressThrottle:
        throttle = ProgressThrottle(parse_chaos(chaos))
        throttle.put("a", Progress(phase="training", epoch=1, steps=12, step=1))
        assert throttle.take(100.0)
        return throttle

    step, epoch = "kill 0 at step 5; kill 0 at step 30", "kill 0 at epoch 3"
    rows: list[tuple[str, list[Progress], list[bool]]] = [
        (step, [Progress(step=4), Progress(step=5), Progress(step=6)], [False, True, False]),
        # Merged with later ones.
        (step, [Progress(step=9), Progress(step=29), Progress(step=31)], [True, False, True]),
        # A step of a later epoch counts over all epochs.
        ("kill 0 at step 20", [Progress(epoch=2, step=7), Progress(epoch=2, step=8)], [False, True]),
        (epoch, [Progress(epoch=2, step=0), Progress(epoch=3, step=0)], [False, True]),
    ]
    for chaos, reports, passes in rows:
        throttle = after_step_1(chaos)
        for progress, is_awaited in zip(reports, passes, strict=True):
            throttle.put("a", progress)
            due = throttle.due()
            assert due is not None and (due <= 100.1) is is_awaited
            assert [each.step for _, each in throttle.take(100.1)] == ([progress.step] if is_awaited else [])
    # Any task can be the awaited one.
    throttle = after_step_1(step)
    for task, now in (("b", 100.1), ("a", 100.2)):
        throttle.put(task, Progress(step=5))
        assert throttle.take(now)
    throttle.put("a", Progress(step=6))
    assert throttle.due() == 100.2 + INTERVAL_S


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
