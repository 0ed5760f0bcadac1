"""`orch up` on a login node of Slurm: a job of sbatch, whose script starts the run on the first node."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.client.api import Run
from orchestrator.core.errors import EngineError, UsageError
from orchestrator.core.job.spec import JobSpec
from orchestrator.host.isolation import isolated
from orchestrator.preflight.allocation import (
    JOB_VARIABLE,
    ask_queue,
    endless_wait,
    job_words,
    missing,
    refusal,
)
from orchestrator.request.settings.request import DisplayOptions, UpRequest
from orchestrator.store.ownership import accepted_owner
from orchestrator.store.runs.catalog import take_name
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.record import RunRecord, boot_id
from orchestrator.store.runs.slurm_jobs import NOT_SHARED, ask, marked_comment, own_cluster
from orchestrator.store.runs.writer import RunStore, new_run_id

# The job in the environment of the script. It may hold secrets, which belong neither on a disk nor on a command line.
SPEC_VARIABLE = "ORCH_SUBMITTED_JOB"
# The kernel allows 128 KiB for one variable.
_MOST_BYTES = 120_000
# Variables of sbatch that orch removes: they would make a job array, or let sbatch wait for the end of the job.
_NOT_FOR_SBATCH = ("SBATCH_ARRAY_INX", "SBATCH_WAIT")
# Seconds for sbatch; a busy controller lets it wait.
_SUBMIT_S = 60.0
# Seconds after an interrupt for sbatch to print the id of its job, which is then cancelled.
_CANCEL_S = 10.0
# The script waits for the directory, because NFS may show a new one late. After 30 s the node does not have it.
_SCRIPT = """\
#!/bin/sh
# The rest of `orch up`: its supervisor, on the first node of the job.
run={run}
tries=0
until [ -e "$run/run.json" ]; do
  tries=$((tries + 1))
  [ $tries -gt 30 ] && exit {not_shared}
  sleep 1
