"""Log lines as the rows of a page: columns of times, tasks and texts, without colours and of bounded length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.client.page.clock import RunClock
from orchestrator.client.view.log_line import truncation_note
from orchestrator.core.text.clean import clean_lines, without_bidi
from orchestrator.core.text.counted import counted
from orchestrator.store.logs.lines import Block
from orchestrator.store.logs.merge import position_of_tail
from orchestrator.store.logs.query import LogQuery, query_blocks
from orchestrator.store.runs.reader import RunView

# A longer line is cut.
_MOST_CHARACTERS = 4096
_UNKNOWN = -1
# A row about lines that the report does not have belongs to no task.
_NO_TASK = -1


@dataclass(frozen=True)
class Room:
    """How much of the logs a report holds."""

    lines: int = 400_000
    characters: int = 48_000_000

    def part(self, share: float) -> Room:
        return Room(int(self.lines * share), int(self.characters * share))


REPORT_ROOM = Room()
_FIRST_PART = 0.2


@dataclass
class Rows:
    """Rows that are added at the end. `names`: the tasks, which `task` counts."""

    clock: RunClock
    time: list[int] = field(default_factory=list)
    task: list[int] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    characters: int = 0
    _after: float = 0.0

    def add(self, block: Block) -> None:
        """Add the lines of a block. Blocks come in the order of their arrival."""
        texts = _texts(block)
        since_start = self.clock.since_start(block.time, self._after)
        if since_start is not None:
            self._after = max(self._after, since_start)
        time = _UNKNOWN if since_start is None else round(since_start * 1000)
        self._extend(texts, time, self.names.setdefault(block.task, len(self.names)), block.attempt)

    def add_note(self, text: str) -> None:
        self._extend([text], _UNKNOWN, _NO_TASK, self.attempt[-1] if self.attempt else 1)

    def _extend(self, texts: list[str], time: int, task: int, attempt: int) -> None:
        self.text += texts
        self.time += [time] * len(texts)
        self.task += [task] * len(texts)
        self.attempt += [attempt] * len(texts)
        self.characters += sum(map(len, texts))

    def document(self) -> dict[str, Any]:
        attempts = set(self.attempt)
        return {
            "names": list(self.names),
            "time": self.time,
            "task": self.task,
            "attempt": attempts.pop() if len(attempts) == 1 else self.attempt,
            "text": self.text,
        }


def log_rows(blocks: Iterable[Block], clock: RunClock) -> dict[str, Any]:
    """Return the lines of these blocks, which follow each other, as the columns of a page."""
    rows = Rows(clock)
    for block in blocks:
        rows.add(block)
    return rows.document()


def report_logs(view: RunView, clock: RunClock, room: Room = REPORT_ROOM) -> dict[str, Any]:
    """Return the lines of a run for a report: all, or the first fifth of the room and the last four fifths."""
    logs, is_over = view.paths.logs, _never if view.is_live else _always
    rows = Rows(clock)
    first = room.part(_FIRST_PART)
    seen: dict[str, int] = {}
    with closing(_blocks(logs, is_over)) as blocks:
        for block in blocks:
            rows.add(block)
            seen[block.task] = block.seq + block.lines
            if len(rows.text) > first.lines or rows.characters > first.characters:
                break
        else:
            return rows.document()
    rest = Room(room.lines - len(rows.text), room.characters - rows.characters)
    last, left_out = _last_blocks(logs, is_over, rest, seen)
    if left_out:
        rows.add_note(f"{counted(left_out, 'line')} left out here; `orch logs {view.record.id}` prints them")
    for block in last:
        rows.add(block)
    return rows.document()


def _last_blocks(
    logs: Path, is_over: Callable[[], bool], room: Room, seen: dict[str, int]
) -> tuple[Iterable[Block], int]:
    """Return the last blocks that find room, and the number of lines between those that were seen and them."""
    kept: deque[tuple[Block, int]] = deque()
    characters = lines = left_out = 0
    for block in _blocks(logs, is_over, room.lines):
        block = _unseen(block, seen.get(block.task, 1))
        left_out += max(0, block.seq - seen.get(block.task, 1))
        seen[block.task] = max(seen.get(block.task, 1), block.seq + block.lines)
        if not block.lines:
            continue
        size = sum(map(len, _texts(block)))
        kept.append((block, size))
        characters, lines = characters + size, lines + block.lines
        while kept and (characters > room.characters or lines > room.lines):
            oldest, size = kept.popleft()
            characters, lines = characters - size, lines - oldest.lines
            left_out += oldest.lines
    return (block for block, _ in kept), left_out


def _unseen(block: Block, next_seq: int) -> Block:
    """Return the block without its lines before this one."""
    known = min(block.lines, max(0, next_seq - block.seq))
    if not known:
        return block
    rest = block.data.split(b"\n", known)
    data = rest[known] if len(rest) > known else b""
    return block._replace(data=data, seq=block.seq + known, partial=block.partial and bool(data))


def _blocks(logs: Path, is_over: Callable[[], bool], tail: int | None = None) -> Generator[Block, None, None]:
    start = None if tail is None else position_of_tail(logs, None, tail)
    for blocks in query_blocks(logs, LogQuery(), is_over, numbered=True, start=start):
        yield from blocks


def _texts(block: Block) -> list[str]:
    """Return the lines of a block as they are shown."""
    if block.lost:
        return [truncation_note(block.task, block.lost)]
    data = clean_lines(block.data, colour=False)
    texts = without_bidi(data.decode()).split("\n")
    if not block.partial:
        texts.pop()
    if len(data) + block.omitted <= _MOST_CHARACTERS:
        return texts
    return [text if len(text) <= _MOST_CHARACTERS else _cut(text, block.omitted) for text in texts]


def _cut(text: str, omitted: int) -> str:
    size = f"{len(text):,} characters" if not omitted else f"over {len(text):,} characters"
    return f"{text[:_MOST_CHARACTERS]} … ({size})"


def _always() -> bool:
    return True


def _never() -> bool:
    return False
