"""Converts the times of log lines to seconds since the start of the run (pure).

Lines have the time of the wall clock, which may be set while the run is on; events have both clocks.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.state.events import Event

# A smaller difference between the clocks is drift. Each larger one is a jump.
_JUMP_S = 0.5
# How far the time of a line may be from the events around it.
_SLACK_S = 1.0
_MOST_JUMPS = 1000


class _Span(NamedTuple):
    """The clock of the wall from one jump to the next. Unix seconds minus `offset` are seconds since the start."""

    begin: float
    offset: float


class RunClock:
    """Add the clocks of each event in turn, then ask for the times of lines in their order."""

    def __init__(self, started_at: float, started_mono: float) -> None:
        self._started_mono = started_mono
        self._spans = [_Span(0.0, started_at)]
        self._last = 0.0

    def add(self, at: float, mono: float) -> None:
        """`at` is Unix seconds and `mono` monotonic seconds of the same moment."""
        since_start = max(0.0, mono - self._started_mono)
        offset = at - since_start
        if abs(offset - self._spans[-1].offset) > _JUMP_S and len(self._spans) < _MOST_JUMPS:
            self._spans.append(_Span(self._last, offset))
        self._last = since_start

    def of_event(self, event: Event) -> float:
        """Return the seconds since the start of the run, to the millisecond."""
        return round(max(0.0, event.mono - self._started_mono), 3)

    def since_start(self, at: float | None, after: float = 0.0) -> float | None:
        """Return the seconds since the start; None if the time is not known. `after`: that of an earlier line."""
        if at is None:
            return None
        for number, (begin, offset) in enumerate(self._spans):
            time = at - offset
            is_last = number == len(self._spans) - 1
            end = None if is_last else self._spans[number + 1].begin
            fits = time >= max(begin, after) - _SLACK_S
            if fits and (end is None or time <= end + _SLACK_S):
                return max(0.0, time)
        return max(0.0, at - self._spans[-1].offset)
