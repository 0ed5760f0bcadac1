"""The Slurm engine: runs one srun for each connection, in an existing allocation (preflight/allocation.py)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.core.errors import EngineError, UsageError
from orchestrator.core.text.clean import one_line
from orchestrator.core.text.durations import MAX_DURATION_S
from orchestrator.engines import Connection
from orchestrator.store.runs.slurm_jobs import (
    ask,
    ask_if_responsive,
    end_of_state,
    job_number,
    job_state,
    own_job,
    plain_environ,
)

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec

_LONGEST_QUOTE = 200
# Shortest time between questions about the state of the job (seconds): all its steps may end at the same time.
_STATE_S = 1.0
_TIME_LEFT = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,2}):)?(\d{1,2}):(\d{2})", re.ASCII)
# Part of srun's message about a node on which slurmd did not start the step.
_NOT_LAUNCHED = "launch failed"
# The fields in the order of `scontrol show job`. The name and the comment of the job may contain similar text.
_REQUEUE = re.compile(
    r" JobState=(\w+) .{0,2000}? Requeue=(\d) Restarts=(\d+) BatchFlag=(\d) Reboot=", re.ASCII
)
# Fields of a job that a user has cancelled. Slurm gives another reason, or a PreemptTime, when it ends a job itself.
_CANCELLED = re.compile(
    r" JobState=(?:CANCELLED|COMPLETING) Reason=None .{0,2000}? PreemptTime=None ", re.ASCII
)
# Parts of srun's messages that do not explain a failure.
_BY_THE_WAY = ("cpu binding", "Job step creation temporarily disabled", "Step created for")


class SlurmEngine:
    """`job`: the id of the allocation.

    Each connection is a step of the job, which runs the agent of a node on all its cores. The step ends with its srun,
    and Slurm then ends its processes.
    """

    # srun waits for the step to end. If srun is killed, Slurm kills the step at once, and its directory stays.
    leave_s = unanswered_s = 10.0
    is_remote = True

    def __init__(self, job: str) -> None:
        self._job = job
        self._state: str | None = None
        self._ask_at = -math.inf

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Connection:
        """Run `words`, text for a shell, on a node."""
        step = [*step_words(self._job, destination), "sh", "-c", " ".join(words)]
        return Connection(step, errors, plain_environ())

    def explain(self, host: str, exit_code: int | None, errors: str, messages: str | None = None) -> str:
        """Why a step on `host` ended, and what to do, from the state of the job and srun's last text on stderr."""
        if time.monotonic() >= self._ask_at:
            self._state = job_state(self._job)
            self._ask_at = time.monotonic() + _STATE_S
        if end := end_of_state(self._state):
            return f"{host}: Slurm's job {self._job} {end}"
        said = _said(errors)
        if any(_NOT_LAUNCHED in line for line in said):
            return f"{host}: Slurm could not start a step there ({said[-1][:_LONGEST_QUOTE]}); {_other_nodes(host)}"
        # srun reports the exit code before or after the output of the command, which explains more.
        own = [line for line in said if "Exited with exit code" not in line]
        last = (own or said or ["srun gave no reason"])[-1][:_LONGEST_QUOTE]
        if exit_code is not None and exit_code < 0:
            return f"{host}: srun was ended by signal {-exit_code} on this machine"
        return f"{host}: {last}; `scontrol show job {self._job}` shows the job, `sinfo -N` the nodes"

    def explain_silence(self, host: str, waited_s: float, errors: str) -> str:
        said = _said(errors)
        quoted = f" ({said[-1][:_LONGEST_QUOTE]})" if said else ""
        return (
            f"{host}: the step of Slurm's job {self._job} did not answer within {waited_s:g} s{quoted};"
            f" {_other_nodes(host)}"
        )

    def why_gone(self, host: str) -> str | None:
        """With --no-kill, Slurm removes a lost node from a running job, and never adds one to it."""
        nodes = node_names(self._job, ask_if_responsive)
        return f"Slurm has taken it out of job {self._job}" if nodes and host not in nodes else None


