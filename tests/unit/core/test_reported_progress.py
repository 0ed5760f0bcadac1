"""Progress that a task reports: each field counts for itself, its size is bounded, an event is due once a second."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from making import event

from orchestrator.core.progress.reported import (
    INTERVAL_S,
    LONGEST_WORD,
    MOST_METRICS,
    ProgressThrottle,
    parse_progress,
)
from orchestrator.core.state.events import FitSteps, Progress, TaskProgressed, event_line, parse_event

# Any text at worst: each character 6 bytes in JSON.
_SOME_KB = 16 << 10


def test_invalid_field_keeps_the_others() -> None:
    wrong = {}
    for bad in (
        '"epoch": 1e400',
        '"epoch": NaN',
        '"epoch": 99999999999999999999',
        '"step": [3]',
        '"steps": "many"',
        '"phase": 7',
        r'"phase": "a\ud800"',
        '"metrics": 4',
        r'"metrics": {"\ud800": 1}',
        '"metrics": {"accuracy": "good"}',
        '"examples_per_s": ' + "1" + "0" * 400,
        '"unknown": {"deep": [[[[]]]]}',
    ):
        found = parse_progress(f'{{"loss": 0.5, {bad}}}'), parse_progress(f"{{{bad}}}")
        if found != (Progress(loss=0.5), None):
            wrong[bad] = found
    assert not wrong, wrong
    told = parse_progress('{"metrics": {"a": 1, "b": "high", "c": null, "d": {}}}')
    assert told is not None and told.metrics == {"a": 1.0, "c": None}


def test_only_reported_fields_are_set() -> None:
    told = parse_progress('{"epoch": 3, "loss": null, "metrics": {}, "else": 1}')
    assert told is not None and told.model_fields_set == {"epoch", "loss", "bad_loss", "metrics"}


def test_other_json_is_not_progress() -> None:
    texts = ("", "3", "[]", "null", "{", "{}", '{"else": 1}', "[" * 100_000)
    assert [parse_progress(text) for text in texts] == [None] * len(texts)


def test_event_stays_small() -> None:
    for letter in ("x", "\x01", "\U0001f40c"):
        long = letter * 5_000
        metrics = {f"{number}{long}": 0.1234567890123456 for number in range(1000)}
        told = parse_progress(json.dumps({"phase": long, "epoch": 2, "metrics": metrics}))
        assert told is not None and told.epoch == 2
        assert told.phase == letter * LONGEST_WORD
        assert len(told.metrics) == MOST_METRICS
        assert len(event_line(event(TaskProgressed, task=0, progress=told))) < _SOME_KB


_TEXT = st.text(st.characters() | st.sampled_from("\ud800\udfff"))
_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(Progress.model_fields)), _ANY_JSON))
def test_any_reported_progress_becomes_a_readable_event(said: dict[str, object]) -> None:
    told = parse_progress(json.dumps(said))
    if told is not None:
        read = parse_event(event_line(event(TaskProgressed, task=0, progress=told)))
        assert isinstance(read, TaskProgressed) and read.progress.phase == told.phase


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
    own, read = (
        Progress(phase="tuning", epoch=2, loss=0.5),
        Progress(phase="training", epoch=1, step=7, loss=0.1),
    )
    assert merged(own, lines=read) == Progress(phase="tuning", epoch=2, step=7, loss=0.5, skips=True)
    # Every task reports its phase until its first step.
    evaluating = Progress(phase="evaluating", step=7)
    assert merged(Progress(phase="training"), lines=evaluating) == Progress(
        phase="evaluating", step=7, skips=True
    )
    throttle = ProgressThrottle()
    throttle.put_from_lines("a", evaluating)
    throttle.put("a", Progress(phase="waiting"))
    assert throttle.take(200.0) == [("a", Progress(phase="waiting", skips=True))]


def test_restarted_task_has_no_progress() -> None:
    throttle = ProgressThrottle()
    throttle.put("a", Progress(epoch=5, step=70))
    throttle.forget("a")
    assert throttle.take(100.0) == []
    throttle.put_from_lines("a", Progress(step=1))
    assert throttle.take(100.0) == [("a", Progress(step=1, skips=True))]


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
        for step, times in ((1, [100.0]), (2, [100.0 + expected - 0.01, 100.0 + expected])):
            for name in names:
                throttle.put(name, Progress(step=step))
            counts = [len(throttle.take(now)) for now in times]
            assert counts == [0, 1000][-len(times) :], longest_s
