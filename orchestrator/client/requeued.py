"""Finds the run that a Slurm job had begun before Slurm started the job again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from orchestrator.client.stop import longest_stop_s
from orchestrator.core.errors import OrchError
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.state.events import AttemptPlanned, HostLost, TaskStarted, TeardownEnded
from orchestrator.store.files import read_object
from orchestrator.store.runs import catalog
from orchestrator.store.runs.locks import Held, probe
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.slurm_jobs import own_job


def interrupted_run(spec: JobSpec, environ: Mapping[str, str]) -> RunView | None:
    """Return the last run of this job with the same command that has no recorded end; None if there is none."""
    job, count = own_job(environ), environ.get("SLURM_RESTART_COUNT", "0")
    if job is None or not count.isdecimal() or not int(count):
        return None
    command = spec.masked().model_dump(mode="json")["command"]
    wanted = (spec.name, job, environ.get("SLURM_CLUSTER_NAME", ""), command)
    found = []
    for view in _runs(spec):
        record = view.record
        is_same = wanted == (record.name, record.job, record.cluster, record.spec.get("command"))
        # A script may start several runs of one command at the same time.
        if is_same and view.is_original and not view.has_ended and probe(view.paths.lock) is not Held.YES:
            found.append(view)
    return max(found, key=lambda view: view.record.started_at, default=None)


def _runs(spec: JobSpec) -> Iterator[RunView]:
    """Yield the runs that this machine lists, and those in --log-dir, which another node may have listed."""
    yield from catalog.all_runs()
    for root in () if spec.log_dir is None else spec.log_dir.glob(f"{spec.name}-*"):
        with suppress(OrchError, OSError):
            if (view := RunView.open(RunPaths(root))) is not None:
                yield view


def fence_s(run: RunView) -> float:
    """Seconds until no task of an interrupted run can be left on a host that has lost its supervisor.

    Agents wait for the supervisor for --link-timeout, then end their tasks.
    """
    events = run.refresh()
    # The agents may have received the order to start tasks although no event of it was written.
    marks = [
        each for each in events if isinstance(each, AttemptPlanned | TaskStarted | HostLost | TeardownEnded)
    ]
    if not marks or (isinstance(marks[-1], TeardownEnded) and not marks[-1].left and not run.state.lost_host):
        return 0.0
    # The supervisor wrote a sample every one or two seconds.
    sample = (read_object(run.paths.sample) or {}).get("at")
    last_sign = max(events[-1].at, sample if isinstance(sample, int | float) else 0.0)
    return max(0.0, last_sign + longest_stop_s(run.record.spec, force=False) - time.time())
