"""Reads a run once for all browsers that show it, and stores the changes until each browser has received them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from orchestrator.client.page.log_rows import log_rows
from orchestrator.client.page.pieces import Members, json_bytes
from orchestrator.core.errors import NoSuchRun, OrchError
from orchestrator.core.text.clean import safe
from orchestrator.store.logs.lines import Block
from orchestrator.store.runs.reader import RunView
from orchestrator.ui.browser import LARGE_BYTES, Reader, State, event, gap_rows
from orchestrator.ui.heap import return_free_memory
from orchestrator.ui.log_pieces import Cursor, LogTail, Piece, pieces_before, read_piece

if TYPE_CHECKING:
    from orchestrator.client.page.clock import RunClock

# Lines and points of curves that the page gets of the past of a run.
MOST_LINES, _MOST_POINTS = 1_000_000, 50_000
# Seconds between two looks at the logs and at the state of a live run, and at a run that is over.
_LINES_S, _STATE_S, _OVER_S = 0.15, 0.5, 2.0
# A run without a browser is closed after this time.
_LINGER_S = 20.0
# Pieces of the logs that one look reads.
_PIECES = 4
# Looks at the state take at most this share of the time: those at a run of thousands of busy tasks are rarer.
_STATE_SHARE = 1 / 20
# Bytes of lines that are kept for browsers that are a little behind, and bytes of logs after which lines are skipped.
_KEPT_BYTES, _MOST_BEHIND = 2 << 20, 2 << 20
# Bytes of new points of the curves that are kept. A browser that is further behind reads the whole run again.
_KEPT_POINT_BYTES = 2 << 20
# Values that change with the time alone. The page counts them itself.
_COUNTED = frozenset({"uptime_s", "restart_in_s", "silent_s"})
_names = itertools.count(int(time.time()))
T = TypeVar("T")


class _Part(NamedTuple):
    """A part of the document as JSON, and the version in which it has changed. `key` is that of its value without what
    only counts."""

    key: bytes
    version: int
    data: bytes


class _Batch(NamedTuple):
    begin: Cursor
    end: Cursor
    rows: bytes


class Page(Protocol):
    """Makes the document of a run: client/page/document.py."""

    @property
    def clock(self) -> RunClock: ...
    def refresh(self) -> bool: ...
    def changed_parts(self) -> Iterator[tuple[str, Any]]: ...
    def parts(self, most_points: int) -> Iterator[tuple[str, Any]]: ...


class Curves(Protocol):
    """Returns the new points of the curves: client/page/series.py."""

    def skip(self) -> None: ...
    def new_rows(self) -> dict[str, Any]: ...


class Hub:
    """The browsers of one run. Use it through Hubs."""

    def __init__(self, view: RunView, page: Page, curves: Curves) -> None:
        self.name = next(_names)
        self.readers = 0
        self.problem = ""
        self.is_closed = False
        self._view = view
        self._page = page
        self._curves = curves
        self._tail: LogTail | None = None
        self._version = 0
        self._parts: dict[str, _Part] = {}
        self._tasks: dict[str, _Part] = {}
        self._points: deque[tuple[int, bytes]] = deque()
        self._point_bytes = 0
        # The version of the last points that are no longer kept.
        self._points_from = 0
        self._batches: deque[_Batch] = deque()
        self._kept_to = Cursor()
        self._kept_bytes = 0
        self._state_due = 0.0
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    @property
    def shown_view(self) -> RunView | None:
        """The reader of the run, once it has read the events, and while it does."""
        return self._view if self._parts and not (self.is_closed or self.problem) else None

    @property
    def cursor(self) -> Cursor:
        return Cursor() if self._tail is None else self._tail.cursor

    async def follow(self) -> None:
        """Read new data until the run has had no browser for a while, or cannot be read."""
        unused_since = time.monotonic()
        while not (self.is_closed or self.problem):
            is_live = await self._read(self._read_new)
            now = time.monotonic()
            unused_since = now if self.readers else unused_since
            if now - unused_since > _LINGER_S:
                break
            await asyncio.sleep(_LINES_S if is_live else _OVER_S)

    async def document(self) -> bytes:
        """Return the whole document, and with it the state that a feed continues from. NoSuchRun."""
        document = await self._read(self._document)
        if self.problem or document is None:
            raise NoSuchRun(f"{self._view.record.id}: {self.problem}")
        return document

    async def last_lines(self, lines: int) -> bytes:
        """Return about this many last lines, the position before them and the cursor after them."""
        return await self._read(partial(self._last_lines, lines)) or b"{}"

    async def lines_before(self, record: int) -> AsyncIterator[bytes]:
        """Yield the lines before this position of the index, the last ones first, as lines of JSON."""
        pieces = pieces_before(self._view.paths.logs, record)
        left = MOST_LINES
        try:
            while left > 0 and not self.is_closed:
                found = await asyncio.to_thread(self._next_piece, pieces)
                if found is None:
                    return
                left -= found[0]
                yield found[1] + b"\n"
        finally:
            return_free_memory()

    async def feed(self, state: State, *, is_resumed: bool = False) -> AsyncIterator[bytes]:
        """Yield what is newer than `state`, for as long as the browser listens, as server-sent events.

        `is_resumed`: the connection was interrupted.
        """
        reader = Reader(self, state, is_resumed=is_resumed)
        self.readers += 1
        try:
            while not self.is_closed:
                news = self._news
                if not reader.can_continue:
                    yield event("reload", b"{}")
                    return
                async for message in reader.messages():
                    yield message
                if self.problem:
                    yield event("problem", json_bytes({"problem": self.problem}))
                    return
                try:
                    await asyncio.wait_for(news.wait(), reader.pause_s)
                except TimeoutError:
                    yield b":\n\n"
        finally:
            self.readers -= 1

    def close(self) -> None:
        """End the feeds, and close the files once nothing reads them."""
        self.is_closed = True
        self._wake()
        if not self._turn.locked():
            self._close_tail()

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _read(self, read: Callable[[], T]) -> T | None:
        """Call a function that reads the run in a thread, one at a time; None if the run cannot be read."""
        async with self._turn:
            before = (self._version, self.cursor)
            try:
                return await asyncio.to_thread(read)
            except (OrchError, OSError) as error:
                self.problem = safe(str(error))
                return None
            finally:
                if self.problem or before != (self._version, self.cursor):
                    self._wake()
                if self.is_closed:
                    self._close_tail()

    # -- in a thread

    def _read_new(self) -> bool:
        """Read what is due. Return whether more is expected."""
        is_live = self._view.is_live
        if time.monotonic() >= self._state_due:
            began = time.thread_time()
            self._read_state()
            cost_s = time.thread_time() - began
            self._state_due = time.monotonic() + max(_STATE_S if is_live else _OVER_S, cost_s / _STATE_SHARE)
        if self._tail is None or self._tail.cursor.is_end:
            return is_live
        if gap := self._tail.skip(_MOST_BEHIND):
            self._keep(gap_rows(gap))
        for _ in range(_PIECES):
            blocks = self._tail.read()
            if blocks is None:
                break
            self._keep(self._rows(blocks))
        else:
            return True
        if not is_live:
            self._keep(self._rows(self._tail.read_end()))
        return is_live

    def _document(self) -> bytes | None:
        self._read_state()
        if self.problem:
            return None
        feed = f"{self.name}.{self._version}"
        try:
            parts = self._page.parts(_MOST_POINTS)
            return json_bytes(Members(itertools.chain([("feed", feed)], parts)))
        finally:
            return_free_memory()

    def _read_state(self) -> None:
        if not self._exists():
            self.problem = "the run's directory was removed"
            return
        if not self._page.refresh() and self._parts:
            return
        is_first = not self._parts
        version = self._version + 1
        changed = False
        for name, part in self._page.changed_parts():
            if name == "tasks":
                for row in part.values:
                    changed |= _compare(self._tasks, str(row["task"]), row, version)
            elif name != "made_at":  # changes with the time alone
                changed |= _compare(self._parts, name, part, version)
        if is_first:
            self._curves.skip()
        elif (points := self._curves.new_rows()).get("tasks"):
            self._keep_points(version, json_bytes(points))
            changed = True
        self._version += changed

    def _keep_points(self, version: int, points: bytes) -> None:
        self._points.append((version, points))
        self._point_bytes += len(points)
        while len(self._points) > 1 and self._point_bytes > _KEPT_POINT_BYTES:
            self._points_from, dropped = self._points.popleft()
            self._point_bytes -= len(dropped)

    def _exists(self) -> bool:
        try:
            self._view.open_to_change().close()
        except OSError:
            return False
        return True

    def _last_lines(self, lines: int) -> bytes:
        logs, is_over = self._view.paths.logs, not self._view.is_live
        blocks: list[Block] = []
        cursor = before = None
        for piece in pieces_before(logs):
            is_last = cursor is None
            cursor = cursor or Cursor(piece.end, is_over)
            blocks[:0] = read_piece(logs, piece, is_last=is_last and is_over)
            before = piece.begin
            if sum(block.lines for block in blocks) >= lines:
                break
        if cursor is None:
            cursor = Cursor(0, is_over)
            blocks = read_piece(logs, Piece(0, 0), is_last=is_over)
        if self._tail is None:
            self._tail = LogTail(logs, cursor.record)
            self._kept_to = self._tail.cursor
        return json_bytes({"rows": self._rows(blocks), "before": before or 0, "cursor": str(cursor)})

    def _next_piece(self, pieces: Iterator[Piece]) -> tuple[int, bytes] | None:
        piece = next(pieces, None)
        if piece is None:
            return None
        rows = self._rows(read_piece(self._view.paths.logs, piece))
        return len(rows["text"]), json_bytes(rows)

    def _rows(self, blocks: Iterable[Block]) -> dict[str, Any]:
        return log_rows(blocks, self._page.clock)

    def _keep(self, rows: dict[str, Any]) -> None:
        """Keep these rows, which follow the last batch, for the feeds."""
        end = self.cursor
        data = json_bytes(rows) if rows["text"] else b""
        self._batches.append(_Batch(self._kept_to, end, data))
        self._kept_to = end
        self._kept_bytes += len(data)
        while len(self._batches) > 1 and self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._batches.popleft().rows)

    # -- for the feeds

    @property
    def version(self) -> int:
        return self._version

    def batch_after(self, cursor: Cursor) -> _Batch | None:
        return next((batch for batch in self._batches if batch.begin == cursor), None)

    def parts_after(self, versions: Mapping[str, int], version: int) -> Iterator[tuple[str, _Part]]:
        """Yield the parts that are newer than in `versions`, or than `version`."""
        for name, part in self._parts.items():
            if part.version > versions.get(name, version):
                yield name, part

    def large_parts(self) -> list[str]:
        return [name for name, part in self._parts.items() if len(part.data) > LARGE_BYTES]

    def tasks_after(self, version: int) -> list[bytes]:
        return [part.data for part in self._tasks.values() if part.version > version]

    def points_after(self, version: int) -> list[bytes]:
        return [points for at, points in self._points if at > version]

    def has_points_after(self, version: int) -> bool:
        """Whether all new points since this version are kept."""
        return version >= self._points_from

    async def catch_up(self, cursor: Cursor, until: Cursor) -> AsyncIterator[tuple[Cursor, bytes]]:
        """Yield the lines between two cursors, and the cursor after each part of them."""
        tail = LogTail(self._view.paths.logs, cursor.record, until.record)
        try:
            if gap := await asyncio.to_thread(tail.skip, _MOST_BEHIND):
                yield tail.cursor, json_bytes(gap_rows(gap))
            while (blocks := await asyncio.to_thread(tail.read)) is not None:
                yield tail.cursor, json_bytes(self._rows(blocks))
        finally:
            tail.close()


def _compare(known: dict[str, _Part], name: str, value: Any, version: int) -> bool:
    """Update this part. Return whether it differs."""
    key = blake2b(json_bytes(_without_counted(value)), digest_size=16).digest()
    if name in known and known[name].key == key:
        return False
    known[name] = _Part(key, version, json_bytes(value))
    return True


def _without_counted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: item for name, item in value.items() if name not in _COUNTED}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [_without_counted(item) for item in value]
    return value
