"""Select log lines for `orch logs`: by task, time, attempt and pattern, the last N, or following the run."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from orchestrator.core.text.clean import clean_line, last_frame
from orchestrator.core.text.durations import parse_duration
from orchestrator.store.logs.lines import MAX_LINE_BYTES, Block, Chunk, LineAssembler
from orchestrator.store.logs.merge import (
    START,
    LogReader,
    Position,
    line_before,
    newlines_before,
    position_of_tail,
    position_of_time,
)

# A pattern with wildcards can take time quadratic in the length of the line, so it sees the beginning only.
MAX_SEARCHED_BYTES = 16 << 10


@dataclass(frozen=True)
class LineFilter:
    """Selects lines of `attempt` that arrived in [since, until] (Unix seconds) and match `grep` (`invert`: do not).

    Lines without a time count as the latest, so that `until` excludes them. `grep` is matched against the displayed
    text without colours. A pattern that is not plain text is matched against the first 16 KiB of a line.
    """

    since: float | None = None
    until: float | None = None
    grep: str | None = None
    invert: bool = False
    attempt: int | None = None

    def __post_init__(self) -> None:
        """Check the pattern. ValueError with the reason."""
        if self.grep is not None:
            try:
                re.compile(self.grep)
            except re.error as error:
                raise ValueError(f'"{self.grep}" is not a regular expression: {error}') from error

    @property
    def keeps_all(self) -> bool:
        return self == LineFilter()

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the selected lines. A block is split where lines between are excluded."""
        for block in blocks:
            if not self._is_in_time(block) or self.attempt not in (None, block.attempt):
                continue
            if self.grep is None:
                yield block
            elif not block.lost:
                yield from self._matching(block, self.grep)

    def _is_in_time(self, block: Block) -> bool:
        if block.time is None:
            return self.until is None
        after = self.since is None or block.time >= self.since
        return after and (self.until is None or block.time <= self.until)

    def _matching(self, block: Block, pattern: str) -> Iterator[Block]:
        search = re.compile(pattern).search
        limit = None if re.escape(pattern) == pattern else MAX_SEARCHED_BYTES
        run: list[bytes] = []
        seq = block.seq
        for line in split_lines(block):
            shown = clean_line(last_frame(line)[:limit], colour=False)
            if (search(shown) is not None) is not self.invert:
                run.append(line)
            elif run:
                yield block._replace(data=b"".join(run), seq=seq - len(run), partial=False)
                run = []
            seq += 1
        if run:
            yield block._replace(data=b"".join(run), seq=seq - len(run))


@dataclass(frozen=True)
class LogQuery:
    """The lines to return. `tasks` None selects all tasks. `tail` limits the result to the last lines of `lines`."""

    tasks: frozenset[str] | None = None
    lines: LineFilter = field(default_factory=LineFilter)
    tail: int | None = None
    follow: bool = False


class LogLine(NamedTuple):
    """A line for programs.

    `ts` is its arrival (Unix seconds; None if not indexed), `seq` its number in the task's raw log from 1, `text` its
    displayed text without colours. `partial`: it has no newline. `truncated`: it is longer than 16 MiB, and `text` is
    its beginning.
    """

    ts: float | None
    task: str
    attempt: int
    seq: int
    text: str
    partial: bool
    truncated: bool


