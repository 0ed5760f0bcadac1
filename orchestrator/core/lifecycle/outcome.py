"""The outcome, exit code and cause of a run or an attempt, and the RunResult that reports them (pure)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

from orchestrator.core.diagnosis.across_hosts import failed_host, host_cause
from orchestrator.core.diagnosis.cause import PREEMPTED, advice_on, find_cause, notice_cause
from orchestrator.core.diagnosis.distribution import NotDistributed, has_joined
from orchestrator.core.diagnosis.same_failure import own_exception
from orchestrator.core.errors import ExitCode
from orchestrator.core.job.tf_config import WORKER
from orchestrator.core.lifecycle.completion import first_failure, has_succeeded
from orchestrator.core.lifecycle.notices import ending_notice
from orchestrator.core.progress.activity import began_at, furthest, last_training, reports_each_step
from orchestrator.core.state.events import Resumed, StopReason, SymptomKind, TaskProgressed, TeardownReason
from orchestrator.core.state.result import (
    DONE_WITHOUT,
    AttemptEnd,
    Cause,
    CauseKind,
    FirstFailure,
    Outcome,
    RunResult,
    TaskEnd,
    left_text,
    shell_code,
)
from orchestrator.core.state.state import RunState, TaskPhase, TaskState
from worker.wire.facts import LeftProcess

_STOP_EXIT_CODES = {
    StopReason.INTERRUPT: ExitCode.INTERRUPTED,
    StopReason.TERMINATE: ExitCode.TERMINATED,
    StopReason.HANGUP: ExitCode.TERMINATED,
    StopReason.DOWN: ExitCode.TERMINATED,
    StopReason.CLIENT_GONE: ExitCode.TERMINATED,
    StopReason.OUTPUT_CLOSED: ExitCode.OUTPUT_CLOSED,
    StopReason.TIMEOUT: ExitCode.TIMED_OUT,
    StopReason.SOURCE_CHANGED: ExitCode.TERMINATED,
}

# The exit code of a run that failed although no task exited with another code than 0.
_NO_EXIT_CODE = 1


@dataclass(frozen=True)
class Findings:
    """Facts that the lifecycle knows besides the state.

    timeout_s: the --timeout
    noticed_s: from the first failure to its event
    teardown_s, took_s: duration of the teardown and of the run
    late: the tasks that were late at the time-out
    limit, left_early, nan: causes that no exit code shows
    not_restarted: why there was no restart
    done_without: failed tasks that the others continued without
    not_distributed: no task joined a cluster
    gives_way: it failed and would be restarted, but its machines will go
    """

    timeout_s: float | None = None
    noticed_s: float | None = None
    teardown_s: float | None = None
    took_s: float | None = None
    late: str | None = None
    limit: Cause | None = None
    not_restarted: str | None = None
    left_early: Cause | None = None
    nan: Cause | None = None
    done_without: frozenset[str] = frozenset()
    not_distributed: NotDistributed | None = None
    gives_way: bool = False


def run_result(run_id: str, state: RunState, findings: Findings, checkpoint_dir: str | None) -> RunResult:
    """The result of a run that has ended."""
    first = first_failure(state, findings.done_without)
    outcome, exit_code, cause = decide_outcome(state, findings)
    if cause is not None and cause.kind is CauseKind.NOTICE:
        first = None  # it was told to end
    return RunResult(
        run_id=run_id,
        outcome=outcome,
        exit_code=exit_code,
        attempts=state.attempt,
        cause=cause,
        first_failure=None if first is None else _failure_record(first),
        detection_s=findings.noticed_s,
        teardown_s=findings.teardown_s,
        took_s=findings.took_s,
        tasks=tuple(
            _task_end(task, cause, findings.done_without, state.left) for task in state.tasks.values()
        ),
        checkpoint_dir=checkpoint_dir,
        training=last_training(state),
        history=state.history,
        stacks={} if state.stacks is None or findings.limit is None else dict(state.stacks.stacks),
        not_restarted=findings.not_restarted,
        bad_loss=state.bad_loss,
        not_distributed=_notice_of_copies(findings, outcome),
        left=state.left,
        hosts=tuple(host.end for host in state.hosts.values()),
        workers=_workers(state),
        global_batch=_global_batch(state),
    )


def _notice_of_copies(findings: Findings, outcome: Outcome) -> str | None:
    found = findings.not_distributed
    return found.text if found is not None and outcome == "succeeded" and found.has_trained else None


def attempt_end(state: RunState, findings: Findings) -> AttemptEnd:
    """The record of an attempt that is followed by another one."""
    first = first_failure(state, findings.done_without)
    _, exit_code, cause = decide_outcome(state, findings)
    told = () if state.notice is None else state.tasks.values()
    has_saved = any(task.exit_code == PREEMPTED for task in (first, *told) if task is not None)
    was_requested = state.teardown is TeardownReason.RESTART
    record = None if first is None else _failure_record(first)
    return AttemptEnd(
        attempt=state.attempt,
        cause=None if was_requested else cause,
        # The next attempt overwrites this file.
        first_failure=record and record.model_copy(update={"exception_file": None}),
        exit_code=0 if was_requested else exit_code,
        detection_s=findings.noticed_s,
        teardown_s=findings.teardown_s,
        position=furthest(state),
        exact=has_saved or reports_each_step(state),
        workers=_workers(state),
        global_batch=_global_batch(state),
    )


def _workers(state: RunState) -> int | None:
    """The number of workers; None before they are planned."""
    return sum(number for (role, _), number in state.tasks.counts.items() if role == WORKER) or None


def _global_batch(state: RunState) -> int | None:
    """The examples in a step of all workers, as the first task that knows them has reported them."""
    reported = (task.progress.global_batch for task in state.tasks.values())
    return next((batch for batch in reported if batch is not None), None)


def resumed(state: RunState, event: TaskProgressed, since: float) -> Resumed:
    """The event for the first step of a later attempt. `since`: monotonic seconds of the failure before it."""
    position = began_at(state)
    last = next((end for end in reversed(state.history) if end.position is not None), None)
    reached = last.position if last is not None and _has_equal_steps(last, state) else None
    lost = None if position is None or reached is None else max(0, reached - position)
    return Resumed(
        at=event.at,
        mono=event.mono,
        attempt=state.attempt,
        position=position,
        steps_lost=lost,
        exact=last is None or last.exact,
        recovery_s=event.mono - since,
    )


def _has_equal_steps(last: AttemptEnd, state: RunState) -> bool:
    """Whether a step has as many examples as in an earlier attempt, as far as is known. Others cannot be compared."""
    batch = _global_batch(state)
    if batch is not None and last.global_batch is not None:
        return batch == last.global_batch
    return last.workers in (None, _workers(state))


def decide_outcome(state: RunState, findings: Findings) -> tuple[Outcome, int, Cause | None]:
    """Outcome, exit code and cause of the current attempt."""
    first = first_failure(state, findings.done_without)
    if findings.gives_way and state.notice is not None:
        return "stopped", ExitCode.NOTICE, notice_cause(state, state.notice)
    if findings.nan is not None and state.restart_due_mono is None:
        return "failed", _NO_EXIT_CODE, findings.nan
    # Between two attempts the tasks are those of the earlier one, whose failure is already in the history.
    first = first if state.restart_due_mono is None else None
    if state.teardown is TeardownReason.FAILURE and (host := failed_host(state, first)) is not None:
        return "failed", ExitCode.HOST_LOST, host_cause(state, host)
    if state.teardown is TeardownReason.FAILURE and first is not None:
        code = shell_code(first.exit_code, first.signal)
        return "failed", code, findings.left_early or find_cause(state, first)
    if state.teardown is TeardownReason.FAILURE and findings.left_early is not None:
        return "failed", _NO_EXIT_CODE, findings.left_early
    if state.teardown is TeardownReason.LIMIT and findings.limit is not None:
        return "timed_out", ExitCode.TIMED_OUT, findings.limit
    if state.storage_error is not None and state.teardown is not TeardownReason.FINISHED:
        cause = Cause(task=None, kind=CauseKind.LIMIT, text=state.storage_error)
        return "failed", ExitCode.ORCH, cause
    if state.agent_lost is not None:
        cause = Cause(task=None, kind=CauseKind.ORCH, text=state.agent_lost)
        return "failed", ExitCode.ORCH, cause
    if state.left and (state.stop is None or state.stop.reason is not StopReason.TIMEOUT):
        return "failed", ExitCode.ORCH, Cause(task=None, kind=CauseKind.ORCH, text=left_text(state.left))
    if (notice := ending_notice(state)) is not None and not has_succeeded(state):
        return "stopped", ExitCode.NOTICE, notice_cause(state, notice)
    if state.stop is not None and state.teardown is not TeardownReason.FINISHED:
        if state.stop.reason is StopReason.TIMEOUT:
            return "timed_out", ExitCode.TIMED_OUT, _timed_out(findings)
        return "stopped", _STOP_EXIT_CODES[state.stop.reason], None
    if has_succeeded(state):
        if findings.not_distributed is not None and findings.not_distributed.is_failure:
            cause = Cause(task=None, kind=CauseKind.NOT_DISTRIBUTED, text=findings.not_distributed.text)
            return "failed", _NO_EXIT_CODE, cause
        return "succeeded", ExitCode.OK, None
    cause = Cause(task=None, kind=CauseKind.ORCH, text="the run ended before its tasks did")
    return "failed", ExitCode.ORCH, cause


def _timed_out(findings: Findings) -> Cause:
    limit = "in time" if findings.timeout_s is None else f"after {findings.timeout_s:g} s"
    late = f"; {findings.late}" if findings.late else ""
    return Cause(task=None, kind=CauseKind.LIMIT, text=f"not done {limit} (--timeout){late}")


def _failure_record(first: TaskState) -> FirstFailure:
    symptom = first.symptom
    return FirstFailure(
        task=first.name,
        exit_code=first.exit_code,
        signal=first.signal,
        exception=symptom.exception if symptom else None,
        log=first.plan.log,
        advice=advice_on(first),
        lines=symptom.lines if symptom else (),
        exception_file=symptom.exception_file if symptom else None,
        place=symptom.place if symptom else None,
    )


def _task_end(
    task: TaskState, cause: Cause | None, done_without: Collection[str], left: tuple[LeftProcess, ...]
) -> TaskEnd:
    is_told = cause is not None and cause.kind is CauseKind.NOTICE
    is_left = not task.has_failed and any(process.pid == task.pid for process in left)
    return TaskEnd(
        task=task.name,
        state=task.phase,
        exit_code=task.exit_code,
        signal=task.signal,
        restarts=task.restarts,
        host=task.plan.host,
        end="still running" if is_left else _end_in_words(task, None if is_told else cause, done_without),
        joined=has_joined(task),
        versions=task.versions,
    )


def _end_in_words(task: TaskState, cause: Cause | None, done_without: Collection[str]) -> str:
    culprit = cause is not None and task.name in (cause.task, *cause.tasks)
    match task.phase:
        case TaskPhase.SUCCEEDED:
            return "left early" if culprit else "done"
        case TaskPhase.FAILED:
            if not culprit and task.name in done_without:
                return DONE_WITHOUT
            if culprit or cause is None:
                return "failed"
            kind = SymptomKind.UNKNOWN if task.symptom is None else task.symptom.kind
            if task.symptom is not None and kind is SymptomKind.OWN:
                return f"failed by itself, too: {task.symptom.exception}"
            # Only a task of the cluster can fail because a peer exited, and it may print nothing.
            is_apart = kind is SymptomKind.UNKNOWN and not task.plan.serves
            return "failed, too" if is_apart and cause.kind is CauseKind.EXITED else "failed because of it"
        case TaskPhase.STOPPED:
            if task.exit_code == PREEMPTED and task.plan.serves:
                return "stopped by orch, its state saved (exit 42)"
            exception = own_exception(task.symptom)
            if culprit or cause is None:
                is_exception = exception is not None and cause is not None and cause.kind is CauseKind.EXITED
                return "failed" if is_exception else "stopped by orch"
            if exception is not None:
                return f"failed while orch stopped it: {exception}"
            # Any code but that of orch's own signals means that it failed before they reached it.
            by_itself = task.exit_code not in (None, 0, ExitCode.TERMINATED)
            return "failed because of it" if by_itself else "stopped by orch"
        case TaskPhase.PENDING:
            return "never started" if task.restart_due_mono is None else "not started again"
        case TaskPhase.LOST | TaskPhase.STARTING | TaskPhase.RUNNING | TaskPhase.STOPPING:
            return "lost with the agent" if task.plan.host is None else f"lost with {task.plan.host}"
        case _:
            assert_never(task.phase)
