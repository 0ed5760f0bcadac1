"""Control sequences of tasks do not reach the terminal."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.text.clean import clean_line, clean_lines, is_clean

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PARTS = [
    *(b"text", b"\xc3\xa9", b"\xe2\x82", b"\xff", b"\n", b"\r", b"\r\n", b"\t", b"\x08", b"\x00", b"\x7f"),
    *(b"\x1b", b"\x1b[", b"\x1b[31m", b"\x1b[2J", b"\x1b[1;2", b"\x1b]0;title", b"\x07", b"\x1b\\", b"\x1bP"),
    *(b"\x1bc", b"\x1b(B", b"\x9b31m", b"\xc2\x9b2J", b"\xc2\x9d", b"[bold]"),
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


CONCEALS = {
    "8": "",
    "08": "",
    "1;8": "1",
    "8;31;08": "31",
    "38;5;8": "38;5;8",
    "48;2;8;8;8;8": "48;2;8;8;8",
    "38;2;1;8": "",
    "38;8": "",
    "38:5:18;8": "38:5:18",
    "38:5;8": "38:5",
    "0": "0",
    "": "",
    "28;38;5;8;4:3": "28;38;5;8;4:3",
    # Terminals that do not know these take each number for itself.
    "58;5;8": "",
    "31;58;2;8;8;8;1": "31;1",
    "58:5:8;32": "32",
    "4:8": "",
    "38:2::8:08:8": "",
}


def test_text_cannot_be_concealed() -> None:
    for sequence, kept in CONCEALS.items():
        line = clean_line(f"a\x1b[{sequence}mb".encode(), colour=True)
        shown = f"\x1b[{kept}m" if kept or not sequence else ""
        assert line == f"a{shown}b" + ("\x1b[0m" if shown else ""), sequence


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
def test_block_is_cleaned_like_its_lines(data: bytes) -> None:
    """The number of lines stays, and colour is reset at the end of each."""
    for colour in (False, True):
        cleaned = clean_lines(data, colour=colour)
        lines = data.replace(b"\r\n", b"\n").split(b"\n")
        assert cleaned == "\n".join(clean_line(line, colour=colour) for line in lines).encode()
        assert cleaned.count(b"\n") == data.count(b"\n")
        for line in cleaned.decode().split("\n"):
            assert "\x1b" not in line or line.endswith("\x1b[0m")


@given(anything)
def test_clean_text_is_recognized_and_unchanged(data: bytes) -> None:
    cleaned = clean_lines(data, colour=False)
    assert is_clean(cleaned)
    assert clean_lines(cleaned, colour=False) == cleaned
    try:
        text = data.decode()
    except UnicodeDecodeError:
        assert not is_clean(data)
    else:
        assert is_clean(data) is (CONTROL.search(text) is None)


PLAIN = {
    b"plain": "plain",
    "naïve ☃ 漢字".encode(): "naïve ☃ 漢字",
    b"tab\there": "tab\there",
    b"bad \xff\xfe bytes": "bad \ufffd\ufffd bytes",
    b"\x1b[31mred\x1b[0m": "red",
    b"\x1b[2J\x1b[Hgone": "gone",
    b"\x1b]0;a title\x07text": "text",
    b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
    b"\x1bPq#0;2;0\x1b\\text": "text",
    b"\x1b]never ended": "never ended",
    b"\xc2\x9b2Jtext": "text",
    b"\x1b(Btext": "text",
    b"bell\x07 nul\x00 del\x7f": "bell␇ nul␀ del␡",
    b"lone \x1b": "lone ␛",
    b"c1 \xc2\x85 next": "c1 \ufffd next",
    b"10%\r20%\r30%": "30%",
    b"10%\r20%\r": "20%",
    b"done\r\x1b[K": "done",
    b"done\r\x1b[?25h": "done",
    b"dos line\r": "dos line",
    b"\r\r\r": "",
    b"[bold]not markup[/bold]": "[bold]not markup[/bold]",
}
COLOURED = {
    b"\x1b[31mred": "\x1b[31mred\x1b[0m",
    b"\x1b[38;5;200mpink\x1b[0m": "\x1b[38;5;200mpink\x1b[0m\x1b[0m",
    b"\x1b[31m\x1b[2Jred": "\x1b[31mred\x1b[0m",
    b"\x1b[>4;2mno colour": "no colour",
    b"plain": "plain",
}


def test_colours_are_removed_by_default_and_stay_on_request() -> None:
    assert {raw: clean_line(raw, colour=False) for raw in PLAIN} == PLAIN
    assert {raw: clean_line(raw, colour=True) for raw in COLOURED} == COLOURED


def test_cleaning_takes_time_linear_in_the_length_of_the_line() -> None:
    """The line is half a million beginnings of sequences. A quadratic search would take hours."""
    units = (b"\x1b]", b"\x1b[1;", b"\xc2\x9d", b"\x1b[", b"a\r", b"\x1b", b"\xff", b"\x1bP\x1b")
    for unit in units:
        line = unit * (500_000 // len(unit))
        assert CONTROL.search(clean_line(line, colour=False)) is None
