"""Progress that a task reports: each field counts for itself, and its length is bounded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.progress.reported import LONGEST_WORD, MOST_METRICS, parse_progress
from orchestrator.core.state.events import Progress, TaskProgressed, event_line, parse_event

# Any text at worst: each character 6 bytes in JSON.
_SOME_KB = 16 << 10


@pytest.mark.parametrize(
    "bad",
    [
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
    ],
)
def test_invalid_field_keeps_the_others(bad: str) -> None:
    assert parse_progress(f'{{"loss": 0.5, {bad}}}') == Progress(loss=0.5)
    assert parse_progress(f"{{{bad}}}") is None


def test_invalid_metric_keeps_the_others() -> None:
    told = parse_progress('{"metrics": {"a": 1, "b": "high", "c": null, "d": {}}}')
    assert told is not None and told.metrics == {"a": 1.0, "c": None}


def test_only_reported_fields_are_set() -> None:
    told = parse_progress('{"epoch": 3, "loss": null, "metrics": {}, "else": 1}')
    assert told is not None and told.model_fields_set == {"epoch", "loss", "bad_loss", "metrics"}


@pytest.mark.parametrize("text", ["", "3", "[]", "null", "{", "{}", '{"else": 1}', "[" * 100_000])
def test_other_json_is_not_progress(text: str) -> None:
    assert parse_progress(text) is None


@pytest.mark.parametrize("letter", ["x", "\x01", "\U0001f40c"])
def test_event_stays_small(letter: str) -> None:
    long = letter * 5_000
    metrics = {f"{number}{long}": 0.1234567890123456 for number in range(1000)}
    told = parse_progress(json.dumps({"phase": long, "epoch": 2, "metrics": metrics}))
    assert told is not None and told.epoch == 2
    assert told.phase == letter * LONGEST_WORD
    assert len(told.metrics) == MOST_METRICS
    event = TaskProgressed(at=1.0, mono=1.0, task="worker:0", progress=told)
    assert len(event_line(event)) < _SOME_KB


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
        event = TaskProgressed(at=1.0, mono=1.0, task="worker:0", progress=told)
        read = parse_event(event_line(event))
        assert isinstance(read, TaskProgressed) and read.progress.phase == told.phase
