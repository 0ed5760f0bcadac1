"""Reads the lines of a run in pieces: forwards from a position of the index, as they arrive, or backwards from it.

A piece begins between two records of the index, possibly within a line. Such a line belongs to the piece in which it
ends, so that consecutive pieces contain every line once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from orchestrator.store.logs.index import INDEX_NAME, index_size, read_records
from orchestrator.store.logs.lines import Block, Chunk, LineAssembler
from orchestrator.store.logs.merge import LogReader, Position, line_before

# Bytes of logs in a piece, about.
PIECE_BYTES = 256 << 10
# The rest of a longer line is left out. A page shows far less of it.
_LONGEST_LINE = 1 << 20
_WINDOW = 64 << 10


class Cursor(NamedTuple):
    """A reader has all whole lines up to this position of the index. `is_end`: the run is over, and no line follows."""

    record: int = 0
    is_end: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """ValueError if it is not a cursor."""
        digits = text.removesuffix("e")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            raise ValueError(f"{text!r} is not a cursor")
        return cls(int(digits), text.endswith("e"))

    def __str__(self) -> str:
        return f"{self.record}{'e' if self.is_end else ''}"


class LogTail:
    """Reads whole lines from a position of the index on, up to the position `end` if given. Close it."""

    def __init__(self, logs: Path, begin: int, end: int | None = None) -> None:
        self._logs = logs
        self._reader = LogReader(logs, None, Position(begin), end=end)
        self._assembler = LineAssembler(_LONGEST_LINE)
        # Tasks whose lines are complete from here on; None if all logs are read from the start.
        self._begun: set[str] | None = set() if begin else None
        self.cursor = Cursor(begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()

    def read(self, most_bytes: int = PIECE_BYTES) -> list[Block] | None:
        """Return the next lines, possibly an empty list; None if no record is new. Records are not split."""
        before = self._reader.position
        blocks = self._blocks(self._reader.read(most_bytes))
        if self._reader.position == before:
            return None
        while self._reader.position.within and self._reader.position != before:
            before = self._reader.position
            blocks += self._blocks(self._reader.read(most_bytes))
        self.cursor = Cursor(self._reader.position.record)
        return blocks

    def skip(self, keep_bytes: int) -> dict[str, int]:
        """Skip the oldest lines until about `keep_bytes` are left. Return the skipped bytes of each task."""
        skipped = self._reader.skip_old(keep_bytes)
        if skipped:
            self._begun = set() if self._begun is None else self._begun
            for task in skipped:
                self._assembler.forget(task)
                self._begun.discard(task)
            self.cursor = Cursor(self._reader.position.record)
        return skipped

    def read_end(self) -> list[Block]:
        """Return the last lines of a run that is over, after read() has returned nothing: those that no index covers
        and those without a newline."""
        blocks = []
        while chunks := self._reader.read_unindexed():
            blocks += self._blocks(chunks)
        self.cursor = self.cursor._replace(is_end=True)
        return blocks + self._assembler.flush()

    def _blocks(self, chunks: list[Chunk]) -> list[Block]:
        blocks = []
        for chunk in chunks:
            if self._begun is not None and chunk.task not in self._begun:
                self._begun.add(chunk.task)
                self._begin_within_line(chunk)
            blocks += self._assembler.feed(chunk)
        return blocks

    def _begin_within_line(self, chunk: Chunk) -> None:
        if chunk.offset and not chunk.lost:
            before = line_before(self._logs, chunk.task, chunk.offset)
            self._assembler.start_within_line(chunk.task, chunk.attempt, before, 1)


class Piece(NamedTuple):
    """A part of the index, from one record to another."""

    begin: int
    end: int


def pieces_before(logs: Path, end: int | None = None) -> Iterator[Piece]:
    """Yield the pieces of the logs before this position of the index (default: its end), the last one first."""
    index = logs / INDEX_NAME
    end = index_size(index) if end is None else end
    window = _WINDOW
    while end > 0:
        start = max(0, end - window)
        # A window can begin inside a record; the rest of that record may parse as another one.
        records = list(read_records(index, start, end))
        first, records = (0, records) if not start else (records[0][0] if records else end, records[1:])
        if start and not records:
            window *= 8
            continue
        size, piece_end = 0, records[-1][0] if records else 0
        for number in range(len(records) - 1, -1, -1):
            size += max(0, records[number][1].length)
            if size >= PIECE_BYTES:
                begin = records[number - 1][0] if number else first
                yield Piece(begin, piece_end)
                size, piece_end = 0, begin
        if piece_end > first:
            yield Piece(first, piece_end)
        end, window = first, _WINDOW


def read_piece(logs: Path, piece: Piece, *, is_last: bool = False) -> list[Block]:
    """Return the lines that end in a piece. `is_last`: the run is over, and the lines after the index belong to it."""
    with LogTail(logs, piece.begin, piece.end) as tail:
        blocks: list[Block] = []
        while (found := tail.read()) is not None:
            blocks += found
        return blocks + tail.read_end() if is_last else blocks
