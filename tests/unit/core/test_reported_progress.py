"""Progress that a task reports: each field counts for itself, its size is bounded, an event is due once a second."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.progress.reported import (
    INTERVAL_S,
    LONGEST_WORD,
    MOST_METRICS,
    ProgressThrottle,
    parse_progress,
)
from orchestrator.core.state.events import FitSteps, Progress


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
    told = parse_progress(
        '{"epoch": 3, "loss": null, "metrics": {"a": 1, "b": "high", "c": null}, "else": 1}'
    )
    assert told is not None and told.metrics == {"a": 1.0, "c": None}
    assert told.model_fields_set == {"epoch", "loss", "bad_loss", "metrics"}
    many = {"phase": "\U0001f40c" * 5_000, "metrics": {f"{number}x": 0.1 for number in range(1000)}}
    told = parse_progress(json.dumps(many))
    assert told is not None
    assert (told.phase, len(told.metrics)) == ("\U0001f40c" * LONGEST_WORD, MOST_METRICS)
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
