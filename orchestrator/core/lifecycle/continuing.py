"""How a run continues in a job that Slurm has started again: what the attempt before is recorded as, and when the next
one may start (pure)."""

from __future__ import annotations

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.outcome import Findings, attempt_end
from orchestrator.core.state.result import AttemptEnd, Cause, CauseKind, RunResult
from orchestrator.core.state.state import RunState

# Seconds for an agent without a supervisor to end its tasks and to leave.
_LEAVE_S = 10.0


def interrupted_end(state: RunState) -> AttemptEnd:
    """The record of the attempt that a job has interrupted."""
    end = attempt_end(state, Findings())
    if state.teardown is not None:
        return end
    text = "Slurm ended its job before orch could"
    return end.model_copy(update={"cause": Cause(task=None, kind=CauseKind.NOTICE, text=text)})


def fence_s(spec: JobSpec, age_s: float) -> float:
    """Seconds until no task of an earlier attempt can be left on a host that has lost its supervisor.

    `age_s`: since the last sign of that supervisor. Agents wait for it for --link-timeout, then end their tasks.
    """
    return max(0.0, spec.link_timeout_s + spec.grace_s + spec.failure_grace_s + _LEAVE_S - age_s)


def with_requeue(result: RunResult) -> RunResult:
    """The result of an attempt that is not the last: Slurm starts the job of the run again."""
    if result.cause is None:
        return result
    text = f"{result.cause.text}; Slurm starts its job again, and the run continues with attempt {result.attempts + 1}"
    return result.model_copy(update={"cause": result.cause.model_copy(update={"text": text})})
