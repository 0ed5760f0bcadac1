"""Control sequences of tasks do not reach the terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.text.clean import clean_line, clean_lines, is_clean

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PARTS = [
    b"text",
    b"\xc3\xa9",
    b"\xe2\x82",
    b"\xff",
    b"\n",
    b"\r",
    b"\r\n",
    b"\t",
    b"\x08",
    b"\x00",
    b"\x1b",
    b"\x1b[",
    b"\x1b[31m",
    b"\x1b[2J",
    b"\x1b[1;2",
    b"\x1b]0;title",
    b"\x07",
    b"\x1b\\",
    b"\x1bP",
    b"\x1bc",
    b"\x1b(B",
    b"\x9b31m",
    b"\xc2\x9b2J",
    b"\xc2\x9d",
    b"\x7f",
    b"[bold]",
]
anything = st.binary(max_size=120) | st.lists(st.sampled_from(PARTS), max_size=25).map(b"".join)


@given(anything)
@example(b"\x1b\x1b[31m[2J")
@example(b"\x1b]\x1b[2J")
def test_no_control_sequence_gets_through(data: bytes) -> None:
    plain = clean_lines(data, colour=False).decode()
    assert CONTROL.search(plain) is None
    coloured = clean_lines(data, colour=True).decode()
    assert CONTROL.search(COLOUR.sub("", coloured)) is None


@pytest.mark.parametrize(
    ("sequence", "kept"),
    [
        ("8", ""),
        ("08", ""),
        ("1;8", "1"),
        ("8;31;08", "31"),
        ("38;5;8", "38;5;8"),
        ("48;2;8;8;8;8", "48;2;8;8;8"),
        ("38;2;1;8", ""),
        ("38;8", ""),
        ("38:5:18;8", "38:5:18"),
        ("38:5;8", "38:5"),
        ("28;38;5;8;4:3", "28;38;5;8;4:3"),
        # Terminals that do not know these take each number for itself.
        ("58;5;8", ""),
        ("31;58;2;8;8;8;1", "31;1"),
        ("58:5:8;32", "32"),
        ("4:8", ""),
        ("38:2::8:08:8", ""),
        ("0", "0"),
        ("", ""),
    ],
)
def test_text_cannot_be_concealed(sequence: str, kept: str) -> None:
    line = clean_line(f"a\x1b[{sequence}mb".encode(), colour=True)
    shown = f"\x1b[{kept}m" if kept or not sequence else ""
    assert line == f"a{shown}b" + ("\x1b[0m" if shown else "")


@given(
    st.lists(
        st.sampled_from(["8", "08", "1", "38", "48", "58", "5", "2", "38:5", "4:8", "8:1", "", "28", "108"])
    )
)
def test_no_row_of_numbers_conceals(numbers: list[str]) -> None:
    """On a terminal as pyte draws it, and on one that takes each number for itself outside a whole colour."""
    shown = clean_line(f"\x1b[{';'.join(numbers)}mb".encode(), colour=True)
    whole = re.sub(r"(?<![0-9:])[34]8;(5;[^;m]*|2(;[^;m]*){3})", "", shown)
    assert not re.search(r"(?<![0-9])0*8(?![0-9])", whole)


@given(anything)
def test_colour_is_reset_at_the_end_of_the_line(data: bytes) -> None:
    for line in clean_lines(data, colour=True).decode().split("\n"):
        assert "\x1b" not in line or line.endswith("\x1b[0m")


@given(anything)
def test_block_is_cleaned_like_its_lines(data: bytes) -> None:
    for colour in (False, True):
        lines = data.replace(b"\r\n", b"\n").split(b"\n")
        one_by_one = "\n".join(clean_line(line, colour=colour) for line in lines).encode()
        assert clean_lines(data, colour=colour) == one_by_one


@given(anything)
def test_number_of_lines_does_not_change(data: bytes) -> None:
    assert clean_lines(data, colour=False).count(b"\n") == data.count(b"\n")


@given(anything)
def test_clean_text_is_unchanged(data: bytes) -> None:
    cleaned = clean_lines(data, colour=False)
    assert is_clean(cleaned)
    assert clean_lines(cleaned, colour=False) == cleaned


@given(anything)
def test_fast_check_agrees_with_the_full_one(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        assert not is_clean(data)
    else:
        assert is_clean(data) is (CONTROL.search(text) is None)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain", "plain"),
        ("naïve ☃ 漢字".encode(), "naïve ☃ 漢字"),
        (b"tab\there", "tab\there"),
        (b"bad \xff\xfe bytes", "bad \ufffd\ufffd bytes"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b[2J\x1b[Hgone", "gone"),
        (b"\x1b]0;a title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPq#0;2;0\x1b\\text", "text"),
        (b"\x1b]never ended", "never ended"),
        (b"\xc2\x9b2Jtext", "text"),
        (b"\x1b(Btext", "text"),
        (b"bell\x07 nul\x00 del\x7f", "bell␇ nul␀ del␡"),
        (b"lone \x1b", "lone ␛"),
        (b"c1 \xc2\x85 next", "c1 \ufffd next"),
        (b"10%\r20%\r30%", "30%"),
        (b"10%\r20%\r", "20%"),
        (b"done\r\x1b[K", "done"),
        (b"done\r\x1b[?25h", "done"),
        (b"dos line\r", "dos line"),
        (b"\r\r\r", ""),
        (b"[bold]not markup[/bold]", "[bold]not markup[/bold]"),
    ],
)
def test_colours_are_removed_by_default(raw: bytes, shown: str) -> None:
    assert clean_line(raw, colour=False) == shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[31mred", "\x1b[31mred\x1b[0m"),
        (b"\x1b[38;5;200mpink\x1b[0m", "\x1b[38;5;200mpink\x1b[0m\x1b[0m"),
        (b"\x1b[31m\x1b[2Jred", "\x1b[31mred\x1b[0m"),
        (b"\x1b[>4;2mno colour", "no colour"),
        (b"plain", "plain"),
    ],
)
def test_colours_stay_on_request(raw: bytes, shown: str) -> None:
    assert clean_line(raw, colour=True) == shown


@pytest.mark.parametrize(
    "unit", [b"\x1b]", b"\x1b[1;", b"\xc2\x9d", b"\x1b[", b"a\r", b"\x1b", b"\xff", b"\x1bP\x1b"]
)
def test_cleaning_takes_time_linear_in_the_length_of_the_line(unit: bytes) -> None:
    """The line is half a million beginnings of sequences. A quadratic search would take hours."""
    line = unit * (500_000 // len(unit))
    assert CONTROL.search(clean_line(line, colour=False)) is None
