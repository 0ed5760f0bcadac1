"""`HostNotices`: what is said about hosts that are silent or back. Many at the same time are one line."""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.core.diagnosis.across_hosts import hosts_notice
from orchestrator.core.state.events import HostBack, HostSilent
from orchestrator.core.state.state import HostPhase, RunState, TaskState

# A notice that follows the last one sooner waits for others. A cut is noticed within one ping interval on all hosts.
_GATHER_S = 1.0


class HostNotices:
    """The first notice is said at once, so that a single host is named without a delay."""

    def __init__(self) -> None:
        self._gathered: dict[str, HostSilent | HostBack] = {}
        self._quiet_until = 0.0

    @property
    def due(self) -> float | None:
        """When say() has something to say (monotonic seconds)."""
        return self._quiet_until if self._gathered else None

    def update(self, state: RunState, changed: Collection[TaskState], mono: float) -> None:
        """Drop the lost hosts: their loss is reported by itself."""
        for host in [*self._gathered]:
            if state.hosts[host].phase is HostPhase.LOST:
                del self._gathered[host]

    def take(self, event: HostSilent | HostBack) -> list[str]:
        """Return what to say now. A host that was silent and is back before it was named is not named."""
        earlier = self._gathered.pop(event.host, None)
        if earlier is None or type(earlier) is type(event):
            self._gathered[event.host] = event
        return self.say(event.mono)

    def say(self, mono: float) -> list[str]:
        """Return what to say now about the gathered hosts."""
        if mono < self._quiet_until or not self._gathered:
            return []
        self._quiet_until = mono + _GATHER_S
        events, self._gathered = [*self._gathered.values()], {}
        kinds = [[event for event in events if isinstance(event, kind)] for kind in (HostSilent, HostBack)]
        return [hosts_notice(same) for same in kinds if same]
