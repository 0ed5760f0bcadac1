"""Whether the tasks of a run trained together: a script without a strategy for several workers trains copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.tf_config import EVALUATOR, PS

if TYPE_CHECKING:  # imported only by those that have a state: the plan of a job needs none
    from orchestrator.core.state.state import RunState, TaskState


@dataclass(frozen=True)
class NotDistributed:
    """No task joined a cluster. `has_trained`: several were seen to train; `is_failure`: --expect-cluster."""

    text: str
    has_trained: bool
    is_failure: bool


def has_joined(task: TaskState) -> bool:
    """Whether a task was seen in a cluster of several tasks: it says so, or it listened on its port."""
    return task.has_listened or (task.progress.cluster or 0) > 1


def find_not_distributed(
    spec: JobSpec, state: RunState, deciding: Sequence[TaskState]
) -> NotDistributed | None:
    """None if a task joined a cluster, if there was none to join, or if nothing shows whether the tasks trained.

    `deciding`: the tasks that must succeed. Only a gradient that the task itself computed counts as training.
    """
    tasks = [task for task in state.tasks.values() if task.plan.role != EVALUATOR]
    if not spec.has_cluster or len(tasks) < 2 or any(map(has_joined, tasks)):
        return None
    has_trained = bool(deciding) and all(task.progress.trains for task in deciding)
    if not has_trained and not spec.expect_cluster:
        return None
    advice = cluster_advice(spec)
    copies = sum(1 for task in tasks if task.progress.trains)
    said = (
        f": {copies} independent copies were trained"
        if has_trained and copies > 1
        else f" of {len(tasks)} tasks"
    )
    return NotDistributed(
        text=f"{spec.command.program} never joined the cluster{said}. {advice[0].upper()}{advice[1:]}.",
        has_trained=has_trained and copies > 1,
        is_failure=spec.expect_cluster,
    )


def cluster_advice(spec: JobSpec) -> str:
    """Return the advice for a script that joins no cluster."""
    if PS in spec.roles:
        return "create a ParameterServerStrategy, or use --workers 1 without --ps"
    return "create a MultiWorkerMirroredStrategy, or use --workers 1"
