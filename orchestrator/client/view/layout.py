"""Text on a terminal: colours, cells, columns that fit a width, and wrapped lines (pure)."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len

from orchestrator.core.text.clean import safe

# SGR parameters. Tasks are never red: red means failure.
BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
_TASK_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_FIRST_COLOUR = {"worker": 0, "chief": 3, "ps": 5, "evaluator": 8}
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_GAP = "  "
# A column cut to fewer cells than this is dropped instead.
_MIN_CUT_CELLS = 12
# A TensorFlow exception can fill a page; the full text is in a file.
_MAX_WRAPPED_LINES = 5
_CUT = " …"
_TAB = 8
# Rows of a broken line are indented less if that leaves fewer cells.
_MIN_ROW_CELLS = 20
# Emoji, skin tones, flags and later planes begin here. Terminals draw most of them in two cells.
_FIRST_EMOJI = "\U0001f000"
# Letters of Hangul that look like a space.
_FILLERS = "\u115f\u1160\u3164\uffa0"
_COLOUR_OR_TEXT = re.compile(r"\x1b\[[0-9;:]*m|[^\x1b]+")
_PIECE = re.compile(r"\s+|\S+")


class Cell(NamedTuple):
    """A piece of text and its SGR parameters. Control characters are removed when it is laid out."""

    text: str
    sgr: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """`rank` 0 is always shown; among the others the highest is dropped first when the width is short. A column that
    `may_be_cut` is shortened instead, if it comes last and enough of it remains."""

    title: str
    rank: int = 0
    right: bool = False
    may_be_cut: bool = False


def task_colour(task: str) -> str:
    """The SGR parameter of a task's name: the same in every run, and different for tasks with adjacent numbers."""
    return _TASK_COLOURS[colour_index(task)]


def colour_index(task: str) -> int:
    """The place of a task's colour among the ten that tasks have, here and in a page."""
    role, _, index = task.partition(":")
    first = _FIRST_COLOUR.get(role, zlib.crc32(role.encode()))
    return (first + int(index or 0)) % len(_TASK_COLOURS)


def painted(text: str, *parameters: str, colour: bool) -> str:
    """Return `text` in the given SGR parameters, or unchanged without `colour`."""
    if not colour or not parameters or not text:
        return text
    return f"\x1b[{';'.join(parameters)}m{text}\x1b[0m"


def without_colour(text: str) -> str:
    """Undo `painted`."""
    return _SGR.sub("", text)


def most_cells(text: str) -> int:
    """Return the most cells that a terminal draws `text` in; `cell_len` is what most terminals draw.

    Terminals disagree about combining characters, emoji and new characters. A row that is wider than the terminal
    would continue in the next row, with the task's text at its beginning.
    """
    return len(text) if text.isascii() else sum(map(_most_cells, text))


def _most_cells(char: str) -> int:
    is_wide = (
        char >= _FIRST_EMOJI
        or unicodedata.east_asian_width(char) in ("W", "F")
        or unicodedata.category(char) in ("Cn", "Co")
    )
    return 2 if is_wide else max(1, cell_len(char))


def fit(cells: Sequence[Cell], width: int | None, *, colour: bool) -> str:
    """Join the cells, cut to `width` cells of the terminal with an ellipsis (None: not cut)."""
    room = width
    line = ""
    for text, sgr in cells:
        text = safe(text)
        if room is not None:
            text = text.replace("\t", " ")  # the terminal decides how wide a tab is
            if most_cells(text) > room:
                text = _first_cells(text, room - 1) + "…" if room > 0 else ""
            room -= most_cells(text)
        line += painted(text, *sgr, colour=colour)
    return line


def lay_out(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None, *, colour: bool
) -> list[str]:
    """Return a title line and a line a row, each at most `width` cells wide (None: unlimited).

    A column with rank above 0 that is empty in every row is left out.
    """
    rows = [[Cell(safe(text), sgr) for text, sgr in row] for row in rows]
    kept = [i for i, column in enumerate(columns) if column.rank == 0 or any(row[i].text for row in rows)]
    widths = {i: max(cell_len(columns[i].title), *(cell_len(row[i].text) for row in rows), 0) for i in kept}
    while width is not None and _total(widths) > width:
        least = max(widths, key=lambda i: columns[i].rank)
        room = width - _total(widths) + widths[least]
        if columns[least].rank == 0 or (columns[least].may_be_cut and room >= _MIN_CUT_CELLS):
            break
        del widths[least]
    titles = [Cell(column.title, (DIM,)) for column in columns]
    return [fit(_row_cells(columns, row, widths), width, colour=colour) for row in (titles, *rows)]


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * max(0, len(widths) - 1)


