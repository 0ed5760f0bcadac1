"""The cause when the cluster is not complete in time: the task that is missing, or that joins at another address."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.diagnosis.cause import deliberate_stop
from orchestrator.core.diagnosis.hangs import is_stopped
from orchestrator.core.progress.activity import cluster_of, doing, join_names
from orchestrator.core.state.events import StacksTaken
from orchestrator.core.state.result import Cause, CauseKind, TaskStack
from orchestrator.core.state.state import RunState, TaskPhase, TaskState
from orchestrator.core.text.durations import format_duration


def is_missing(task: TaskState) -> bool:
    """Whether it is a task of the cluster that has not joined, and does not wait for a restart."""
    is_early = task.phase in (TaskPhase.PENDING, TaskPhase.STARTING) and not awaits_restart(task)
    return is_early and task.is_in_cluster and not task.has_arrived


def is_joining(task: TaskState) -> bool:
    """Whether it waits in TensorFlow until the whole cluster has joined."""
    is_waiting = task.progress.phase == "waiting" and task.progress.step is None
    return is_waiting and task.is_in_cluster and task.phase in (TaskPhase.STARTING, TaskPhase.RUNNING)


def awaits_restart(task: TaskState) -> bool:
    return task.restart_due_mono is not None


def _joining_tasks(state: RunState) -> list[TaskState]:
    """Return the tasks that join, in plan order.

    None while a task waits for its restart: the others have to wait for it."""
    cluster = cluster_of(state)
    return [] if any(map(awaits_restart, cluster)) else [task for task in cluster if is_joining(task)]


def start_limit_cause(limit_s: float, state: RunState, stacks: StacksTaken, mono: float) -> Cause:
    """Return the task that did not join within --start-timeout, with what it is doing and where.

    If all have begun to join: the one that was stopped, or does so at another address than its own, else the first."""
    joining = _joining_tasks(state)
    strays = [task for task in joining if _is_elsewhere(task)]
    missing = [*filter(is_missing, state.tasks.values())] or [
        task for task in joining if is_stopped(stacks.stacks.get(task.name))
    ]
    if not missing:
        return _join_cause(limit_s, state, strays)
    late, *more_late = missing
    others = len(more_late)
    stack = stacks.stacks.get(late.name)
    what = doing(late, state) or str(late.phase)
    where = _innermost(late, stack, mono)
    since = "" if late.since_mono is None else f", {format_duration(float(int(mono - late.since_mono)))}"
    more = f"; nor are {others} more" if others else ""
    more += f"; {strays[0].name} waits for it {_place(strays[0])}" if strays else ""
    text = (
        f"not ready {format_duration(limit_s)} (--start-timeout) after the first task was"
        f" ({what}{since}{where}){more}"
    )
    kind = CauseKind.STOPPED if is_stopped(stack) else CauseKind.LIMIT
    return Cause(task=late.name, kind=kind, text=text)


def _join_cause(limit_s: float, state: RunState, strays: Sequence[TaskState]) -> Cause:
    task = strays[0] if strays else _joining_tasks(state)[0]
    others = [other.name for other in strays if other is not task and _address(other) == _address(task)]
    waits = f"{join_names(['it', *others])} wait" if others else "it waits"
    ended = [other.name for other in cluster_of(state) if other.phase.is_end]
    gone = f"; {join_names(ended)} ended before" if ended else ""
    text = f"not joined after {format_duration(limit_s)} (--start-timeout): {waits} for the others {_place(task)}{gone}"
    return Cause(task=task.name, kind=CauseKind.LIMIT, text=text)


def _place(task: TaskState) -> str:
    """`at localhost:12345, not at its own address 127.0.0.1:4001 (...)`"""
    if not _is_elsewhere(task):
        return f"at {_address(task)}"
    own = f"not at its own address {task.plan.address}"
    return f"at {_address(task)}, {own} (its script does not use orch's TF_CONFIG)"


def _address(task: TaskState) -> str:
    return task.progress.server or task.plan.address or "an unknown address"


def _is_elsewhere(task: TaskState) -> bool:
    """Whether it started its server on another port than its own. A host has several names."""
    return _port(task.progress.server) not in ("", _port(task.plan.address))


def _port(address: str | None) -> str:
    return (address or "").rpartition(":")[2]


def _innermost(task: TaskState, stack: TaskStack | None, mono: float) -> str:
    if stack is None:
        return ""
    if is_stopped(stack):
        return "; " + (deliberate_stop(task, mono) or "stopped by SIGSTOP or a debugger")
    return f"; in {stack.frames[0]}" if stack.frames else ""
