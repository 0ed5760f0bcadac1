"""Finds the run that a Slurm job had begun before Slurm started the job again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import JobSpec
from orchestrator.store.runs import catalog
from orchestrator.store.runs.slurm_jobs import own_job

# Values of a job that are not options, or may differ from node to node.
_MAY_DIFFER = frozenset(
    {"hosts", "slurm_job", "slurm_ends_at", "kill_wait_s", "columns", "cores", "gpu_inventory"}
)
_LONGEST_VALUE = 60


def interrupted_run(spec: JobSpec, environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the run that this job has interrupted, to be continued; None if there is none.

    UsageError if it has other options, unless a run of the job with these options has ended: a batch script may have
    several.
    """
    job, count = own_job(environ), environ.get("SLURM_RESTART_COUNT", "0")
    if job is None or not count.isdecimal() or not int(count):
        return None
    wanted = spec.masked().model_dump(mode="json")
    own = (job, environ.get("SLURM_CLUSTER_NAME", ""))
    runs = [
        run for run in catalog.all_runs() if (run.record.job, run.record.cluster) == own and run.is_original
    ]
    interrupted = [run for run in runs if not run.has_ended]
    same = [run for run in interrupted if not any(_differences(run.record.spec, wanted))]
    if same:
        return same[-1].paths.root
    if not interrupted or any(not any(_differences(run.record.spec, wanted)) for run in runs):
        return None
    last = interrupted[-1].record
    raise UsageError(
        f"Slurm has started job {job} again, and its run {last.id} had other options:"
        f" {'; '.join(_differences(last.spec, wanted))}. Give the same options, or end that run: orch down {last.id}"
    )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted((before.keys() | now.keys()) - _MAY_DIFFER):
        if before.get(name) != now.get(name):
            yield f"{name} {_shown(before.get(name))}, now {_shown(now.get(name))}"


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
