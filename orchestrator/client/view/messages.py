"""Attempts and events of a run as messages for the user (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from orchestrator.client.view.amounts import duration, short_duration
from orchestrator.client.view.status_document import Queued
from orchestrator.core.diagnosis.cause import describe_notice, sent_by
from orchestrator.core.diagnosis.shortages import over_limit_text
from orchestrator.core.progress.activity import join_names
from orchestrator.core.state.events import (
    Event,
    Noticed,
    NoticeGiven,
    Preload,
    RestartPlanned,
    Resumed,
    SignalRequested,
    TaskExited,
    TaskRestartPlanned,
)
from orchestrator.core.state.result import AttemptEnd, RunResult, exit_text, signal_name
from orchestrator.core.state.state import HostPhase, HostState
from orchestrator.core.text.clean import one_line
from orchestrator.core.text.counted import counted

_MOST_CHANGES = 8


def event_message(event: Event, most: int | None, *, verbose: bool = False) -> str | None:
    """Return the message that is shown when this event happens, if there is one; `most`: attempts at most."""
    match event:
        case RestartPlanned():
            following = attempt_text(event.ended.attempt + 1, most)
            return f"{end_text(event.ended)}; {following} {_in(event.delay_s)}"
        case TaskRestartPlanned():
            return f"{event.task}: {one_line(event.text)}; restarting this task {_in(event.delay_s)}"
        case Resumed():
            resumed = resumed_text(event.position, event.steps_lost, event.exact) or "is training again"
            return f"attempt {event.attempt} {resumed}, {short_duration(event.recovery_s)} later"
        case TaskExited() if event.exit.over_limit is not None:
            return f"{event.task} {over_limit_text(*event.exit.over_limit)}: it got SIGKILL"
        case SignalRequested():
            return f"{event.task} gets {signal_name(event.signal)}, {sent_by(event)}"
        case NoticeGiven():
            return f"{describe_notice(event)}; the tasks get SIGTERM, to save their state and end"
        case Noticed():
            return event.text if verbose or not event.verbose else None
        case Preload() if verbose and event.refused is not None:
            return f"not preloaded: {event.refused}"
        case Preload() if verbose and event.seconds is not None:
            took = f"in {event.seconds:.1f} s" if event.seconds else "by an earlier run"
            return f"preloaded {', '.join(event.modules)} {took}"
        case _:
            return None


def awaited_text(hosts: Iterable[HostState]) -> str | None:
    """Return for which hosts a stop waits; None if all of them answer."""
    silent = [host.name for host in hosts if host.phase is not HostPhase.JOINED]
    if not silent:
        return None
    subject, verb = ("it", "answers or is") if len(silent) == 1 else ("they", "answer or are")
    return f"stopping: no answer from {join_names(silent)}; orch waits until {subject} {verb} given up"


def queued_text(queued: Queued) -> str:
    """`Slurm's job 12: Resources; expected start: 2026-11-23T17:00:00`"""
    why = "; expected start: ".join(filter(None, (queued.reason or "no reason given", queued.start)))
    return f"Slurm's job {queued.job}: {one_line(why)}"


def most_attempts(spec: Mapping[str, object], history: Sequence[AttemptEnd]) -> int | None:
    """The number of attempts that the run may have, by the spec in its record; None if failures are not restarted.

    Restarts that a user requested do not count against --max-restarts, so each adds one attempt.
    """
    most = spec.get("max_restarts")
    roles = spec.get("role_settings")
    of_roles = [its.get("on_failure") for its in roles.values()] if isinstance(roles, Mapping) else []
    if "restart" not in (spec.get("on_failure"), *of_roles) or not isinstance(most, int):
        return None
    return most + 1 + sum(1 for end in history if end.cause is None and end.first_failure is None)


def attempt_text(attempt: int, most: int | None) -> str:
    """`attempt 2 of 4`"""
    return f"attempt {attempt} of {most}" if most is not None and attempt <= most else f"attempt {attempt}"


def due_text(seconds: float) -> str:
    """`in 3s`, rounded up; `now` when the time has come."""
    left = math.ceil(seconds)
    return f"in {duration(left)}" if left > 0 else "now"


def end_text(end: AttemptEnd) -> str:
    """Why an attempt ended: `worker:1: SIGKILL`. The cause, else the first failure, else the user's request."""
    if end.cause is not None:
        return one_line(end.cause.line)
    first = end.first_failure
    return (
        "restarted on request"
        if first is None
        else f"{first.task}: {exit_text(first.exit_code, first.signal)}"
    )


def resumed_text(position: int | None, steps_lost: int | None, exact: bool) -> str:
    """`resumed at step 96 (19 lost)`, `started from step 0 (115 steps lost)`; empty if its steps are not known.

    Unless `exact`, more steps than `steps_lost` may be lost."""
    if position is None:
        return ""
    least = "" if exact else "at least "
    if position == 0:
        lost = f" ({least}{counted(steps_lost, 'step')} lost)" if steps_lost else ""
        return f"started from step 0{lost}"
    if steps_lost is None:
        return f"resumed at step {position:,}"
    none = "none lost" if exact else "lost steps unknown"
    return f"resumed at step {position:,} ({f'{least}{steps_lost:,} lost' if steps_lost else none})"


def history_text(end: AttemptEnd) -> str:
    """`1, at step 115: worker:1: SIGKILL; attempt 2 resumed at step 96 (19 lost), 8.2s later`"""
    place = "" if end.position is None else f", at step {end.position:,}"
    text = f"{end.attempt}{place}: {end_text(end)}"
    resumed = resumed_text(end.resumed_at, end.steps_lost, end.exact)
    if not resumed and end.recovery_s is None:
        return text
    later = "" if end.recovery_s is None else f", {short_duration(end.recovery_s)} later"
    return f"{text}; attempt {end.attempt + 1} {resumed or 'was training again'}{later}"


def sizes_text(result: RunResult) -> str:
    """`4 -> 3 -> 4; global batch 96 kept`, if the attempts had different numbers of workers; else empty."""
    ends: list[AttemptEnd | RunResult] = [*result.earlier_attempts, result]
    workers = [end.workers for end in ends if end.workers is not None]
    if len(set(workers)) < 2:
        return ""
    # An attempt that ended before its first step has not reported its batch.
    batches = [end.global_batch for end in ends if end.global_batch is not None or _has_trained(end)]
    known = [batch for batch in batches if batch is not None]
    if not known or len(known) < len(batches):
        batch = "the program does not report its global batch"
    elif len(set(known)) == 1:
        batch = f"global batch {known[0]:,} kept"
    else:
        batch = f"global batch {_changes(known)}"
    return f"{_changes(workers)}; {batch}"


def _has_trained(end: AttemptEnd | RunResult) -> bool:
    return (end.training if isinstance(end, RunResult) else end.position) is not None


def _changes(numbers: Sequence[int]) -> str:
    """`4 -> 3 -> 4`: a number that follows itself is shown once, and of many only the last ones."""
    changes = [number for number, _ in groupby(numbers)]
    before = "... -> " if len(changes) > _MOST_CHANGES else ""
    return before + " -> ".join(f"{number:,}" for number in changes[-_MOST_CHANGES:])


def _in(delay_s: float) -> str:
    return f"in {short_duration(delay_s)}" if delay_s > 0 else "now"
