"""The cause of a failed task: the task that the failure began with, judged by symptoms, exits, states and signals.

The cause of a hang is in hangs.py; core/lifecycle/outcome.py chooses the cause of the run.
"""

from __future__ import annotations

import signal
from typing import assert_never

from orchestrator.core.diagnosis.across_hosts import ended_surely_before, own_failure_elsewhere
from orchestrator.core.diagnosis.same_failure import alike, describe_alike, own_exception
from orchestrator.core.diagnosis.shortages import FULL_DISK, FULL_DISK_OF_HOST, describe_kill, find_shortage
from orchestrator.core.errors import ExitCode
from orchestrator.core.job.tf_config import EVALUATOR
from orchestrator.core.state.events import NoticeGiven, NoticeSource, SignalRequested, SymptomKind
from orchestrator.core.state.result import Cause, CauseKind, exit_text, signal_name
from orchestrator.core.state.state import RunState, TaskPhase, TaskState
from orchestrator.core.text.counted import counted
from orchestrator.core.text.durations import format_duration

# The kernel's letters for a stopped process (man 5 proc): by a signal, and by a tracer.
STOPPED_LETTERS = frozenset("Tt")
# Exit codes with a meaning in TensorFlow tasks.
PREEMPTED = int(ExitCode.NOTICE)
_MEANINGS = {
    PREEMPTED: "it was asked to end, saved its state and asks for a restart (PreemptionCheckpointHandler)",
    143: "it was asked to end by SIGTERM, and did",
}
_STOP_OR_CONTINUE = frozenset({signal.SIGSTOP, signal.SIGCONT})


def advice_on(first: TaskState) -> str | None:
    """Return the advice for a failure. A certain shortage comes before the task's symptom."""
    shortage = find_shortage(first)
    if shortage is not None:
        advice: str | None = shortage.advice
    else:
        advice = first.symptom.advice if first.symptom else None
    return FULL_DISK_OF_HOST if advice == FULL_DISK and first.plan.host is not None else advice


def find_cause(state: RunState, first: TaskState) -> Cause:
    """Return the task that the failure began with: often, but not always, `first`, the first that failed.

    Several tasks with the same exception are one cause. Not asked if the lifecycle found the cause before a task failed
    (core/lifecycle/outcome.py: decide_outcome).
    """
    cause = _find_task(state, first)
    if cause.kind is not CauseKind.EXITED or cause.task is None or cause.task not in state.tasks:
        return cause
    tasks = alike(state, state.tasks[cause.task])
    if len(tasks) < 2:
        return cause
    text = describe_alike(state, tasks)
    return cause.model_copy(update={"text": text, "tasks": tuple(task.name for task in tasks)})


def _find_task(state: RunState, first: TaskState) -> Cause:
    shortage = find_shortage(first)
    if shortage is not None:
        return Cause(task=first.name, kind=CauseKind.LIMIT, text=shortage.text)
    kind = first.symptom.kind if first.symptom else SymptomKind.UNKNOWN
    died_of_signal = first.signal is not None and kind is not SymptomKind.COLLATERAL
    if not died_of_signal and kind is not SymptomKind.OWN:
        stopped = _first_stopped(state, first) or _stopped_before(state, first)
        if stopped is not None:
            how = deliberate_stop(state.tasks[stopped], first.ended_mono or 0.0)
            text = f"{how or 'stopped by SIGSTOP (or a debugger)'}, so its peers lost it"
            return Cause(task=stopped, kind=CauseKind.STOPPED, text=text)
    if kind is SymptomKind.COLLATERAL:
        left = _left_early(state, first)
        if left is not None:
            text = "left early: it exited with 0 while its peers still trained"
            return Cause(task=left.name, kind=CauseKind.LEFT_EARLY, text=text)
    own = _own_failure(first) if kind is SymptomKind.COLLATERAL else None
    own = own or own_failure_elsewhere(state, first)
    if own is not None and not died_of_signal:
        task, exception = own
        return Cause(task=task, kind=CauseKind.EXITED, text=exception)
    return Cause(task=first.name, kind=CauseKind.EXITED, text=_describe_end(first))


def _first_stopped(state: RunState, first: TaskState) -> str | None:
    stopped = (task for task, letter in first.exit.peers.items() if letter in STOPPED_LETTERS)
    return next((task for task in stopped if task in state.tasks), None)


