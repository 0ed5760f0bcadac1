"""Reads the directory of a run that another supervisor has left, and decides how the run continues."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.continuing import fence_s, interrupted_end
from orchestrator.core.state.events import (
    AttemptPlanned,
    Event,
    HostLost,
    RestartPlanned,
    TaskStarted,
    TeardownEnded,
)
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState
from orchestrator.store.runs.event_file import EventTail, shifted
from orchestrator.store.runs.record import EarlierClock, RunRecord, boot_id
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor import now


@dataclass(frozen=True)
class Earlier:
    """`clocks`: those of all earlier supervisors. `state`: the last one, by the clock of this process. `restart`: the
    event that begins the next attempt; None if no attempt has begun."""

    clocks: tuple[EarlierClock, ...]
    state: RunState
    restart: RestartPlanned | None

    @property
    def waiting_state(self) -> RunState:
        """The state of the run while it waits for the nodes of its next attempt."""
        return RunState() if self.restart is None else apply(self.state, self.restart)


def read_earlier(store: RunStore, record: RunRecord, spec: JobSpec) -> Earlier:
    """Read the events of a run that this process has locked. `record`: that of its last supervisor."""
    events = EventTail(store.paths.events, record.earlier_clocks).read()
    shift_s = _shift_s(record, events)
    state, is_empty = RunState(), True
    for event in events:
        try:
            state = apply(state, shifted(event, shift_s))
        except (KeyError, ValueError):
            continue  # of a damaged line
        match event:
            # The agents may have got the order to start tasks of which no event was written.
            case AttemptPlanned() | TaskStarted() | HostLost():
                is_empty = False
            case TeardownEnded():
                is_empty = state.lost_host is None and not event.left
    size = store.directory.lstat(store.paths.events.name).st_size
    clocks = (
        *(clock.model_copy(update={"shift_s": clock.shift_s + shift_s}) for clock in record.earlier_clocks),
        EarlierClock(until=size, shift_s=shift_s),
    )
    if not state.attempt:
        return Earlier(clocks, state, None)
    delay_s = 0.0 if is_empty else fence_s(spec, time.time() - _last_sign(store, events))
    restart = RestartPlanned(**now(), ended=interrupted_end(state), delay_s=delay_s, job=record.job or "")
    return Earlier(clocks, state, restart)


def _shift_s(record: RunRecord, events: list[Event]) -> float:
    """Return the seconds to add to the monotonic times of the earlier supervisor: another machine has another clock."""
    is_same = record.boot_id == boot_id() and record.host == platform.node()
    if is_same or not events:
        return 0.0
    last = events[-1]
    return (last.at - last.mono) - (time.time() - time.monotonic())


def _last_sign(store: RunStore, events: list[Event]) -> float:
    """When the earlier supervisor was last seen (Unix seconds): it writes a sample every one or two seconds."""
    sample = (store.directory.read_object(store.paths.sample.name) or {}).get("at")
    return max(events[-1].at, sample if isinstance(sample, int | float) else 0.0)
