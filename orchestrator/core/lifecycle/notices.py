"""Notices that the machines of a run will go: when an allocation's end gives one, and what the tasks get (pure)."""

from __future__ import annotations

from orchestrator.core.lifecycle.actions import Action, Happen
from orchestrator.core.state.events import (
    DeadlineReached,
    NoticeGiven,
    NoticeSource,
    StopReason,
    TeardownReason,
)
from orchestrator.core.state.state import RunState

# The part of the time left that is reserved for SIGKILL and the end of the run, and its limit in seconds.
_RESERVED_PART = 0.25
_MOST_RESERVED_S = 10.0
# An end that is so many seconds later than expected is a new one.
_LATER_S = 2.0


class AllocationEnd:
    """Gives the notice before the end of an allocation. `due`: when to ask for its end (monotonic seconds)."""

    def __init__(self, notice_s: float, ends_mono: float | None) -> None:
        self._notice_s = notice_s
        self.due = None if ends_mono is None else ends_mono - notice_s

    def reached(self, event: DeadlineReached) -> list[Action]:
        """Give the notice, or wait on if the allocation was given more time."""
        left_s = self._notice_s if event.left_s is None else event.left_s
        if left_s > self._notice_s + _LATER_S:
            self.due = event.mono + left_s - self._notice_s
            return []
        self.due = None
        source = NoticeSource.TIME_LIMIT
        return [Happen(NoticeGiven(at=event.at, mono=event.mono, source=source, left_s=left_s))]


def grace_of(notice: NoticeGiven, default_s: float) -> float:
    """Seconds from SIGTERM to SIGKILL. `default_s`: if it is not known how much time is left."""
    if notice.left_s is None:
        return default_s
    return max(0.0, notice.left_s - min(_MOST_RESERVED_S, notice.left_s * _RESERVED_PART))


def ending_notice(state: RunState) -> NoticeGiven | None:
    """The notice that ended the attempt. A stop wins over it, except the SIGTERM that Slurm sends to a batch job."""
    notice, stop = state.notice, state.stop
    if notice is None or state.teardown not in (TeardownReason.NOTICE, TeardownReason.REQUEST):
        return None
    is_of_slurm = notice.source is NoticeSource.SLURM
    return notice if stop is None or (is_of_slurm and stop.reason is StopReason.TERMINATE) else None
