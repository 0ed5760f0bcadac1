"""Signals as people write them."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.signal_names import parse_signal, short_name, short_names


def refusal(text: str) -> str:
    try:
        return f"read as {parse_signal(text)}"
    except ValueError as error:
        return str(error)


def test_names_and_numbers_are_read_or_refused_with_the_right_form() -> None:
    rows = dict.fromkeys(("KILL", "SIGKILL", "kill", "sigkill", " 9 ", "9", "009"), "read as 9")
    rows |= dict.fromkeys(("0", "65", "9" * 5000), "1 to 64")
    rows |= dict.fromkeys(("-9", "9.0", "²", "x" * 5000), "a number")
    rows |= {"": "KILL, TERM, STOP or CONT", "TREM": 'did you mean "TERM"?', "SIGUSR": 'did you mean "USR'}
    said = {text: refusal(text) for text in rows}
    wrong = {text: told for text, told in said.items() if rows[text] not in told or len(told) >= 100}
    assert not wrong, wrong


def test_every_signal_has_a_name_that_is_offered_and_read_back() -> None:
    assert [parse_signal(short_name(number)) for number in range(1, 65)] == [*range(1, 65)]
    assert {parse_signal(name) for name in short_names()} == set(map(int, signal.Signals))
    assert short_names()[0] == "KILL"


@given(st.text(max_size=20))
def test_anything_is_a_signal_or_refused(text: str) -> None:
    try:
        assert 1 <= parse_signal(text) <= 64
    except ValueError:
        return
