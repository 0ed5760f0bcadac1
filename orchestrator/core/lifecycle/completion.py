"""Which tasks decide the outcome of a run, which only serve them, and when the training is complete (pure).

Without parameter servers, the chief and every worker must exit with 0. With parameter servers, the chief (or worker:0)
decides alone: it coordinates, the others serve it and never exit by themselves. An evaluator is waited for afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from orchestrator.core.diagnosis.across_hosts import first_ended
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS, WORKER
from orchestrator.core.state.state import LIVE_PHASES, RunState, TaskPhase, TaskState


def leader(state: RunState) -> TaskState | None:
    """The chief, or worker:0 where no task has the role chief."""
    return state.tasks.get(f"{CHIEF}:0") or state.tasks.get(f"{WORKER}:0")


def deciding_tasks(state: RunState) -> list[TaskState]:
    """The tasks that must succeed for the run to succeed."""
    if state.is_coordinated:
        first = leader(state)
        return [] if first is None else [first]
    return [task for task in state.tasks.values() if task.plan.role != EVALUATOR]


def decides(state: RunState, task: TaskState) -> bool:
    """Whether this is one of the deciding tasks."""
    if state.is_coordinated:
        first = leader(state)
        return first is not None and first.name == task.name
    return task.plan.role != EVALUATOR


def evaluator(state: RunState) -> TaskState | None:
    return state.tasks.get(f"{EVALUATOR}:0")


def serving_tasks(state: RunState) -> list[TaskState]:
    """The tasks that only serve a coordinator, and would do so for ever after it has exited."""
    if not state.is_coordinated:
        return []
    first = leader(state)
    return [task for task in state.tasks.values() if task.plan.role in (PS, WORKER) and task is not first]


def has_trained(state: RunState) -> bool:
    """Whether all deciding tasks have succeeded."""
    if state.is_coordinated:
        first = leader(state)
        return first is not None and first.phase is TaskPhase.SUCCEEDED
    done = state.tasks.count((TaskPhase.SUCCEEDED,), without=EVALUATOR)
    return 0 < done == state.tasks.count(tuple(TaskPhase), without=EVALUATOR)


def has_succeeded(state: RunState) -> bool:
    """Whether the training has succeeded and the evaluator has not failed."""
    evaluator_task = evaluator(state)
    return has_trained(state) and not (evaluator_task is not None and evaluator_task.has_failed)


def is_training(state: RunState) -> bool:
    """Whether a deciding task has not ended."""
    if state.is_coordinated:
        first = leader(state)
        return first is not None and not first.phase.is_end
    return state.tasks.count(LIVE_PHASES, without=EVALUATOR) > 0


def has_begun_training(task: TaskState) -> bool:
    """Whether a task trains, as far as its progress tells; True for a program that reports none."""
    return task.course.stepped or task.progress.phase == "training" or not task.plan.serves


def first_failure(state: RunState, done_without: Collection[str] = ()) -> TaskState | None:
    """The first task that ended badly, in the order of exits.

    An evaluator, and a task in `done_without`, count only if no other task failed. After the training only the
    evaluator's failure counts.
    """
    failed = [task for task in state.tasks.values() if task.has_failed]
    if has_trained(state):
        return next((task for task in failed if task.plan.role == EVALUATOR), None)
    needed = [task for task in failed if task.name not in done_without and task.plan.role != EVALUATOR]
    return first_ended(needed or failed)


def is_dispensable(state: RunState, task: TaskState) -> bool:
    """Whether the training can continue if this task is not restarted.

    A coordinator gives a lost worker's steps to the remaining workers; the training does not need the evaluator.
    """
    first = leader(state)
    if first is None or first is task or not is_training(state):
        return False
    if task.plan.role == EVALUATOR:
        return True
    others = (other for other in serving_tasks(state) if other.plan.role == WORKER and other is not task)
    return (
        task.plan.role == WORKER
        and state.is_coordinated
        and has_begun_training(first)
        and any(not other.phase.is_end for other in others)
    )


def supports_training(state: RunState, task: TaskState) -> bool:
    """Whether a task takes no training steps itself, but serves or evaluates a training that has begun."""
    first = leader(state)
    if first is None or decides(state, task):
        return False
    return has_begun_training(first) or first.phase is TaskPhase.SUCCEEDED


def early_exit_reason(state: RunState, task: TaskState) -> str | None:
    """Why it is a failure that this task exited with 0; None if it is not.

    A parameter server takes its variables with it. A worker that exits before the coordinator has begun keeps it
    waiting for ever (the script lacks the server's join()); later it may be one that trains by itself, and is done.
    """
    first = leader(state)
    if (
        not state.is_coordinated
        or first is None
        or task is first
        or first.phase.is_end
        or not task.plan.serves
    ):
        return None
    if task.plan.role == PS:
        return f"left early: it exited with 0, and its variables are gone, while {first.name} still trained"
    if task.plan.role == WORKER and not has_begun_training(first):
        return f"left early: it exited with 0 before {first.name} had begun to train (does its script join its server?)"
    return None


def live_names(tasks: Iterable[TaskState]) -> tuple[str, ...]:
    return tuple(task.name for task in tasks if task.is_live)