class LastLines:
    """Keeps the last `limit` lines of all blocks that are added."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._blocks: deque[Block] = deque()
        self._lines = 0

    def extend(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self._blocks.append(block)
            self._lines += block.lines
            while self._lines > self._limit:
                self._drop(self._lines - self._limit)

    def take(self) -> list[Block]:
        """Return the kept blocks and forget them."""
        blocks, self._blocks, self._lines = list(self._blocks), deque(), 0
        return blocks

    def _drop(self, lines: int) -> None:
        oldest = self._blocks.popleft()
        self._lines -= oldest.lines
        if lines < oldest.lines:
            rest = oldest.data.split(b"\n", lines)[-1]
            kept = oldest._replace(data=rest, seq=oldest.seq + lines)
            self._blocks.appendleft(kept)
            self._lines += kept.lines


def query_blocks(
    logs_dir: Path,
    query: LogQuery,
    is_over: Callable[[], bool],
    max_line_bytes: int = MAX_LINE_BYTES,
    *,
    numbered: bool = False,
    start: Position | None = None,
) -> Iterator[list[Block]]:
    """Yield blocks of the selected lines. An empty list means that nothing new has arrived yet.

    `is_over` returns whether the supervisor has exited for good. `numbered` makes the blocks' `seq` correct. `start` is
    where to read from, if the caller knows it.
    """
    start = _start(logs_dir, query) if start is None else start
    tail = None if query.tail is None else LastLines(query.tail)
    assembler = LineAssembler(max_line_bytes, numbered=numbered)
    started: set[str] = set()
    with LogReader(logs_dir, query.tasks, start) as reader:
        for chunks in _chunks(reader, is_over, follow=query.follow):
            blocks: list[Block] = []
            for chunk in chunks:
                if start != START and chunk.task not in started:
                    started.add(chunk.task)
                    _start_within_line(assembler, logs_dir, chunk, numbered=numbered)
                blocks += query.lines.apply(assembler.feed(chunk))
            if tail is not None:
                tail.extend(blocks)
                if chunks:
                    continue
                # All existing lines have been read; later ones are new.
                blocks, tail = tail.take(), None
            if blocks or not chunks:
                yield blocks
    last = list(query.lines.apply(assembler.flush()))
    if tail is not None:
        tail.extend(last)
        last = tail.take()
    yield last


def query_raw(logs_dir: Path, query: LogQuery, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the selected lines as the tasks wrote them. Empty bytes mean that nothing new has arrived yet."""
    if query.lines.keeps_all and query.tail is None:
        with LogReader(logs_dir, query.tasks, with_holes=True) as reader:
            for chunks in _chunks(reader, is_over, follow=query.follow):
                yield b"".join([chunk.data for chunk in chunks])
        return
    for blocks in query_blocks(logs_dir, query, is_over, sys.maxsize):
        yield b"".join([block.data for block in blocks])


def query_lines(logs_dir: Path, query: LogQuery, is_over: Callable[[], bool]) -> Iterator[list[LogLine]]:
    """Yield the selected lines. An empty list means that nothing new has arrived yet."""
    for blocks in query_blocks(logs_dir, query, is_over, numbered=True):
        yield [line for block in blocks for line in _log_lines(block)]


def _log_lines(block: Block) -> Iterator[LogLine]:
    lines = split_lines(block)
    for number, line in enumerate(lines):
        text = clean_line(line.removesuffix(b"\n"), colour=False)
        partial = block.partial and number == len(lines) - 1
        seq = block.seq + number
        yield LogLine(block.time, block.task, block.attempt, seq, text, partial, bool(block.omitted))


def split_lines(block: Block) -> list[bytes]:
    """Return the block's lines with their newlines. The last line of a partial block has none."""
    lines = [line + b"\n" for line in block.data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] or (block.partial and not block.lost) else lines[:-1]


def parse_when(text: str, now: float) -> float:
    """Return the Unix seconds of `5m` (that long ago) or of an ISO time (local without an offset). ValueError."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        pass
    try:
        return now - parse_duration(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is neither a time ago (5m, 1h30m) nor an ISO time') from error


def _chunks(reader: LogReader, is_over: Callable[[], bool], *, follow: bool) -> Iterator[list[Chunk]]:
    """Yield all chunks, at the end of the run also those without an index. An empty list only when following."""
    while True:
        # Checked before reading, so that everything written before the end is read.
        over = is_over()
        if chunks := reader.read():
            yield chunks
        elif over:
            break
        elif follow:
            yield []
        else:
            return
    while chunks := reader.read_unindexed():
        yield chunks


def _start(logs_dir: Path, query: LogQuery) -> Position:
    """Return a position that all selected lines follow."""
    if query.lines.since is not None:
        return position_of_time(logs_dir, query.lines.since)
    if query.tail is not None and query.lines.keeps_all:
        return position_of_tail(logs_dir, query.tasks, query.tail)
    return START


def _start_within_line(assembler: LineAssembler, logs_dir: Path, chunk: Chunk, *, numbered: bool) -> None:
    if not chunk.lost and chunk.offset:
        seq = 1 + newlines_before(logs_dir, chunk.task, chunk.offset) if numbered else 1
        line_start = line_before(logs_dir, chunk.task, chunk.offset)
        assembler.start_within_line(chunk.task, chunk.attempt, line_start, seq)
