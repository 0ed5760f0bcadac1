"""Failures on several hosts: which task failed first by clocks that differ, and whether a host was lost (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.core.diagnosis.same_failure import own_exception
from orchestrator.core.progress.activity import join_names
from orchestrator.core.state.events import HostBack, HostSilent, SymptomKind
from orchestrator.core.state.result import Cause, CauseKind
from orchestrator.core.state.state import HostState, RunState, TaskPhase, TaskState
from orchestrator.core.text.durations import format_duration

# Hosts that a message names, if it is about many.
_MOST_HOSTS = 8
# The order of symptoms where the clocks leave the order of exits open.
_RANKS = {SymptomKind.OWN: 0, SymptomKind.UNKNOWN: 1, SymptomKind.COLLATERAL: 2}


def first_ended(tasks: Iterable[TaskState]) -> TaskState | None:
    """Return the task that ended first.

    The exits on one host have an order. Times of different hosts are compared, and where the clocks leave the order
    open, a task that raised an exception by itself comes first, and one that blames a peer last.
    """
    by_host: dict[str | None, TaskState] = {}
    for task in tasks:
        known = by_host.get(task.plan.host)
        if known is None or _order(task) < _order(known):
            by_host[task.plan.host] = task
    earliest = min(by_host.values(), key=_ended, default=None)
    if earliest is None:
        return None
    possible = [task for task in by_host.values() if not ended_surely_before(earliest, task)]
    return min(possible, key=lambda task: (_RANKS[_kind(task)], _ended(task), _order(task)))


def ended_surely_before(task: TaskState, other: TaskState) -> bool:
    """Whether a task ended before another one, however wrong their clocks are."""
    if task.plan.host == other.plan.host:
        return _order(task) < _order(other)
    return _ended(other) - _ended(task) > task.clock_error_s + other.clock_error_s


def own_failure_elsewhere(state: RunState, first: TaskState) -> tuple[str, str] | None:
    """Return (task, exception) of a task on another host that failed by itself, and took longer to exit than `first`,
    which blames a peer."""
    others = (task for task in state.tasks.values() if task.plan.host != first.plan.host)
    own = [
        (_ended(task), task.name, exception)
        for task in others
        if task.phase is TaskPhase.FAILED and (exception := own_exception(task.symptom)) is not None
    ]
    return min(own)[1:] if own else None


def failed_host(state: RunState, first: TaskState | None) -> HostState | None:
    """Return the lost host that is the cause of a failure. `first` is the task that failed first.

    A task that raised an exception by itself is the cause, and so is one that failed before the host became silent."""
    host = state.lost_host
    if host is None or first is None:
        return host
    is_own = own_exception(first.symptom) is not None
    return None if is_own or _ended(first) < host.failed_mono else host


def host_cause(state: RunState, host: HostState) -> Cause:
    """Return the cause: `node2 was lost: it was not heard for 10s; worker:2 and worker:3 ran on it`."""
    names = [task.name for task in state.tasks.values() if task.plan.host == host.name]
    ran = f"; {join_names(names)} ran on it" if names else ""
    text = f"{host.name} was lost: {host.reason}{ran}"
    return Cause(task=None, kind=CauseKind.HOST, text=text, host=host.name)


def hosts_notice(events: Sequence[HostSilent | HostBack]) -> str:
    """Return the message about hosts that are all not heard, or all heard again."""
    seconds = format_duration(round(max(event.seconds for event in events), 1))
    is_one = len(events) == 1
    hosts = events[0].host
    if not is_one:
        more = len(events) - _MOST_HOSTS
        hosts = ", ".join(event.host for event in events[:_MOST_HOSTS]) + (
            f" and {more} more" if more > 0 else ""
        )
        hosts = f"{len(events)} hosts ({hosts})"
    if isinstance(events[0], HostSilent):
        return (
            f"{hosts} {'was' if is_one else 'were'} not heard for {seconds}; orch connects to"
            f" {'it' if is_one else 'them'} again"
        )
    return f"{hosts} {'is' if is_one else 'are'} heard again after {seconds}"


def _order(task: TaskState) -> int:
    return task.exit_order or 0


def _ended(task: TaskState) -> float:
    return task.ended_mono or 0.0


def _kind(task: TaskState) -> SymptomKind:
    return SymptomKind.UNKNOWN if task.symptom is None else task.symptom.kind
