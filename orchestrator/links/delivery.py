"""Frames that arrive once and in order over several connections, one after the other.

worker/agent/delivery.py has the same code: neither package imports the other.

A frame is a number, a space, JSON and a newline. Numbers start at 1 and have no gap; each side keeps its frames until
the other has acknowledged them, and sends the rest again over a new connection. Frames with the number 0 belong to one
connection and are not repeated:

    resume {agent_id, turn, heard}     the first in each direction; only `heard` from the agent. If several connections
                                       are open, both ends use the one with the highest `turn`
    ping {mono, echo, held_s, heard}   `echo`: `mono` of the newest ping that was received, `held_s` seconds ago
    heard {heard}                      the newest number that was received
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

# Longest line of an agent. Its longest text is the exception of a task.
MAX_LINE_BYTES = 16 << 20
_LONGEST_NUMBER = 19


class BadFrame(ValueError):
    """The other end does not keep to the format."""


class LineTooLong(BadFrame):
    """The other end sends a line without an end."""

    def __init__(self) -> None:
        super().__init__(f"a message of more than {MAX_LINE_BYTES >> 20} MiB")


class LineSplitter:
    """Cuts received bytes into lines. Takes time in proportion to the bytes, however long a line is."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their ends. LineTooLong."""
        first, *rest = data.split(b"\n")
        lines = []
        self._keep(first)
        for piece in rest:
            lines.append(b"".join(self._pieces))
            self._pieces, self._length = [], 0
            self._keep(piece)
        return lines

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._length += len(piece)
            if self._length > MAX_LINE_BYTES:
                raise LineTooLong


class Delivery:
    """The frames of one stream, in both directions. `last` is the newest number that was sent, `heard` the newest that
    was received."""

    def __init__(self) -> None:
        self.heard = 0
        self.last = 0
        self._kept: deque[tuple[int, bytes]] = deque()

    @property
    def acknowledged(self) -> int:
        """The newest of our numbers that the other end has received."""
        return self._kept[0][0] - 1 if self._kept else self.last

    @property
    def is_all_acknowledged(self) -> bool:
        return not self._kept

    def number(self, line: bytes) -> bytes:
        """Return the frame of a new line, and keep it."""
        self.last += 1
        # Without a copy of the line, which may go to many hosts.
        self._kept.append((self.last, line))
        return _frame(self.last, line)

    def acknowledge(self, heard: object) -> None:
        """Drop what the other end has received. BadFrame if it cannot have received that."""
        if not isinstance(heard, int) or not 0 <= heard <= self.last:
            raise BadFrame(f"frame {heard!r} is acknowledged, but was never sent")
        while self._kept and self._kept[0][0] <= heard:
            self._kept.popleft()

    def unacknowledged(self) -> Iterator[bytes]:
        """The frames to send again."""
        return (_frame(number, line) for number, line in self._kept)

    def accept(self, number: int) -> bool:
        """Whether a frame is new. BadFrame if others before it are missing."""
        if number <= self.heard:
            return False
        if number != self.heard + 1:
            raise BadFrame(f"frame {number} follows frame {self.heard}")
        self.heard = number
        return True


def _frame(number: int, line: bytes) -> bytes:
    return b"%d %s" % (number, line)


def split_frame(line: bytes) -> tuple[int, bytes]:
    """Return (number, JSON). BadFrame."""
    number, space, body = line.partition(b" ")
    if not space or not number.isdigit() or len(number) > _LONGEST_NUMBER:
        raise BadFrame(f"not a frame: {line[:200]!r}")
    return int(number), body


def own_frame(kind: str, **fields: object) -> bytes:
    """A frame of the connection itself."""
    return b"0 " + json.dumps({"type": kind, **fields}).encode() + b"\n"


def read_own_frame(body: bytes) -> dict[str, Any]:
    """Return the fields of a frame of the connection itself. BadFrame."""
    try:
        fields = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not a frame: {error}") from error
    if not isinstance(fields, dict):
        raise BadFrame(f"not a frame: {body[:200]!r}")
    return fields


def seconds(value: object) -> float:
    """A number of seconds from the other end. BadFrame."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        raise BadFrame(f"not a number of seconds: {value!r:.50}")
    return float(value)


def _refuse(constant: str) -> float:
    raise BadFrame(f"{constant} is not a number")
