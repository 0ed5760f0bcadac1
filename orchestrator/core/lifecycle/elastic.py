"""`HostChoice`: the hosts and workers of each attempt of an elastic run, and when lost hosts are tried again (pure)."""

from __future__ import annotations

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Action, Happen, PlanAttempt, ReopenHosts
from orchestrator.core.plan.placement import fit
from orchestrator.core.progress.activity import join_names
from orchestrator.core.state.events import Event, HostJoined, HostLost, Noticed
from orchestrator.core.state.state import HostPhase, RunState
from orchestrator.core.text.counted import counted

# Seconds from the loss of a host until an attempt starts without it. Its agent may have been killed, not the machine.
REJOIN_S = 5.0
# Interval in which lost hosts are tried again, seconds.
RETRY_S = 10.0


class HostChoice:
    """Does nothing in a run that is not elastic.

    `awaited_until`: when choose() must be called, if no host changes before. `too_few`: why no attempt can start."""

    def __init__(self, spec: JobSpec) -> None:
        self.is_on = spec.is_elastic
        self.awaited_until: float | None = None
        self.too_few: str | None = None
        self._spec = spec
        self._workers = spec.workers
        # The job of the attempt that is being planned, once it is chosen.
        self._job: JobSpec | None = None
        # Hosts that were lost while it is planned, so that it does without them.
        self._left_out: set[str] = set()
        self._retry_at: float | None = None

    def retry_due(self, state: RunState) -> float | None:
        """When retry() must be called. Not during a teardown: a host that is back would no longer be its cause."""
        return self._retry_at if state.teardown is None else None

    def begin(self, state: RunState, mono: float) -> list[Action]:
        """Begin the choice for another attempt."""
        self._job = None
        self._left_out.clear()
        return self.retry(state, mono)

    def retry(self, state: RunState, mono: float) -> list[Action]:
        """Try again to reach the lost hosts."""
        is_wanted = self.is_on and bool(_lost(state))
        self._retry_at = mono + RETRY_S if is_wanted else None
        return [ReopenHosts()] if is_wanted else []

    def lose(self, event: HostLost) -> None:
        """Have a host that is lost while an attempt runs tried again."""
        if self.is_on and self._retry_at is None:
            self._retry_at = event.mono + RETRY_S

    def lose_planned(self, state: RunState, event: HostLost) -> list[Action]:
        """Plan without a host that is lost while an attempt is planned; `state` has the loss."""
        self.lose(event)
        self._left_out.add(event.host)
        if self._job is not None and event.host in {host.name for host in self._job.hosts}:
            self._job = None
        return [_notice(event, f"{event.host} was lost: {event.reason}"), *self.choose(state, event)]

    def join(self, before: RunState, event: HostJoined, *, is_planning: bool) -> list[Action]:
        """Report a host that has joined too late for this attempt."""
        is_late = event.host in (self._left_out if is_planning else _lost(before))
        if not self.is_on or not is_late:
            return []
        text = f"{event.host} is back: the next attempt uses it (`orch restart` starts one now)"
        return [_notice(event, text)]

    def choose(self, state: RunState, event: Event) -> list[Action]:
        """Plan the next attempt, unless it has to wait for hosts, or `too_few` are left."""
        if not self.is_on or self._job is not None or len(state.hosts) < len(self._spec.hosts):
            return []
        lost = set(_lost(state))
        ends = [(state.hosts[host].lost_mono or 0.0) + REJOIN_S for host in lost - self._left_out]
        self.awaited_until = max((end for end in ends if end > event.mono), default=None)
        if self.awaited_until is not None:
            return []
        self._job = fit(self._spec, state.hosts.keys() - self._away(state))
        if self._job is None:
            self.too_few = self._too_few_text(state)
            return []
        text = self._change_text(state, self._job.workers)
        self._workers = self._job.workers
        plan = PlanAttempt(state.attempt + 1, self._job)
        return [plan] if text is None else [_notice(event, text), plan]

    def _change_text(self, state: RunState, workers: int) -> str | None:
        """Return the notice about another number of workers than in the last attempt; None if it is the same."""
        if workers == self._workers:
            return None
        has = f"attempt {state.attempt + 1} has {counted(workers, 'worker')}"
        if workers == self._spec.workers:
            return f"{has} again"
        if workers > self._workers:
            return f"{has} instead of {self._workers}"
        away = sorted(self._away(state))
        return (
            f"{has} instead of {self._workers}: {join_names(away)} {'is' if len(away) == 1 else 'are'} lost"
        )

    def _away(self, state: RunState) -> set[str]:
        """The hosts that the next attempt does without."""
        return {*_lost(state), *self._left_out}

    def _too_few_text(self, state: RunState) -> str:
        away = self._away(state)
        left = [host.name for host in self._spec.hosts if host.name not in away]
        has = "no host is left"
        if left:
            has = f"{join_names(left)} {'has' if len(left) == 1 else 'have'} too few slots"
        return f"{has} for {counted(self._spec.fewest_workers or 0, 'worker')}, the fewest of --workers"


def _lost(state: RunState) -> list[str]:
    return [host.name for host in state.hosts.values() if host.phase is HostPhase.LOST]


def _notice(event: Event, text: str) -> Happen:
    return Happen(Noticed(at=event.at, mono=event.mono, text=text))
