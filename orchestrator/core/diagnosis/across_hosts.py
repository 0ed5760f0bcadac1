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

    The exits on one host have an order. Times of different hosts are compared: those of the exceptions of two tasks,
    because the exit may follow much later, else those of the exits. Where the clocks leave the order open, a task that
    raised an exception by itself comes first, and one that blames a peer last.
    """
    by_host: dict[str | None, TaskState] = {}
    for task in tasks:
        known = by_host.get(task.plan.host)
        if known is None or task.exit_order < known.exit_order:
            by_host[task.plan.host] = task
    firsts = list(by_host.values())
    if not firsts:
        return None
    # A task that surely ended after one of these was not the first.
    raised = [task for task in firsts if _raised(task) is not None]
    earliest = [min(firsts, key=_ended), *sorted(raised, key=_failed)[:1]]
    possible = [task for task in firsts if not any(ended_surely_before(other, task) for other in earliest)]
    return min(possible, key=lambda task: (_RANKS[_kind(task)], _failed(task), task.exit_order))


def ended_surely_before(task: TaskState, other: TaskState) -> bool:
    """Whether a task ended before another one, or raised its exception before, however wrong their clocks are."""
    if task.plan.host == other.plan.host:
        return task.exit_order < other.exit_order
    when = _ended if None in (_raised(task), _raised(other)) else _failed
    return when(other) - when(task) > task.exit.clock_error_s + other.exit.clock_error_s


def own_failure_elsewhere(state: RunState, first: TaskState) -> tuple[str, str] | None:
    """Return (task, exception) of a task on another host that raised its own exception before `first` failed, but
    exited later. If `first` blames a peer, the time of the exception does not matter.

    The exit can be an effect of the teardown; the exception is not."""
    blames_peer = _kind(first) is SymptomKind.COLLATERAL
    own = [
        (_failed(task), task.name, exception)
        for task in state.tasks.values()
        if task.plan.host != first.plan.host
        and (exception := own_exception(task.symptom)) is not None
        and ((blames_peer and task.phase is TaskPhase.FAILED) or _raised_before(task, first))
    ]
    return min(own)[1:] if own else None


def _raised_before(task: TaskState, first: TaskState) -> bool:
    """Whether a task raised its exception before `first` raised its own, or surely before it chose to exit.

    An exception that the teardown brings about comes later: orch first receives the failure, then orders the stop."""
    raised = _raised(task)
    if raised is None:
        return False
    if _raised(first) is not None:
        return raised < _failed(first)
    has_chosen_to_exit = _kind(first) is SymptomKind.UNKNOWN and first.exit_code is not None
    return has_chosen_to_exit and _ended(first) - raised > task.exit.clock_error_s + first.exit.clock_error_s


def failed_host(state: RunState, first: TaskState | None) -> HostState | None:
    """Return the lost host that is the cause of a failure. `first` is the task that failed first.

    A task that raised an exception by itself is the cause, and so is one that failed before the host became silent."""
    host = state.lost_host
    if host is None or first is None:
        return host
    is_own = own_exception(first.symptom) is not None
    return None if is_own or _ended(first) < host.failed_mono else host


def host_cause(state: RunState, host: HostState) -> Cause:
    """Return the cause: `node2 was lost: it has not answered for 10s; worker:2 and worker:3 ran on it`."""
    names = [task.name for task in state.tasks.values() if task.plan.host == host.name]
    ran = f"; {join_names(names)} ran on it" if names else ""
    text = f"{host.name} was lost: {host.reason}{ran}"
    return Cause(task=None, kind=CauseKind.HOST, text=text, host=host.name)


def hosts_notice(events: Sequence[HostSilent | HostBack]) -> str:
    """Return the message about hosts that do not answer, or that all answer again."""
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
            f"{hosts} {'has' if is_one else 'have'} not answered for {seconds}; orch gives"
            f" {'it' if is_one else 'them'} up after --link-timeout"
        )
    return f"{hosts} answer{'s' if is_one else ''} again after {seconds}"


def _ended(task: TaskState) -> float:
    return task.ended_mono or 0.0


def _raised(task: TaskState) -> float | None:
    return None if task.symptom is None else task.symptom.raised_mono


def _failed(task: TaskState) -> float:
    """When the task raised its exception, else when it ended."""
    raised = _raised(task)
    return _ended(task) if raised is None else raised


def _kind(task: TaskState) -> SymptomKind:
    return SymptomKind.UNKNOWN if task.symptom is None else task.symptom.kind
