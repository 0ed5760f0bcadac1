"""At most one progress event a second a task, and the last word is never lost."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.progress.reported import INTERVAL_S, ProgressThrottle
from orchestrator.core.state.events import FitSteps, Progress


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


def test_progress_in_between_is_merged() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(epoch=2, loss=0.5))
    throttle.put("a", Progress(loss=0.4))
    assert throttle.take(100.0) == [("a", Progress(epoch=2, loss=0.4))]


def test_last_progress_is_taken_when_the_task_exits() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(step=1))
    throttle.take(100.0)
    throttle.put("a", Progress(step=2))
    assert throttle.take_last("a", 100.1) == Progress(step=2)
    assert throttle.take_last("a", 100.2) is None
    assert throttle.take_last("b", 100.2) is None


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


def test_reported_fields_are_not_read_from_lines() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(phase="tuning", epoch=2, loss=0.5))
    throttle.put_from_lines("a", Progress(phase="training", epoch=1, step=7, loss=0.1))
    assert throttle.take(100.0) == [("a", Progress(phase="tuning", epoch=2, step=7, loss=0.5, skips=True))]


def test_lines_replace_phases_before_the_first_step() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(phase="training"))
    throttle.put_from_lines("a", Progress(phase="evaluating", step=7))
    assert throttle.take(100.0) == [("a", Progress(phase="evaluating", step=7, skips=True))]
    throttle.put("a", Progress(phase="waiting"))
    assert throttle.take(200.0) == [("a", Progress(phase="waiting", skips=True))]


def test_other_phase_has_other_steps() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(phase="training", epoch=5, step=70, steps=70, loss=0.5, steps_per_s=9.0))
    throttle.put("a", Progress(phase="done", metrics={"accuracy": 0.9}))
    assert throttle.take(100.0) == [
        ("a", Progress(phase="done", epoch=5, loss=0.5, metrics={"accuracy": 0.9}))
    ]


def test_restarted_task_has_no_progress() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(epoch=5, step=70))
    throttle.forget("a")
    assert throttle.take(100.0) == []
    throttle.put_from_lines("a", Progress(step=1))
    assert throttle.take(100.0) == [("a", Progress(step=1, skips=True))]


def test_script_that_reports_its_steps_is_not_counted_by_the_bootstrap() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(fit=FitSteps(done=1)))
    assert throttle.take(100.0) == [("a", Progress(fit=FitSteps(done=1)))]
    throttle.put("a", Progress(epoch=7, step=1, start_step=60, fit=FitSteps(done=2, start=0)))
    throttle.put("a", Progress(fit=FitSteps(done=3, start=0)))
    assert throttle.take(200.0) == [("a", Progress(epoch=7, step=1, start_step=60))]


def test_repeated_progress_is_dropped() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(step=1))
    throttle.take(100.0)
    throttle.put("a", Progress(step=1))
    assert throttle.take(200.0) == []


def test_progress_of_many_tasks_is_due_less_often() -> None:
    names = [f"worker:{number}" for number in range(1000)]
    for longest_s, expected in ((inf, 10.0), (4.0, 4.0), (0.1, INTERVAL_S)):
        throttle = ProgressThrottle(longest_s=longest_s)
        for step in (1, 2):
            for name in names:
                throttle.put(name, Progress(step=step))
            if step == 1:
                assert len(throttle.take(100.0)) == 1000
        assert throttle.take(100.0 + expected - 0.01) == []
        assert len(throttle.take(100.0 + expected)) == 1000
