"""Signals as people write them."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.signal_names import parse_signal, short_name, short_names


@pytest.mark.parametrize("text", ["KILL", "SIGKILL", "kill", "sigkill", " 9 ", "9", "009"])
def test_signal_names_are_accepted_in_any_form(text: str) -> None:
    assert parse_signal(text) == signal.SIGKILL


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("", "KILL, TERM, STOP or CONT"),
        ("0", "1 to 64"),
        ("65", "1 to 64"),
        ("9" * 5000, "1 to 64"),
        ("-9", "a number"),
        ("9.0", "a number"),
        ("TREM", 'did you mean "TERM"?'),
        ("SIGUSR", 'did you mean "USR'),
        ("²", "a number"),
        ("x" * 5000, "a number"),
    ],
)
def test_unknown_signal_is_refused_with_the_right_form(text: str, right: str) -> None:
    with pytest.raises(ValueError) as told:
        parse_signal(text)
    assert right in str(told.value)
    assert len(str(told.value)) < 100


@given(st.integers(1, 64))
def test_every_number_has_a_name_that_is_read_back(number: int) -> None:
    assert parse_signal(short_name(number)) == number


@given(st.text(max_size=20))
def test_anything_is_a_signal_or_refused(text: str) -> None:
    try:
        assert 1 <= parse_signal(text) <= 64
    except ValueError:
        return


def test_offered_signals_are_complete() -> None:
    assert {parse_signal(name) for name in short_names()} == set(map(int, signal.Signals))
    assert short_names()[0] == "KILL"
