"""The nodes of a run in the allocation of this process, and Slurm's messages about a new job."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from pydantic import ValidationError

from orchestrator.core.errors import UsageError
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.plan.placement import place
from orchestrator.core.state.state import Queued
from orchestrator.core.text.clean import one_line
from orchestrator.core.text.counted import counted
from orchestrator.core.text.durations import format_duration
from orchestrator.engines.slurm import kill_wait, node_names, time_left
from orchestrator.request.export.batch_script import allocation_words, node_count
from orchestrator.store.runs.slurm_jobs import ask, own_job

JOB_VARIABLE = "SLURM_JOB_ID"
_LONGEST_QUOTE = 200
_NO_CLUSTER = "log in to a node of the cluster that has Slurm's programs"
_ADVICE = (
    ("invalid partition", "`sinfo -s` lists the partitions; name one with --partition"),
    (
        "group not permitted to use this partition",
        "`sinfo -s` lists the partitions; name another with --partition",
    ),
    (
        "accounting/QOS policy",
        "a limit of your account or quality of service is reached; `sacctmgr show qos` lists them",
    ),
    ("invalid qos", 'name another quality of service with --slurm "--qos=NAME"'),
    (
        "invalid account",
        "`sacctmgr show associations user=$USER` lists your accounts; name one with --account",
    ),
    ("Node count specification invalid", "the partition has fewer nodes; `sinfo -s` lists them"),
    ("More processors requested", "the partition has fewer nodes; `sinfo -s` lists them"),
    ("Requested node configuration is not available", "no node has that; `sinfo -N -l` lists what they have"),
    ("Requested time limit", "the partition allows less; `sinfo -s` lists the limits"),
    ("Unable to contact slurm controller", "Slurm's controller does not answer; ask its administrator"),
    ("configuration source", _NO_CLUSTER),
)
# Reasons to wait that no time removes.
_NEVER = {
    "PartitionNodeLimit": "the partition has fewer nodes; `sinfo -s` lists them",
    "PartitionTimeLimit": "the partition allows less time; `sinfo -s` lists the limits",
    "PartitionConfig": "the partition does not have such nodes; `sinfo -N -l` lists what they have",
    "BadConstraints": "no node fits to --slurm; `sinfo -N -l` lists what they have",
    "InvalidAccount": "name another account with --account",
    "InvalidQOS": "name another quality of service with --slurm",
}


def on_nodes(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """Return the job with the nodes of this process's allocation as hosts. UsageError if they do not suffice."""
    job = own_job(environ)
    if job is None:
        raise UsageError(f"{JOB_VARIABLE} is not set: this process is in no allocation of Slurm")
    names = _nodes_of_own(job)[: spec.nodes]
    if spec.nodes is not None and len(names) < spec.nodes:
        raise UsageError(
            f"--nodes {spec.nodes}: Slurm's job {job} has {counted(len(names), 'node')}: {', '.join(names)}"
        )
    left_s = time_left(job)
    if left_s is not None and left_s <= spec.notice_s:
        raise UsageError(
            f"Slurm's job {job} ends in {format_duration(left_s)}, and --notice {format_duration(spec.notice_s)} before"
            " its end the tasks would be told to end; give it more time, or a shorter --notice"
        )
    limits = {"slurm_ends_at": left_s and time.time() + left_s, "kill_wait_s": kill_wait()}
    try:
        hosts = tuple(Host(name=name, destination=name) for name in names)
        on_them = JobSpec.model_validate({**spec.__dict__, **limits, "hosts": hosts, "slurm_job": job})
        place(on_them)
    except (ValidationError, SettingMisfit) as error:
        raise UsageError(f"the nodes of Slurm's job {job} do not suffice: {error}") from error
    return on_them


def _nodes_of_own(job: str) -> list[str]:
    """The nodes of the allocation that this command runs in."""
    text = ask("squeue", "-h", "-t", "all", f"--jobs={job}", "--format=%T %U %u") or ""
    # The first line is enough. More lines are a heterogeneous job, which node_names() refuses.
    state, uid, owner = (text.split() + [""] * 3)[:3]
    leave = f"leave this shell, or unset {JOB_VARIABLE} to ask for a new allocation"
    if not state:
        raise UsageError(f"{JOB_VARIABLE}={job}: Slurm does not know this job, or does not answer; {leave}")
    if uid != str(os.getuid()):
        raise UsageError(f"{JOB_VARIABLE}={job}: this job belongs to {owner}; {leave}")
    if state != "RUNNING":
        raise UsageError(f"{JOB_VARIABLE}={job}: this allocation has ended ({state.lower()}); {leave}")
    return _nodes(job)


def _nodes(job: str) -> list[str]:
    """The names of an allocation's nodes."""
    if names := node_names(job):
        return names
    raise UsageError(f"Slurm does not say which nodes its job {job} has; `scontrol show job {job}` may")


def ask_queue(job: str) -> Queued:
    """Ask Slurm why a new job waits."""
    reason, _, start = (ask("squeue", "-h", f"--jobs={job}", "--format=%r|%S") or "").partition("|")
    return Queued(job, one_line(reason), "" if start == "N/A" else one_line(start))


def endless_wait(queued: Queued) -> str | None:
    """Return the refusal of a job that could never start, None if it may."""
    advice = _NEVER.get(queued.reason)
    return advice and f"Slurm would let this run wait for ever ({queued.reason}): {advice}"


def missing(program: str) -> str:
    """The refusal on a machine without a program of Slurm."""
    return f"{program} was not found on this machine; {_NO_CLUSTER}"


def refusal(text: str) -> str:
    """Return the messages of sbatch in words for the user, with advice where there is some."""
    lines = [one_line(line).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line]
    said = "; ".join(dict.fromkeys(errors or lines))[:_LONGEST_QUOTE] or "it gave no reason"
    advice = next((advice for words, advice in _ADVICE if words.lower() in text.lower()), None)
    return f"Slurm refuses the allocation: {said}" + (f"; {advice}" if advice else "")


def job_words(spec: JobSpec) -> list[str]:
    """The options of sbatch for the nodes of a run."""
    own = (f"--job-name=orch-{spec.name}", f"--nodes={node_count(spec)}", "--exclusive")
    return [*own, *allocation_words(spec)]