def _row_cells(columns: Sequence[Column], row: Sequence[Cell], widths: dict[int, int]) -> list[Cell]:
    cells = []
    for number, i in enumerate(widths):
        padding = Cell(" " * (widths[i] - cell_len(row[i].text)))
        if number:
            cells.append(Cell(_GAP))
        if columns[i].right:
            cells += [padding, row[i]]
        else:
            is_last = number == len(widths) - 1
            cells += [row[i], Cell("") if is_last else padding]
    return cells


def wrapped(
    head: Cell, cells: Sequence[Cell], width: int | None, *, colour: bool, is_limited: bool = True
) -> list[str]:
    """Lay `head` and the cells out in lines of at most `width` cells (None: one line), indented below the first cell.

    Lines break between words. A wider word of letters and ASCII is not broken, so that a path can still be copied whole
    from the terminal. Other words could contain characters that look like spaces.
    """
    if width is None:
        return [fit([head, *cells], None, colour=colour)]
    indent = Cell(" " * cell_len(safe(head.text)))
    lines: list[list[Cell]] = [[head]]
    room = width - len(indent.text)
    for word in _broken_words(_words(cells), room - len(_CUT)):
        if _width(word) > room and len(lines[-1]) > 1:
            if is_limited and len(lines) == _MAX_WRAPPED_LINES:
                lines[-1].append(Cell(_CUT))
                break
            word = [piece for piece in word if not piece.text.isspace()]
            lines.append([indent])
            room = (
                width
                - len(indent.text)
                - (len(_CUT) if is_limited and len(lines) == _MAX_WRAPPED_LINES else 0)
            )
        lines[-1] += word
        room -= _width(word)
    return [fit(line, None, colour=colour) for line in lines]


def broken(head: str, text: str, width: int, mark: str) -> list[str]:
    """Lay a line of a task out in rows of at most `width` cells: `head` begins the first one, `mark` ends the
    indentation of the others. The terminal would begin them with the task's text, which could look like orch's own.

    Colours in `head` and `text` take no room.
    """
    indent = cell_len(without_colour(head))
    if width <= indent:
        return [head + text]  # too narrow to read anyway
    if indent + len(text) + _TAB * text.count("\t") <= width and text.isascii():
        return [head + text]
    row, rows, column = head, [], indent
    if width - indent < _MIN_ROW_CELLS:
        indent = len(mark)
    for piece in _COLOUR_OR_TEXT.findall(text):
        if piece.startswith("\x1b"):
            row += piece
            continue
        for char in piece:
            cells = _TAB - column % _TAB if char == "\t" else most_cells(char)
            if column + cells > width and column > indent:
                rows.append(row)
                row, column = " " * (indent - len(mark)) + mark, indent
                cells = 0 if char == "\t" else cells
            row += " " * cells if char == "\t" else char
            column += cells
    return [*rows, row]


def last_cells(text: str, width: int) -> str:
    """Return the end of a line in at most `width` cells, after an ellipsis if it was cut."""
    if most_cells(text) <= width:
        return text
    taken = 1
    for at in reversed(range(len(text))):
        taken += most_cells(text[at])
        if taken > width:
            return "…" + text[at + 1 :] if width > 0 else ""
    return text


def _first_cells(text: str, width: int) -> str:
    """Return the beginning of a line in at most `width` cells."""
    taken = 0
    for at, char in enumerate(text):
        taken += most_cells(char)
        if taken > width:
            return text[:at]
    return text


def _words(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield each word with the space before it; a word may consist of several cells."""
    word: list[Cell] = []
    for text, sgr in cells:
        for piece in _PIECE.findall(safe(text).replace("\t", " ")):
            if piece.isspace() and word and not word[-1].text.isspace():
                yield word
                word = []
            word.append(Cell(piece, sgr))
    if word:
        yield word


def _broken_words(words: Iterable[list[Cell]], width: int) -> Iterator[list[Cell]]:
    """Yield the words, those that are wider than `width` in parts unless they may stay whole."""
    for word in words:
        if _width(word) <= width or all(
            char.isascii() or (char.isalnum() and char not in _FILLERS) for text, _ in word for char in text
        ):
            yield word
            continue
        part: list[Cell] = []
        room = width
        for text, sgr in word:
            rest = text
            while rest:
                piece = _first_cells(rest, room)
                if not piece and part:
                    yield part
                    part, room = [], width
                    continue
                piece = piece or rest[0]
                part.append(Cell(piece, sgr))
                room -= most_cells(piece)
                rest = rest[len(piece) :]
        yield part


def _width(word: Sequence[Cell]) -> int:
    return sum(most_cells(piece.text) for piece in word)
