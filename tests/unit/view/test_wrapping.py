"""Text that is wider than the terminal is wrapped between words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from orchestrator.client.view.layout import Cell, broken, fit, last_cells, most_cells, without_colour, wrapped

HEAD = Cell("  cause     ")
PATH = "/home/jürgen/データ/.local/state/orch/runs/digits-1/logs/worker-1.log"
# As tmux 3.3 draws them.
CELLS = {
    "a": 1,
    "é": 1,
    "漢": 2,
    "\u0903": 1,  # a combining character with its own width
    "\U0001f3fb": 2,  # a skin tone
    "\u302e": 2,  # a tone mark of Hangul
    "\u3164": 2,  # a letter of Hangul that looks like a space
    "\uffa0": 1,
    "\ue000": 1,  # private use
    "\u263a\ufe0f": 2,  # drawn as an emoji because of the second character
}


def test_words_are_wrapped_below_the_first_one_and_paths_are_not_broken() -> None:
    silent = [Cell("worker:1", ("36",)), Cell(": silent for 8s; the others wait in TensorFlow")]
    rows = [
        (silent, ["worker:1: silent for 8s; the", "others wait in TensorFlow"]),
        ([Cell(PATH)], [PATH]),
        ([Cell(f"see {PATH} for more")], ["see", PATH, "for more"]),
    ]
    for cells, (first, *others) in rows:
        shown = [HEAD.text + first, *(" " * len(HEAD.text) + other for other in others)]
        assert wrapped(HEAD, cells, 40, colour=False) == shown


@pytest.mark.parametrize("blank", ["\u2800", "\u3164", "\u115f", "\ufe0f"])
def test_word_with_characters_that_look_like_spaces_is_broken(blank: str) -> None:
    """The terminal would break it, and begin the next row with what looks like a line of orch."""
    faked = f"orch:{blank}digits-1{blank}succeeded"
    lines = wrapped(HEAD, [Cell("worker:1 failed: " + "x" * 28 + faked * 9)], 40, colour=False)
    assert all(most_cells(line) <= 40 for line in lines), lines
    assert all(line.startswith(" " * len(HEAD.text)) for line in lines[1:])
    assert "digits-1" in "".join(lines)


def test_rows_are_never_drawn_wider_than_the_terminal() -> None:
    for char, cells in CELLS.items():
        assert most_cells(char) >= cells, char
        for row in broken("worker:0 | ", char * 99, 40, "| "):
            assert row.count(char) * cells <= 40 - 11, char
        assert fit([Cell(char * 99)], 40, colour=False).count(char) * cells < 40, char


def test_long_text_is_cut_with_ellipsis_on_a_terminal_only() -> None:
    lines = wrapped(HEAD, [Cell("word " * 99)], 40, colour=False)
    assert len(lines) == 5
    assert lines[-1].endswith(" …") and cell_len(lines[-1]) <= 40
    assert not any(line.endswith("…") for line in lines[:-1])
    assert wrapped(HEAD, [Cell("word " * 99)], None, colour=False) == [HEAD.text + "word " * 99]


@given(st.lists(st.text("ab ö語\t", max_size=12), max_size=9), st.integers(13, 60))
def test_words_are_kept_and_lines_fit(texts: list[str], width: int) -> None:
    lines = wrapped(HEAD, [Cell(text, ("31",)) for text in texts], width, colour=True)
    plain = [without_colour(line) for line in lines]
    whole = without_colour(wrapped(HEAD, [Cell(text) for text in texts], None, colour=False)[0])
    for line in (line.removesuffix(" …") for line in plain):
        assert cell_len(line.rstrip()) <= width or len(line[len(HEAD.text) :].split()) == 1
    if not plain[-1].endswith("…"):
        assert " ".join(plain).split() == whole.split()


@given(st.text("ab語é", max_size=30), st.integers(1, 40))
def test_last_cells_fill_width(text: str, width: int) -> None:
    end = last_cells(text, width)
    assert text.endswith(end.removeprefix("…"))
    assert end == text or (end.startswith("…") and width - 1 <= cell_len(end) <= width)
