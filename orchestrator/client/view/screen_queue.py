"""The lines that wait for the next frame of a terminal; the oldest are skipped if there are too many (pure)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.core.text.clean import last_frame
from orchestrator.store.logs.lines import Block

MAX_LINES = 20_000
MAX_BYTES = 4 << 20
# Blocks are split into pieces of about this size, so that few lines are skipped or painted at a time.
_PIECE_BYTES = 16 << 10
# A longer line is cut (after its last carriage return).
SCREEN_LINE_BYTES = 4_096


class Piece(NamedTuple):
    """Whole lines of a task, or a message of orch (`task` is None).

    `full_size` is not 0 for a single line that is cut: `data` is the part to show.
    """

    task: str | None
    time: float | None
    data: bytes
    lines: int
    full_size: int = 0


class ScreenQueue:
    """First in, first out; bounded in lines and bytes. Messages of orch are never skipped."""

    def __init__(self, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._pieces: deque[Piece] = deque()
        self._messages: list[Piece] = []
        self._skipped: Counter[str] = Counter()
        self._lines = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._lines + len(self._messages)

    def push(self, block: Block) -> None:
        """Add the block's lines, and skip the oldest lines if there are too many now."""
        for piece in _pieces(block):
            self._append(piece)
        self._skip()

    def say(self, text: str) -> None:
        """Add a message of orch, in its place between the tasks' lines."""
        self._append(Piece(None, None, text.encode("utf-8", "replace"), 1))

    def pop(self, max_lines: int, max_bytes: int) -> list[Piece]:
        """Remove and return the oldest pieces, of about this many lines and bytes together."""
        popped, self._messages = self._messages, []
        while self._pieces and max_lines > 0 and max_bytes > 0:
            piece = self._popleft()
            max_lines -= piece.lines
            max_bytes -= len(piece.data)
            popped.append(piece)
        return popped

    def take_skipped(self) -> dict[str, int]:
        """The number of lines of each task that were skipped since the last call."""
        skipped, self._skipped = self._skipped, Counter()
        return dict(skipped)

    def _append(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._lines += piece.lines
        self._bytes += len(piece.data)

    def _popleft(self) -> Piece:
        piece = self._pieces.popleft()
        self._lines -= piece.lines
        self._bytes -= len(piece.data)
        return piece

    def _skip(self) -> None:
        while len(self._pieces) > 1 and (self._lines > self._max_lines or self._bytes > self._max_bytes):
            piece = self._popleft()
            if piece.task is None:
                self._messages.append(piece)
            else:
                self._skipped[piece.task] += piece.lines


def _pieces(block: Block) -> Iterator[Piece]:
    """Split the block into pieces; a line longer than a piece is cut to the part that the screen shows."""
    task, time, data, omitted = block.task, block.time, block.data, block.omitted
    begin = 0
    while begin < len(data):
        end = data.rfind(b"\n", begin, begin + _PIECE_BYTES) + 1
        if end:
            part = data[begin:end]
            yield Piece(task, time, part, part.count(b"\n"))
        else:
            end = data.find(b"\n", begin) + 1 or len(data)
            line = data[begin:end].removesuffix(b"\n")
            if len(line) + omitted <= _PIECE_BYTES:  # the unterminated end of a block
                yield Piece(task, time, line, 1)
            else:
                frame = last_frame(line)
                shown = frame[:SCREEN_LINE_BYTES]
                # Earlier frames of a progress bar are overwritten, not cut.
                is_cut = omitted or len(frame) > SCREEN_LINE_BYTES
                yield Piece(task, time, shown, 1, full_size=len(line) + omitted if is_cut else 0)
        begin = end
