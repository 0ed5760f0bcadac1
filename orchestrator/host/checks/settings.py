"""The settings."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.diagnosis.distribution import cluster_advice
from orchestrator.core.plan.plan import DEPTH, read_depth
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, problem, warning

# Limit on nested runs: a task that starts its own script by `orch up` would start runs without end.
_MOST_LEVELS = 3
_LONGEST_QUOTE = 40


def check_settings(context: Context) -> Iterator[Finding]:
    if context.settings_error is not None:
        text = f"`orch up` would refuse to start: {context.settings_error}"
        yield problem("settings", text, fix="correct it; `orch config` shows the plan once it is right")


def check_depth(context: Context) -> Iterator[Finding]:
    around = read_depth(context.environ)
    if around is None:
        text = (
            f"{DEPTH} is {context.environ[DEPTH][:_LONGEST_QUOTE]!r}, not the number of runs around this one"
        )
        yield problem("settings", text, fix="unset it; orch sets it for each task")
    elif around >= _MOST_LEVELS:
        text = f"orch does not start a run inside of {_MOST_LEVELS} others ({DEPTH} is {around})"
        fix = "a task probably starts its own script: let it start a run only if ORCH_TASK is not set"
        yield problem("settings", text, fix=fix)


def check_allocation(context: Context) -> Iterator[Finding]:
    nodes = context.environ.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal() and int(nodes) > 1 and not context.spec.is_remote:
        text = (
            f"all tasks run on this machine, and not on the {nodes[:_LONGEST_QUOTE]} nodes of this Slurm job"
        )
        yield warning("settings", text, where="SLURM_JOB_NUM_NODES", fix="`--engine slurm` uses the nodes")


def check_cluster(context: Context) -> Iterator[Finding]:
    if context.separate_training is not None:
        yield warning("cluster", context.separate_training, fix=cluster_advice(context.spec))
