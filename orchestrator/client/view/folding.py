"""Fold the lines of all tasks for the screen: start-up lines, equal lines of several tasks, repeated warnings (pure).

The logs stay complete. Time is the time of arrival, in Unix seconds.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.core.text.clean import last_frame
from orchestrator.core.text.counted import counted
from orchestrator.core.text.startup_lines import (
    StartupLine,
    begins_options,
    is_option,
    native_warning,
    startup_line,
    without_keras_faults,
    without_native_prefix,
    without_startup_end,
)
from orchestrator.store.logs.lines import Block

# Seconds in which tasks must print the same line, and the longest delay of a line.
WINDOW_S = 0.3
# How to see all lines, for views that fold unless asked not to.
ALL_LINES_HINT = "--all-lines shows them"
# A larger block is a flood, and so are more lines of a task in one window.
_MAX_BLOCK_BYTES, _MAX_WINDOW_LINES = 32 << 10, 250
# Limits of the lines that wait, of those with the same text, and of the remembered warnings of a task.
_MAX_HELD, _MAX_EQUAL, _MAX_WARNINGS = 1_000, 8, 256
_WARNING = re.compile(rb"(\S+\.py:\d+: \w*Warning): |WARNING:(\w+:.*)")
# Differs from one warning of the same code line to the next: `at 0x7f66`, `5 out of the last 6 calls`.
_VARYING = re.compile(rb"0x[0-9a-f]+|\d+")
_STEP_TIME = re.compile(rb"(?<!\d)\d+(?:\.\d+)?(?:[mun]?s|m|h)\b(?:/step)?|(?<![\d.,])[\d.,]+ steps/s")
_TRACEBACK = b"Traceback (most recent call last):"
_SOURCE_INDENT = b"  "
_SHOWN_PLACE_BYTES = 120
_MAX_PLACE_BYTES = 1_000
# A repeated warning is reported at these counts, and at the end.
_REPORTED_COUNTS = frozenset(10**power for power in range(1, 10))


@dataclass(eq=False)
class _Line:
    """A line that waits for other tasks to print it. `startup_lines` is its number of folded lines."""

    number: int
    key: bytes
    block: Block
    tasks: list[str]
    startup_lines: int = 0


@dataclass
class _Task:
    """Counts of what was folded in one attempt of a task."""

    attempt: int
    block: Block
    startup_lines: int = 0
    has_started: bool = False
    is_start_shown: bool = False
    warnings: Counter[bytes] = field(default_factory=Counter)
    reported: dict[bytes, int] = field(default_factory=dict)
    skips_source: bool = False
    is_in_options: bool = False


class Folder:
    """Blocks in, fewer blocks out. A folded block's task is the label of several tasks: `worker:0-3`.

    The lines of each task keep their order. A line waits until all expected tasks have printed it, WINDOW_S at most.
    """

    def __init__(self, hint: str, shown: Collection[str] | None = None, *, verbose: bool = False) -> None:
        """`hint` says how to see all lines. `shown`: the tasks whose blocks will come (None: all). `verbose` keeps
        the list of Keras's faults."""
        self._hint = hint
        self._shown = shown
        self._verbose = verbose
        self._expected: frozenset[str] = frozenset()
        self._held: deque[_Line] = deque()
        self._by_key: dict[bytes, list[_Line]] = {}
        self._number = 0
        self._last: dict[str, int] = {}
        self._tasks: dict[str, _Task] = {}
        self._rates: dict[str, tuple[float, int]] = {}

    def expect(self, tasks: Iterable[str]) -> None:
        """Set the tasks that can print lines now. A line that all of them have printed waits no longer."""
        self._expected = frozenset(task for task in tasks if self._shown is None or task in self._shown)

    def feed(self, block: Block) -> list[Block]:
        """Add a block; return what can be shown now."""
        is_whole = block.time is not None and not (block.lost or block.omitted or block.partial)
        if not is_whole or self._is_flood(block):
            return [*self.release_all(), block]
        now = block.time or 0.0
        released = self.release(now)
        for line in block.data.split(b"\n")[:-1]:
            if b"\r" in line and line.endswith(_TRACEBACK):
                # A progress bar has no newline before an exception.
                self._take(line.removesuffix(_TRACEBACK), block)
                line = _TRACEBACK
            self._take(line, block)
        return released + self.release(now)

    def release(self, now: float) -> list[Block]:
        """Return the lines that have waited long enough at `now`."""
        for task in self._tasks.values():
            if task.has_started and not task.is_start_shown and self._is_due(task.block, now):
                self._show_start(task, task.block._replace(time=now))
        released = []
        while self._held and (self._is_ready(self._held[0], now) or len(self._held) > _MAX_HELD):
            released.append(self._pop())
        return list(_joined(self._shown_block(line) for line in released))

    def release_all(self) -> list[Block]:
        """Return all lines that wait."""
        released = [self._pop() for _ in range(len(self._held))]
        return list(_joined(self._shown_block(line) for line in released))

    def finish(self) -> list[Block]:
        """Return all lines that wait, and the counts that were not shown yet. No blocks follow."""
        for name in list(self._tasks):
            self._end_attempt(name)
        return self.release_all()

    def _is_flood(self, block: Block) -> bool:
        """Whether the task prints so much that the time is better spent on showing its lines."""
        if len(block.data) > _MAX_BLOCK_BYTES:
            return True
        now = block.time or 0.0
        began, lines = self._rates.get(block.task, (now, 0))
        if abs(now - began) >= WINDOW_S:
            began, lines = now, 0
        lines += block.lines
        self._rates[block.task] = (began, lines)
        return lines > _MAX_WINDOW_LINES

    def _take(self, line: bytes, block: Block) -> None:
        name = block.task
        task = self._tasks.get(name)
        if task is None or task.attempt != block.attempt:
            self._end_attempt(name)
            task = self._tasks[name] = _Task(block.attempt, block)
        step = startup_line(line)
        if step is None and task.is_in_options and is_option(line):
            step, task.is_in_options = StartupLine.START, bool(line)
        else:
            task.is_in_options = step is not None and begins_options(line)
        if step is not None:
            task.startup_lines += 1
            task.has_started |= step is StartupLine.START
            task.block = block
            return
        if task.has_started and not task.is_start_shown:
            self._show_start(task, block)
        if not self._is_repeated(line, task, block):
            self._hold(self._shortened(without_startup_end(line)), block)

    def _is_repeated(self, line: bytes, task: _Task, block: Block) -> bool:
        """Whether `line` belongs to a warning that was shown before. It is counted."""
        place = _warning_place(line)
        if place is None:
            # Python prints the source line after a warning.
            is_source, task.skips_source = task.skips_source and line.startswith(_SOURCE_INDENT), False
            return is_source
        if place not in task.warnings and len(task.warnings) >= _MAX_WARNINGS:
            return False
        task.warnings[place] += 1
        count = task.warnings[place]
        task.skips_source = count > 1
        if count in _REPORTED_COUNTS:
            self._show_count(place, task, block)
        return count > 1

    def _show_count(self, place: bytes, task: _Task, block: Block) -> None:
        task.reported[place] = count = task.warnings[place]
        text = place.removeprefix(b"WARNING:")[:_SHOWN_PLACE_BYTES]
        self._hold(f"(repeated {counted(count, 'time')}) ".encode() + text, block)

    def _show_start(self, task: _Task, block: Block) -> None:
        task.is_start_shown = True
        self._hold(b"TensorFlow started", block, task.startup_lines)

    def _end_attempt(self, name: str) -> None:
        task = self._tasks.get(name)
        if task is None:
            return
        if task.startup_lines and not task.is_start_shown:
            self._show_start(task, task.block)
        for place, count in task.warnings.items():
            if count > 1 and task.reported.get(place) != count:
                self._show_count(place, task, task.block)

    def _shortened(self, line: bytes) -> bytes:
        return line if self._verbose else without_keras_faults(line)

    def _hold(self, line: bytes, block: Block, startup_lines: int = 0) -> None:
        """Add the line to an equal one of another task that still waits, else to the end."""
        key, name = _key(line), block.task
        equal = self._by_key.setdefault(key, [])
        last = self._last.get(name, 0)
        for held in equal:
            # Only after the task's last line, so that its lines keep their order.
            if held.number > last and bool(held.startup_lines) == bool(startup_lines):
                held.tasks.append(name)
                held.startup_lines += startup_lines
                self._last[name] = held.number
                return
        self._number += 1
        self._last[name] = self._number
        made = _Line(self._number, key, block._replace(data=line + b"\n"), [name], startup_lines)
        self._held.append(made)
        if len(equal) < _MAX_EQUAL:
            equal.append(made)

    def _is_ready(self, line: _Line, now: float) -> bool:
        expected = self._expected
        # When all tasks have ended, some of their lines may not be read yet.
        is_complete = 0 < len(expected) <= len(line.tasks) and expected.issubset(line.tasks)
        return is_complete or self._is_due(line.block, now)

    @staticmethod
    def _is_due(block: Block, now: float) -> bool:
        # The clock may have been set back.
        return abs(now - (block.time or 0.0)) >= WINDOW_S

    def _pop(self) -> _Line:
        line = self._held.popleft()
        equal = self._by_key.get(line.key, [])
        if line in equal:
            equal.remove(line)
        if not equal:
            self._by_key.pop(line.key, None)
        return line

    def _shown_block(self, line: _Line) -> Block:
        data = line.block.data
        if line.startup_lines:
            data = f"TensorFlow started ({counted(line.startup_lines, 'line')}; {self._hint})\n".encode()
        return line.block._replace(task=group_label(line.tasks), data=data)


