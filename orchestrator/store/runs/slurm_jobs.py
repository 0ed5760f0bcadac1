"""The Slurm job of a run: what Slurm says about it."""

from __future__ import annotations

import hashlib
import math
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from orchestrator.core.text.clean import one_line
from orchestrator.store.ownership import is_own_user

# The exit code of the script of `orch up -d` on a node that does not have the run's directory.
NOT_SHARED = 72
# Seconds to wait for an answer of Slurm's controller. After a question without an answer, most others are not asked for
# _SILENCE_S: a list of runs would wait for each of them.
_ASK_S = 5.0
_SILENCE_S = 15.0
# An answer is used again for _FRESH_S. If it has stayed the same for a while, it is used for _FRESH_PART of that while,
# at most _MOST_FRESH_S: a job may wait for days.
_FRESH_S = 1.0
_FRESH_PART = 0.1
_MOST_FRESH_S = 15.0
# Variables with these prefixes are options of Slurm's programs: they change what squeue prints and what srun does.
# Slurm sets many of them in a job. The ones in _KEPT are needed to reach Slurm.
_OPTIONS = ("SLURM_", "SRUN_", "SQUEUE_")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
_UNKNOWN_JOB = "Invalid job id"
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)
_WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
)
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")
_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "has reached its time limit; give it more with --time",
    "PREEMPTED": "was preempted by a job of higher priority",
    "NODE_FAIL": "has lost a node",
    "COMPLETED": "has ended",
    "COMPLETING": "is ending",
    "FAILED": "has failed",
}


class JobPhase(Enum):
    """Whether a job waits for its nodes."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"  # Slurm does not answer, or is not on this machine


@dataclass(frozen=True)
class JobStatus:
    """The state of a job, in Slurm's words.

    `reason` and `start` are set while it waits, `exit_code` when it has ended by itself.
    """

    phase: JobPhase
    state: str = ""
    reason: str = ""
    start: str = ""
    exit_code: int | None = None

    @property
    def end(self) -> str | None:
        """The end of the job, as the rest of a sentence; None if it has not ended."""
        if self.phase is not JobPhase.ENDED:
            return None
        if not self.state:
            return "is not known to Slurm any more"
        return _ENDS.get(self.state) or f"has ended ({self.state.lower().replace('_', ' ')})"


@dataclass
class _Answer:
    """Times are monotonic seconds. `since`: the time of the first answer with this status."""

    asked: float
    since: float
    status: JobStatus

    @property
    def is_fresh(self) -> bool:
        same_s = self.asked - self.since
        return time.monotonic() < self.asked + min(_MOST_FRESH_S, max(_FRESH_S, same_s * _FRESH_PART))


@dataclass
class _Known:
    """The answers of Slurm. `silent_until`: end of the pause after a question without an answer (monotonic seconds)."""

    answers: dict[tuple[str, str], _Answer] = field(default_factory=dict)
    cluster: str = ""
    silent_until: float = -math.inf


_known = _Known()


def own_job(environ: Mapping[str, str]) -> str | None:
    """The job that this process runs in, by a name that Slurm's programs take for this job only.

    The last element of a job array has the number of the whole array as its own.
    """
    job, element = environ.get("SLURM_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{job}_{element}" if job and element and job == environ.get("SLURM_ARRAY_JOB_ID") else job


def job_number(job: str) -> str:
    """The number of a job for srun, which takes no name of an element."""
    return job.partition("_")[0]


def marked_comment(mark: str) -> str:
    """The word in the comment of a job by which orch knows that it submitted the job for the run with this mark.

    Other users may read the comment. They cannot compute the mark from it, so they cannot prepare a run
    that names this job.
    """
    return f"orch:{hashlib.sha256(mark.encode()).hexdigest()[:16]}"


def job_status(job: str, cluster: str, mark: str) -> JobStatus:
    """Return what Slurm says about a job of a cluster. An answer may be some seconds old.

    A job that does not have the mark is another one, and unknown. `mark` is empty for a job that orch did not submit.
    """
    last = _known.answers.get((job, mark))
    if last is not None and last.is_fresh:
        return last.status
    if _has_timed_out():
        return JobStatus(JobPhase.UNKNOWN)
    status = _ask_about(job, cluster, mark)
    now = time.monotonic()
    since = last.since if last is not None and last.status == status else now
    _known.answers[job, mark] = _Answer(now, since, status)
    return status


def _ask_about(job: str, cluster: str, mark: str) -> JobStatus:
    found = _run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%S|%U|%k")
    if found is None:
        return JobStatus(JobPhase.UNKNOWN)
    code, text, errors = found
    # Another cluster that has the same home directory has other jobs.
    if (code and _UNKNOWN_JOB not in errors) or own_cluster() != cluster:
        return JobStatus(JobPhase.UNKNOWN)
    state, reason, start, uid, comment = (*map(one_line, text.strip().split("|", 4)), "", "", "", "", "")[:5]
    if mark and not (uid.isdigit() and is_own_user(int(uid)) and marked_comment(mark) in comment.split()):
        state = ""
    if state in _WAITING:
        return JobStatus(JobPhase.WAITING, state, reason, "" if start == "N/A" else start)
    if state in _RUNNING:
        return JobStatus(JobPhase.RUNNING, state)
    return JobStatus(JobPhase.ENDED, state, exit_code=_exit_code(job) if state else None)


def _exit_code(job: str) -> int | None:
    text = ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=exit_code:20")
    # The wait status of the script.
    return int(text) >> 8 if text and text.isdigit() else None


def own_cluster() -> str:
    """The name of the cluster that Slurm's programs on this machine ask; empty if there is none, or no answer."""
    if not _known.cluster and (found := _CLUSTER.search(ask("scontrol", "show", "config") or "")):
        _known.cluster = found[1]
    return _known.cluster


def job_state(job: str) -> str | None:
    """The state of a job now, such as RUNNING; None if Slurm does not know it or does not answer."""
    return ask_if_responsive("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T") or None


def end_of_state(state: str | None) -> str | None:
    """Return how a job in this state ends, as the rest of a sentence; None if its steps do not end in this state."""
    return _ENDS.get(state or "")


def ask(*words: str) -> str | None:
    """Return what a program of Slurm prints on stdout; None if it fails or takes too long."""
    found = _run(*words)
    return found[1].strip() if found is not None and found[0] == 0 else None


def ask_if_responsive(*words: str) -> str | None:
    """Return the same as ask(), or None without asking if a question took too long a short time ago.

    A supervisor that waited for each answer would lose its hosts.
    """
    return None if _has_timed_out() else ask(*words)


def _has_timed_out() -> bool:
    return time.monotonic() < _known.silent_until


def plain_environ() -> dict[str, str]:
    """The environment of this process, without the variables that are options of srun, squeue and scontrol."""
    return {
        name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_OPTIONS)
    }


def _run(*words: str) -> tuple[int, str, str] | None:
    """Return (exit code, stdout, stderr); None if the program is missing or takes too long."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            env=plain_environ(),
        )
    except subprocess.TimeoutExpired:
        _known.silent_until = time.monotonic() + _SILENCE_S
        return None
    except OSError:
        return None
    return done.returncode, done.stdout, done.stderr