done
(umask 077; : >>"$run/{log}")
exec >>"$run/{log}" 2>&1 </dev/null
exec {command}
"""


def submit(up: UpRequest, *, may_requeue: bool) -> Run:
    """Submit a run, and return it: it is queued. UsageError if Slurm refuses it, NameTaken, EngineError.

    `may_requeue`: Slurm may start the job again, for example after a preemption.
    """
    if job := os.environ.get(JOB_VARIABLE):
        raise UsageError(
            f"--detach: this shell is in the allocation of Slurm's job {job}, which may end before the run; leave the"
            " shell, or leave out --detach"
        )
    spec = up.spec
    if any(word.startswith(("--array", "-a")) for word in spec.slurm):
        raise UsageError(
            "--slurm: each element of a job array is a run of its own; submit a batch script that calls `orch up`"
            " (`orch export slurm` writes it)"
        )
    if spec.interactive is not None or spec.pdb:
        option = "--pdb" if spec.pdb else "--interactive"
        raise UsageError(f"{option}: the terminal of this process cannot be passed to a node of Slurm")
    name_lock = take_name(spec.name, spec.name_is_explicit)
    mark = secrets.token_hex(16)
    try:
        store = RunStore.create(new_run_id(spec.name), spec.log_dir, name_lock, up.existing)
    except OSError as error:
        raise UsageError(f"the run's files cannot be made: {error.filename}: {error.strerror}") from error
    try:
        job = _submit_job(spec, store.paths, mark, may_requeue=may_requeue)
    except BaseException:
        store.discard()
        raise
    try:
        store.publish(_record(spec, store.paths, job, mark))
    except BaseException:
        ask("scancel", job)
        raise
    store.close()
    view = RunView.open(store.paths)
    if view is None:
        raise EngineError(
            f"{store.paths.root}: the run's directory was removed; `scancel {job}` ends its job"
        )
    return Run(view)


def _submit_job(spec: JobSpec, paths: RunPaths, mark: str, *, may_requeue: bool) -> str:
    """Return the id of the new job."""
    text = spec.model_dump_json()
    if (size := len(text.encode())) > _MOST_BYTES:
        raise UsageError(f"the job has {size:,} bytes of options, and a batch job takes {_MOST_BYTES:,}")
    words = [
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--export=ALL",
        "--requeue" if may_requeue else "--no-requeue",
        f"--chdir={spec.directory}",
    ]
    script = _SCRIPT.format(
        run=shlex.quote(str(paths.root)),
        not_shared=NOT_SHARED,
        log=paths.job_log.name,
        command=shlex.join(_program(paths)),
    )
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_SBATCH}
    own = job_words(spec)
    # The user's comment stays: sbatch takes the last one.
    comments = re.findall(r"(?m)^--comment[=\n](.*)", "\n".join(own))
    comment = " ".join([*comments[-1:], marked_comment(mark)])
    job = _call_sbatch([*words, *own, f"--comment={comment}"], script, {**environ, SPEC_VARIABLE: text})
    try:
        if why := endless_wait(ask_queue(job)):
            raise UsageError(why)
    except BaseException:
        ask("scancel", job)
        raise
    return job


def _call_sbatch(words: list[str], script: str, environ: Mapping[str, str]) -> str:
    """Return the id of the new job. After an interrupt, the job that sbatch may have submitted is cancelled."""
    pipe = subprocess.PIPE
    try:
        # In a new session sbatch does not get Ctrl-C, and still prints the id.
        process = subprocess.Popen(
            words,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=environ,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise UsageError(missing("sbatch")) from error
    except OSError as error:
        raise UsageError(f"sbatch could not be started ({error.strerror})") from error
    with process:
        try:
            printed, errors = process.communicate(script, _SUBMIT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise EngineError(
                f"sbatch did not answer within {_SUBMIT_S:g} s; `squeue --me` shows your jobs"
            ) from error
        except BaseException:
            _cancel(process)
            raise
    job = _printed_job(printed)
    if process.returncode or job is None:
        raise UsageError(refusal(errors))
    return job


def _printed_job(printed: str) -> str | None:
    """Return the id of the job, the last word that sbatch prints. Programs of a site may print text before it."""
    job = "".join(printed.split()[-1:]).partition(";")[0]
    return job if job.isdecimal() else None


def _cancel(process: subprocess.Popen[str]) -> None:
    """Cancel the job of an sbatch that still runs. Kill sbatch if it does not print the id in time."""
    try:
        job = _printed_job(process.communicate(timeout=_CANCEL_S)[0])
    except subprocess.TimeoutExpired:
        process.kill()
        return
    if job is not None:
        ask("scancel", job)


def _program(paths: RunPaths) -> list[str]:
    owner = accepted_owner()
    words = [str(paths.root), *([] if owner is None else [str(owner)])]
    return isolated("orchestrator.cli.submitted", *words, also_needs=("typer", "click"))


def _record(spec: JobSpec, paths: RunPaths, job: str, mark: str) -> RunRecord:
    """The record until a supervisor takes the run over."""
    return RunRecord(
        id=paths.run_id,
        name=spec.name,
        directory=str(spec.directory),
        started_at=time.time(),
        started_mono=time.monotonic(),
        boot_id=boot_id(),
        host=os.uname().nodename,
        supervisor_pid=0,
        supervisor_start_ticks=0,
        checkpoint_dir=str(spec.checkpoint_dir or paths.checkpoints),
        versions={},
        spec=spec.masked().model_dump(mode="json"),
        job=job,
        job_mark=mark,
        cluster=own_cluster(),
    )


def submitted_request(root: Path) -> UpRequest:
    """Return the request of this batch script, which does not show the lines of tasks. UsageError.

    `root`: the run that was submitted. If Slurm has started the job again, the request is for a new run."""
    text = os.environ.pop(SPEC_VARIABLE, None)
    if text is None:
        raise UsageError(f"{SPEC_VARIABLE} is not set; sbatch passes it on from `orch up`")
    view = RunView.open(RunPaths(root))
    has_begun = view is None or view.record.supervisor_pid > 0
    return UpRequest(
        JobSpec.model_validate_json(text), DisplayOptions(tasks=()), adopt=None if has_begun else root
    )