def group_label(tasks: Collection[str]) -> str:
    """`worker:0`, `worker:0-3`, `worker:0,2-3`, `chief:0 worker:0-1`."""
    if len(tasks) == 1:
        return next(iter(tasks))
    indices: dict[str, list[int]] = {}
    for task in sorted(tasks, key=lambda name: name.partition(":")[0]):
        role, _, index = task.partition(":")
        indices.setdefault(role, []).append(int(index or 0))
    return " ".join(f"{role}:{','.join(_ranges(sorted(found)))}" for role, found in indices.items())


def _ranges(numbers: list[int]) -> Iterator[str]:
    first = numbers[0]
    for number, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following != number + 1:
            yield str(first) if first == number else f"{first}-{number}"
            first = following or 0


def _key(line: bytes) -> bytes:
    """Return the part that equal lines share: without the time of a native line, or the duration of the steps."""
    if b"\r" in line:
        line = last_frame(line)
    if b"/step" in line or b"steps/s" in line:
        return _STEP_TIME.sub(b"", line)
    return without_native_prefix(line)


def _warning_place(line: bytes) -> bytes | None:
    """The code line that a warning names, or its text without numbers if it names none; None for other lines."""
    if len(line) > _MAX_PLACE_BYTES or (b"arning" not in line and b"WARNING" not in line):
        return native_warning(line)
    found = _WARNING.match(line)
    if found is None:
        return native_warning(line)
    return found[1] or b"WARNING:" + _VARYING.sub(b"N", found[2])


def _joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Join adjacent blocks of the same task and time."""
    parts: list[bytes] = []
    first: Block | None = None
    for block in blocks:
        if first is not None and (block.task, block.time, block.attempt) != (
            first.task,
            first.time,
            first.attempt,
        ):
            yield first._replace(data=b"".join(parts))
            first, parts = None, []
        first = first or block
        parts.append(block.data)
    if first is not None:
        yield first._replace(data=b"".join(parts))
