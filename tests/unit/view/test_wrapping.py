"""Text that is wider than the terminal is wrapped between words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from orchestrator.client.view.layout import Cell, broken, fit, last_cells, most_cells, without_colour, wrapped

HEAD = Cell("  cause     ")


def test_lines_are_indented_below_first_word() -> None:
    cells = [Cell("worker:1", ("36",)), Cell(": silent for 8s; the others wait in TensorFlow")]
    assert wrapped(HEAD, cells, 40, colour=False) == [
        "  cause     worker:1: silent for 8s; the",
        "            others wait in TensorFlow",
    ]


def test_path_is_not_broken() -> None:
    path = "/home/user/.local/state/orch/runs/digits-1/logs/worker-1.log"
    assert wrapped(HEAD, [Cell(path)], 40, colour=False) == [f"  cause     {path}"]
    assert wrapped(HEAD, [Cell(f"see {path} for more")], 40, colour=False) == [
        "  cause     see",
        f"            {path}",
        "            for more",
    ]


@pytest.mark.parametrize("blank", ["\u2800", "\u3164", "\u115f", "\ufe0f"])
def test_word_with_characters_that_look_like_spaces_is_broken(blank: str) -> None:
    """The terminal would break it, and begin the next row with what looks like a line of orch."""
    faked = f"orch:{blank}digits-1{blank}succeeded"
    lines = wrapped(HEAD, [Cell("worker:1 failed: " + "x" * 28 + faked * 9)], 40, colour=False)
    assert all(most_cells(line) <= 40 for line in lines), lines
    assert all(line.startswith(" " * len(HEAD.text)) for line in lines[1:])
    assert "digits-1" in "".join(lines)


def test_path_with_letters_of_any_language_is_not_broken() -> None:
    path = "/home/jürgen/データ/runs/digits-1/logs/worker-1.log"
    assert wrapped(HEAD, [Cell(path)], 40, colour=False) == [f"  cause     {path}"]


# As tmux 3.3 draws them.
@pytest.mark.parametrize(
    ("char", "cells"),
    [
        ("a", 1),
        ("é", 1),
        ("漢", 2),
        ("\u0903", 1),  # a combining character with its own width
        ("\U0001f3fb", 2),  # a skin tone
        ("\u302e", 2),  # a tone mark of Hangul
        ("\u3164", 2),  # a letter of Hangul that looks like a space
        ("\uffa0", 1),
        ("\ue000", 1),  # private use
        ("\u263a\ufe0f", 2),  # drawn as an emoji because of the second character
    ],
)
def test_rows_are_never_drawn_wider_than_the_terminal(char: str, cells: int) -> None:
    assert most_cells(char) >= cells
    for row in broken("worker:0 | ", char * 99, 40, "| "):
        assert row.count(char) * cells <= 40 - 11
    assert fit([Cell(char * 99)], 40, colour=False).count(char) * cells < 40


def test_text_is_not_wrapped_without_terminal() -> None:
    assert wrapped(HEAD, [Cell("word " * 99)], None, colour=False) == [HEAD.text + "word " * 99]


def test_long_text_is_cut_with_ellipsis() -> None:
    lines = wrapped(HEAD, [Cell("word " * 99)], 40, colour=False)
    assert len(lines) == 5
    assert lines[-1].endswith(" …") and cell_len(lines[-1]) <= 40
    assert not any(line.endswith("…") for line in lines[:-1])


@given(st.lists(st.text("ab ö語\t", max_size=12), max_size=9), st.integers(13, 60))
def test_words_are_kept_and_lines_fit(texts: list[str], width: int) -> None:
    lines = wrapped(HEAD, [Cell(text, ("31",)) for text in texts], width, colour=True)
    plain = [without_colour(line) for line in lines]
    whole = without_colour(wrapped(HEAD, [Cell(text) for text in texts], None, colour=False)[0])
    for line in (line.removesuffix(" …") for line in plain):
        assert cell_len(line.rstrip()) <= width or len(line[len(HEAD.text) :].split()) == 1
    if not plain[-1].endswith("…"):
        assert " ".join(plain).split() == whole.split()


@pytest.mark.parametrize(
    ("text", "width", "end"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "…cdef"),
        ("abcdef", 1, "…"),
        ("abcdef", 0, ""),
        ("日本語x", 6, "…本語x"),
        ("日本語x", 5, "…語x"),
    ],
)
def test_last_cells(text: str, width: int, end: str) -> None:
    assert last_cells(text, width) == end


@given(st.text("ab語é", max_size=30), st.integers(1, 40))
def test_last_cells_fill_width(text: str, width: int) -> None:
    end = last_cells(text, width)
    assert text.endswith(end.removeprefix("…"))
    assert width - 1 <= cell_len(end) <= width or end == text