def _said(errors: str) -> list[str]:
    """The lines of srun's stderr that may explain a failure."""
    lines = [one_line(line).strip() for line in errors.splitlines()]
    return [line for line in lines if line and not any(text in line for text in _BY_THE_WAY)]


def _other_nodes(host: str) -> str:
    return f'look at slurmd, its Prolog and the file systems of {host}, or leave it out: --slurm "--exclude={host}"'


def for_job(spec: JobSpec) -> SlurmEngine:
    if spec.slurm_job is None:
        raise EngineError("Slurm has made no allocation for this run")
    return SlurmEngine(spec.slurm_job)


def step_words(job: str, node: str) -> list[str]:
    """The words in front of a command that run it as a step of a job, on a node. Use them with plain_environ()."""
    return [
        *("srun", f"--jobid={job_number(job)}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"),
        # The steps of a node share all that the job has there.
        *("--overlap", "--mem=0", "--cpu-bind=none"),
        # The environment of the tasks travels in the stream. These belong to the node.
        "--export=HOME,USER,LOGNAME,PATH,LANG",
        *("--job-name=orch", "--kill-on-bad-exit=0", "--quiet"),
    ]


def time_left(job: str) -> float | None:
    """Seconds until a job reaches its time limit, a year if it has none; None if Slurm does not answer."""
    return parse_time_left(ask("squeue", "--noheader", f"--jobs={job}", "--format=%L") or "")


def parse_time_left(text: str) -> float | None:
    """The seconds in `1-02:03:04`, `2:03:04` or `3:04`; a year for UNLIMITED; None for other text."""
    if text.strip() == "UNLIMITED":
        return MAX_DURATION_S
    found = _TIME_LEFT.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


def kill_wait() -> float | None:
    """Seconds from SIGTERM to SIGKILL when Slurm ends a job; None if it does not say."""
    found = re.search(r"^KillWait\s*=\s*(\d+) sec", ask("scontrol", "show", "config") or "", re.MULTILINE)
    return None if found is None else float(found[1])


def node_names(job: str, ask: Callable[..., str | None] = ask) -> list[str]:
    """The names of a job's nodes, in Slurm's order, in which n2 comes before n10; empty if Slurm does not answer.

    UsageError for a heterogeneous job, which has a list for each kind of nodes.
    """
    listed = ask("squeue", "--noheader", f"--jobs={job}", "--format=%N")
    if listed and len(listed.splitlines()) > 1:
        raise UsageError(
            f"Slurm's job {job} is heterogeneous, which orch does not support; ask for nodes of one kind"
        )
    return (ask("scontrol", "show", "hostnames", listed) or "").splitlines() if listed else []


def is_own_job(job: str, environ: Mapping[str, str]) -> bool:
    """Whether this process runs on a node of the job. A shell of salloc is on the machine that called it."""
    return own_job(environ) == job and "SLURMD_NODENAME" in environ


def is_ending(job: str | None, environ: Mapping[str, str]) -> bool:
    """Whether this process runs on a node of the job, and Slurm ends the job."""
    return job is not None and is_own_job(job, environ) and job_state(job) not in (None, "RUNNING")


def is_cancelled(job: str) -> bool:
    """Whether a user has cancelled a job. False if Slurm ends it itself, such as by a preemption."""
    return _CANCELLED.search(ask("scontrol", "show", "job", "--oneliner", job) or "") is not None


def is_started_again(job: str, environ: Mapping[str, str], *, may_ask: bool) -> bool:
    """Whether Slurm starts the batch job of this process again after its end.

    `may_ask`: request it with `scontrol requeue` if Slurm has not decided so itself.
    """
    if not is_own_job(job, environ):
        return False
    found = _REQUEUE.search(ask("scontrol", "show", "job", "--oneliner", job) or "")
    if found is None:
        return False
    state, may_requeue, restarts, is_batch = found.groups()
    if int(restarts) > int(environ.get("SLURM_RESTART_COUNT", 0)):
        return True
    is_allowed = (state, may_requeue, is_batch) == ("RUNNING", "1", "1")
    return may_ask and is_allowed and ask("scontrol", "requeue", job) is not None