def _stopped_before(state: RunState, first: TaskState) -> str | None:
    """Return a task that was stopped on purpose and continued too late for a peer, which lost it."""
    if first.symptom is None or first.symptom.kind is not SymptomKind.COLLATERAL:
        return None
    others = (task for task in state.tasks.values() if task is not first)
    return next((task.name for task in others if deliberate_stop(task, first.ended_mono or 0.0)), None)


def _left_early(state: RunState, first: TaskState) -> TaskState | None:
    gone = [
        task
        for task in state.tasks.values()
        if task.phase is TaskPhase.SUCCEEDED
        and task.plan.role != EVALUATOR
        and ended_surely_before(task, first)
    ]
    return min(gone, key=lambda task: task.exit_order, default=None)


def _own_failure(first: TaskState) -> tuple[str, str] | None:
    """Return (task, exception) of a task that had raised it when `first` exited, and took longer to exit."""
    for task, symptom in (first.ended.peer_symptoms if first.ended else {}).items():
        exception = own_exception(symptom)
        if exception is not None:
            return task, exception
    return None


def _describe_end(task: TaskState) -> str:
    if task.exit.start_error is not None:
        return f"could not be started: {task.exit.start_error}"
    text = exit_text(task.exit_code, task.signal)
    meaning = _MEANINGS.get(task.exit_code or 0)
    if meaning and task.plan.serves:
        text = f"{text}: {meaning}"
    meant = deliberate_end(task, text)
    if meant is not None:
        return meant
    return describe_kill(task) if task.signal == signal.SIGKILL else text


def deliberate_end(task: TaskState, text: str) -> str | None:
    """Describe an end by a signal that was sent on purpose: "SIGKILL, sent by `orch kill`".

    `text` is the end without its sender. None if no such signal ended the task."""
    sent = [one for one in task.signals if one.signal not in _STOP_OR_CONTINUE]
    if task.signal is not None:
        sent = [one for one in sent if one.signal == task.signal]
        return f"{exit_text(None, task.signal)}, {sent_by(sent[-1])}" if sent else None
    if not sent or own_exception(task.symptom) is not None:
        return None
    name, sender = signal_name(sent[-1].signal), sent_by(sent[-1])
    return f"{text} ({sender})" if name in text else f"{text}, after {name}, {sender}"


def deliberate_stop(task: TaskState, mono: float) -> str | None:
    """Describe a stop that was sent on purpose up to `mono` (monotonic seconds), even if it is over.

    "stopped by SIGSTOP, sent by --chaos (...)"; None without one."""
    sent = [one for one in task.signals if one.signal in _STOP_OR_CONTINUE and one.mono <= mono]
    stops = [one for one in sent if one.signal == signal.SIGSTOP]
    if not stops:
        return None
    by = f"SIGSTOP, {sent_by(stops[-1])}"
    if sent[-1].signal == signal.SIGSTOP:
        return f"stopped by {by}"
    return f"was stopped for {format_duration(round(sent[-1].mono - stops[-1].mono, 1))} ({by})"


def sent_by(sent: SignalRequested) -> str:
    match sent.by:
        case "user":
            return "sent by `orch kill`"
        case "chaos":
            return f"sent by --chaos ({sent.text})" if sent.text else "sent by --chaos"
        case _:
            assert_never(sent.by)


def describe_notice(notice: NoticeGiven) -> str:
    """`its machines go in 90s (orch notice)`"""
    left = "" if notice.left_s is None else f" in {format_duration(round(notice.left_s))}"
    match notice.source:
        case NoticeSource.USER:
            return f"its machines go{left} (`orch notice`)"
        case NoticeSource.SIGNAL:
            return f"its machines go{left} (SIGUSR2)"
        case NoticeSource.SLURM:
            return "Slurm ends its job"
        case NoticeSource.TIME_LIMIT:
            return f"the time limit of its job is reached{left}"
        case _:
            assert_never(notice.source)


def notice_cause(state: RunState, notice: NoticeGiven) -> Cause:
    """The cause of an end after a notice, with the number of tasks that have said that they saved their state."""
    if not state.tasks or state.restart_due_mono is not None:
        text = f"{describe_notice(notice)}; no task had started"
        return Cause(task=None, kind=CauseKind.NOTICE, text=text)
    saved = sum(task.exit_code == PREEMPTED for task in state.tasks.values())
    which = f"{saved} of {counted(len(state.tasks), 'task')}" if saved else "no task"
    text = f"{describe_notice(notice)}; {which} said that the state is saved (exit {PREEMPTED})"
    return Cause(task=None, kind=CauseKind.NOTICE, text=text)
