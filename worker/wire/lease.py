"""Pings over a link: whether the other end answers, and by how much its clock differs from ours.

The supervisor sends a Ping each second, the agent answers it at once, and the supervisor confirms the answer at once.
Each end measures the time since it sent the newest ping that the other end has received, so that a cut in one direction
counts, too.
"""

from __future__ import annotations

import math
from collections import deque

from worker.wire.codec import BadMessage
from worker.wire.messages import Ping

# Number of last measurements of the other clock. The most exact one counts.
_CLOCK_SAMPLES = 8


class Lease:
    """The pings of one end of a link. `confirmed`: when the newest ping was sent that the other end has received."""

    def __init__(self, now: float) -> None:
        self.confirmed = now
        # The clock of the other end minus ours, and the largest error of that.
        self.clock = (0.0, math.inf)
        self._sent = self._echo = -math.inf
        self._received: tuple[float, float] | None = None
        self._samples: deque[tuple[float, float]] = deque(maxlen=_CLOCK_SAMPLES)

    def ping(self, now: float) -> Ping:
        """Return the ping to send now."""
        self._sent = now
        echo, at = self._received or (None, now)
        return Ping(now, echo, now - at)

    def take(self, ping: Ping, now: float) -> bool:
        """Take a ping of the other end, and return whether it confirms a newer one of ours. BadMessage."""
        self._received = ping.mono, now
        if ping.echo is None or ping.echo <= self._echo:
            return False
        if ping.echo > self._sent:
            raise BadMessage("it confirms a ping that was never sent")
        trip_s = now - ping.echo - ping.held_s
        if trip_s >= 0.0:
            # It was received at mono - held_s, on the way back for the other half of the trip.
            self._samples.append((trip_s / 2, (ping.mono - ping.held_s - ping.echo + ping.mono - now) / 2))
            error, offset = min(self._samples)
            self.clock = offset, error
        self._echo = self.confirmed = ping.echo
        return True
