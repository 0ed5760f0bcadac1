"""Durations and sizes: text to numbers and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.durations import MAX_DURATION_S, check_duration, format_duration, parse_duration
from orchestrator.core.text.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("1.5", 1.5),
        (".5", 0.5),
        ("0", 0),
        ("30s", 30),
        ("500ms", 0.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1H30M", 5400),
        (" 2d ", 172800),
        ("1m500ms", 60.5),
        ("1.5h", 5400),
    ],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "5x", "1h 30m", "30m1h", "1m1m", "1e3", "nan", "inf", "٣", "5,0", "+5"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write 30, 1\.5, 500ms"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["-1", "-5m"])
def test_negative_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f'"{text}" is negative'):
        parse_duration(text)


@pytest.mark.parametrize("text", ["367d", "9" * 30, "9" * 400])
def test_more_than_a_year_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="longer than a year"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [float("nan"), -0.1, float("inf")])
def test_check_refuses_negative_and_nan(seconds: float) -> None:
    with pytest.raises(ValueError):
        check_duration(seconds)


@given(st.integers(0, int(MAX_DURATION_S * 1000)))
def test_formatted_duration_can_be_read_back(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@given(st.text(max_size=20))
def test_any_text_is_seconds_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds <= MAX_DURATION_S


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("2G", 2 * 10**9),
        ("2gb", 2 * 10**9),
        ("512 MB", 512 * 10**6),
        (".5k", 500),
        ("4096", 4096),
        ("4096b", 4096),
        ("1tib", 1 << 40),
    ],
)
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "B", "i", "1iB", "-1", "1e9", "1.2.3M", "1 G G", "9" * 30, "0.1"])
def test_text_without_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)
