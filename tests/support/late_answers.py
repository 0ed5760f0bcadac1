"""Repeats a question to tasks that were late on a busy machine, within a budget for the whole test process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

# Late answers that a test process accepts in all its tests. A product that is late half of the time exceeds it.
_MOST_LATE = 3

T = TypeVar("T")
_late = 0


def ask_until_timely(ask: Callable[[], T | None]) -> T:
    """Return the first answer that is not None. AssertionError if too many were late so far."""
    global _late
    while (answer := ask()) is None:
        _late += 1
        assert _late <= _MOST_LATE, f"{_late} late answers in this test process"
    return answer
