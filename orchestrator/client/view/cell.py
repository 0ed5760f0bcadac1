"""The lines of a run in a text stream of Python, which a notebook shows below a cell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from orchestrator.client.view import output
from orchestrator.client.view.folding import Folder
from orchestrator.client.view.log_line import LineStyle
from orchestrator.client.view.screen_queue import ScreenQueue
from orchestrator.client.view.terminal import TerminalView, screen_lines
from orchestrator.client.view.workflow import is_in_workflow, without_commands

# Lines that are shown as they come. The lines of a flood follow at a rate that a notebook can take, and the others are
# skipped. A line of more than 100 bytes counts as several.
_BURST_LINES = 5_000
_LINES_PER_S = 200
_BYTES_PER_LINE = 100
# Output within this distance is read even if it is skipped, so that the skipped lines can be counted.
_MAX_LAG_BYTES = 4 << 20
# The notebook wraps lines itself.
_SIZE = os.terminal_size((1 << 20, 24))
_HINT = "orch logs shows them"


class TextOutput:
    """A text stream of Python. Unlike Output, it waits until the stream has taken what is written."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = stream
        self._is_read_by_runner = is_in_workflow(environ)

    def write(self, data: bytes) -> None:
        text = (without_commands(data) if self._is_read_by_runner else data).decode("utf-8", "replace")
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()

    def drain(self, timeout: float) -> bool:
        """Return True: nothing waits."""
        return True


class CellView(TerminalView):
    """Like TerminalView, without the footer and without cursor movement, and with fewer lines of a flood."""

    def __init__(
        self, out: TextOutput, style: LineStyle, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(out, style, lambda: _SIZE, folder=Folder(_HINT))
        self._queue = ScreenQueue(_BURST_LINES, _BURST_LINES * _BYTES_PER_LINE)
        self._max_lag_bytes = _MAX_LAG_BYTES
        self._clock = clock
        self._counted = clock()
        self._allowed = float(_BURST_LINES)

    def hurry(self) -> None:
        """Do nothing: old output is always skipped."""

    def _paint(self, max_lines: int, max_bytes: int, *, with_footer: bool) -> None:
        """Write the lines that wait, with_footer: as many as the rate allows."""
        now = self._clock()
        self._allowed = min(_BURST_LINES, self._allowed + (now - self._counted) * _LINES_PER_S)
        self._counted = now
        if with_footer:
            if self._allowed < min(len(self._queue), _LINES_PER_S):
                return
            max_lines, max_bytes = int(self._allowed), int(self._allowed * _BYTES_PER_LINE)
        pieces = self._queue.pop(max_lines, max_bytes)
        self._allowed -= sum(max(piece.lines, len(piece.data) / _BYTES_PER_LINE) for piece in pieces)
        lines = [
            *self._skip_notes(),
            *(line for piece in pieces for line in screen_lines(piece, self._style, _SIZE.columns)),
        ]
        if lines:
            self._out.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))


def shows_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether to use colour: on a capable terminal and in a notebook, unless NO_COLOR is set."""
    if environ.get("NO_COLOR"):
        return False
    if type(stream).__module__.partition(".")[0] == "ipykernel":
        return True
    try:
        return output.is_capable(stream.fileno(), environ)
    except (AttributeError, OSError, ValueError):
        return False  # it has no descriptor
