"""`StartQueue`: the order in which the connections to many hosts are started."""

from __future__ import annotations

from collections.abc import Callable, Hashable

# By default sshd refuses connections at random while ten others have not logged in yet (MaxStartups 10:30:100). With a
# jump host, those to all hosts count together there.
MOST_STARTING = 8
# A connection that takes longer no longer delays the next ones: its host may be off.
_SLOW_S = 2.0


class StartQueue:
    """At most so many connections are being opened at the same time. All times are monotonic seconds."""

    def __init__(self, most: int = MOST_STARTING, slow_s: float = _SLOW_S) -> None:
        self._most = most
        self._slow_s = slow_s
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._starting: dict[Hashable, float] = {}
        self._is_advancing = False

    @property
    def due(self) -> float | None:
        """When advance() may start more."""
        return min(self._starting.values()) + self._slow_s if self._waiting and self._starting else None

    def enter(self, key: Hashable, start: Callable[[], None], now: float) -> None:
        """Call `start` now, or when its turn has come."""
        self._waiting[key] = start
        self.advance(now)

    def leave(self, key: Hashable, now: float) -> None:
        """The connection is open, or is not wanted any more. A second call changes nothing."""
        self._waiting.pop(key, None)
        if self._starting.pop(key, None) is not None:
            self.advance(now)

    def advance(self, now: float) -> None:
        """Start those whose turn has come."""
        if self._is_advancing:
            return  # called by a start that failed at once
        self._is_advancing = True
        try:
            for key in [key for key, began in self._starting.items() if now - began >= self._slow_s]:
                del self._starting[key]
            while self._waiting and len(self._starting) < self._most:
                key = next(iter(self._waiting))
                self._starting[key] = now
                self._waiting.pop(key)()
        finally:
            self._is_advancing = False
