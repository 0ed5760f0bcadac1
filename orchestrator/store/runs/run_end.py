"""The end of a run whose supervisor could not record it: its final state, and its result (pure)."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.errors import ExitCode
from orchestrator.core.state.events import PlannedTask, TaskExited
from orchestrator.core.state.result import Cause, CauseKind, RunResult, TaskEnd
from orchestrator.core.state.state import RunPhase, RunState, TaskPhase, TaskState
from worker.wire.facts import ExitFacts

_LOST = "the supervisor was killed before it could record the end"


def mark_lost(state: RunState, last_mono: float) -> RunState:
    """Return the state of a lost run. Its end time is that of its last event (monotonic seconds)."""

    def lose(task: TaskState) -> TaskState:
        return task if task.phase.is_end else replace(task, phase=TaskPhase.LOST, lost_mono=last_mono)

    ended = state.with_tasks(map(lose, state.tasks.values()))
    return replace(ended, phase=RunPhase.LOST, ended_mono=last_mono, tensorboard=None)


def end_as_in_result(state: RunState, result: RunResult, last_mono: float) -> RunState:
    """Return the final state according to the result, for a run whose last events are missing."""
    ends = {end.task: end for end in result.tasks}
    known = state.tasks.values() or [TaskState(plan=_plan_of(end)) for end in result.tasks]

    def end_task(task: TaskState) -> TaskState:
        end = ends.get(task.name)
        is_seen = task.phase.is_end and task.phase is not TaskPhase.LOST
        is_lost = task.phase is TaskPhase.LOST and (end is None or end.state == TaskPhase.LOST)
        return task if is_seen or is_lost else _end_task(task, end, last_mono)

    return replace(
        state.with_tasks(map(end_task, known)),
        phase=RunPhase(result.outcome),
        exit_code=None if result.outcome == "lost" else result.exit_code,
        attempt=state.attempt or result.attempts,
        ended_mono=last_mono,
        tensorboard=None,
    )


def _plan_of(end: TaskEnd) -> PlannedTask:
    """Return a plan with the task's name only. The rest was in the events."""
    role, _, index = end.task.partition(":")
    return PlannedTask(
        task=end.task,
        role=role,
        index=int(index) if index.isascii() and index.isdigit() else 0,
        address=None,
        argv=(),
        cwd="",
        env={},
        log="",
        serves=False,
        host=end.host,
    )


def _end_task(task: TaskState, end: TaskEnd | None, last_mono: float) -> TaskState:
    if end is None or end.state not in list(TaskPhase):
        return replace(task, phase=TaskPhase.LOST, lost_mono=last_mono)
    phase = TaskPhase(end.state)
    if task.pid is not None and not phase.is_end:
        phase = TaskPhase.LOST
    facts = ExitFacts(end.exit_code, end.signal, last_mono)
    ended = TaskExited(at=0.0, mono=last_mono, task=task.name, exit=facts, order=0)
    return replace(task, phase=phase, ended=ended)


def result_from_events(
    run_id: str, state: RunState, checkpoint_dir: str, end_of_job: str | None = None
) -> RunResult:
    """Return the result that the events imply; "lost" if they contain no end.

    `end_of_job`: what happened to the Slurm job of a lost run.
    """
    if not state.phase.is_end or state.phase is RunPhase.LOST:
        return _lost_result(run_id, state, checkpoint_dir, end_of_job or _LOST)
    # Imported here because it is rarely needed and slow: a run has an end event and no result.
    from orchestrator.core.lifecycle.outcome import Findings, run_result

    result = run_result(run_id, state, Findings(), checkpoint_dir)
    exit_code = ExitCode.ORCH if state.exit_code is None else state.exit_code
    cause = result.cause if state.phase is not RunPhase.SUCCEEDED else None
    return RunResult.model_validate(
        {**result.model_dump(), "outcome": state.phase.value, "exit_code": exit_code, "cause": cause}
    )


def _lost_result(run_id: str, state: RunState, checkpoint_dir: str, why: str) -> RunResult:
    ends = tuple(
        TaskEnd(
            task=task.name,
            state=task.phase,
            exit_code=task.exit_code,
            signal=task.signal,
            end=task.phase,
            host=task.plan.host,
            versions=task.versions,
        )
        for task in state.tasks.values()
    )
    return RunResult(
        run_id=run_id,
        outcome="lost",
        exit_code=ExitCode.ORCH,
        attempts=state.attempt,
        cause=Cause(task=None, kind=CauseKind.ORCH, text=why),
        first_failure=None,
        detection_s=None,
        teardown_s=None,
        tasks=ends,
        checkpoint_dir=checkpoint_dir,
        history=state.history,
        hosts=tuple(host.end for host in state.hosts.values()),
    )
