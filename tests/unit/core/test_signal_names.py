"""Signals as people write them."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.signal_names import parse_signal, short_name, short_names


def test_signal_names_are_accepted_in_any_form() -> None:
    texts = ("KILL", "SIGKILL", "kill", "sigkill", " 9 ", "9", "009")
    assert [parse_signal(text) for text in texts] == [signal.SIGKILL] * len(texts)


def refusal(text: str) -> str:
    try:
        return f"read as {parse_signal(text)}"
    except ValueError as error:
        return str(error)


def test_unknown_signal_is_refused_with_the_right_form() -> None:
    rows = {
        "": "KILL, TERM, STOP or CONT",
        "0": "1 to 64",
        "65": "1 to 64",
        "9" * 5000: "1 to 64",
        "-9": "a number",
        "9.0": "a number",
        "TREM": 'did you mean "TERM"?',
        "SIGUSR": 'did you mean "USR',
        "²": "a number",
        "x" * 5000: "a number",
    }
    said = {text: refusal(text) for text in rows}
    wrong = {text: told for text, told in said.items() if rows[text] not in told or len(told) >= 100}
    assert not wrong, wrong


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
