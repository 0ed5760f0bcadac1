"""The nodes of a run under Slurm: those of the allocation that this command runs in, or of a new one."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.plan.placement import place
from orchestrator.core.text.clean import one_line
from orchestrator.core.text.counted import counted
from orchestrator.core.text.durations import format_duration
from orchestrator.engines.slurm import kill_wait, node_names, time_left
from orchestrator.request.export.batch_script import allocation_words, node_count
from orchestrator.store.runs.slurm_jobs import ask, end_of_state, job_state, own_job

JOB_VARIABLE = "SLURM_JOB_ID"
# salloc runs this on the machine that called it. The allocation lasts until a line comes, or the input ends. The end
# means that orch was killed, and salloc gets SIGTERM then: it would spin for ever if this ended at the same moment.
_HOLDER = ("sh", "-c", 'echo "orch $SLURM_JOB_ID"; read end || sleep 1')
_GRANTED = re.compile(r"^orch (\d+)$", re.MULTILINE)
_PENDING = re.compile(r"Pending job allocation (\d+)")
_READ_BYTES = 1 << 16
# Seconds between questions about a job that waits, at first and at most. They grow by the factor: a job may wait for
# days.
_LOOK_S, _MOST_LOOK_S = 2.0, 30.0
_LOOK_GROWTH = 1.2
# For salloc to give an allocation back.
_RELEASE_S = 10.0
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


@contextmanager
def on_nodes(spec: JobSpec, environ: Mapping[str, str], watcher: QueueWatcher) -> Iterator[JobSpec]:
    """Yield the job with its nodes as hosts; without --engine slurm, the job as it is.

    Inside an allocation its nodes are used. Otherwise one is made and given back at the end of the block. `watcher`
    learns what it waits for. UsageError if Slurm refuses or the nodes do not suffice.
    """
    if spec.engine is not EngineName.SLURM or spec.slurm_job is not None:
        yield spec
    elif job := own_job(environ):
        yield _with_nodes(spec, job, _nodes_of_own(job)[: spec.nodes])
    else:
        with _Allocation(spec, watcher) as allocation:
            yield _with_nodes(spec, allocation.job, _nodes(allocation.job))


def _with_nodes(spec: JobSpec, job: str, names: list[str]) -> JobSpec:
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


@dataclass(frozen=True)
class Queued:
    """Why a job waits, and when it is expected to start, in Slurm's words."""

    job: str
    reason: str
    start: str

    def __str__(self) -> str:
        expected = f"; expected start: {self.start}" if self.start else ""
        return f"Slurm's job {self.job} is queued: {self.reason or 'no reason given'}{expected}"


class QueueWatcher(Protocol):
    """Learns about the wait for an allocation, and can end it. `fileno()` is readable then; -1: it is not used."""

    def fileno(self) -> int: ...

    def show(self, queued: Queued) -> None:
        """Take what Slurm says now. Called when it changes."""

    def check(self) -> None:
        """Raise an exception to end the wait."""

    def warn(self, text: str) -> None:
        """Show what the user has to do after the end of the allocation."""


class _Allocation:
    """An allocation that lasts for a `with` block. Ctrl-C while it waits gives it up, and so does the end of orch."""

    def __init__(self, spec: JobSpec, watcher: QueueWatcher) -> None:
        self._watcher = watcher
        self.job = ""  # until it is granted
        self._pending_job = ""
        try:
            self._process = subprocess.Popen(
                # salloc leaves with this process, even if it is killed.
                ["setpriv", "--pdeathsig", "TERM", "salloc", "--no-bell", *job_words(spec), *_HOLDER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{error.filename} could not be started ({error.strerror})") from error

    def __enter__(self) -> _Allocation:
        try:
            self.job = self._await_grant()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _await_grant(self) -> str:
        """Return the id of the job once its nodes are there."""
        assert self._process.stdout is not None and self._process.stderr is not None
        texts = {self._process.stdout.fileno(): "", self._process.stderr.fileno(): ""}
        out, errors = texts
        poller = select.poll()
        for fd in texts:
            poller.register(fd, select.POLLIN)
        shown = None
        look_s = _LOOK_S
        while True:
            for fd, _ in poller.poll(look_s * 1000):
                if fd not in texts:
                    self._watcher.check()
                    continue
                data = os.read(fd, _READ_BYTES)
                texts[fd] += data.decode(errors="replace")
                if not data:
                    poller.unregister(fd)
                    if fd == out:
                        raise UsageError(self._refusal(texts[errors]))
            if granted := _GRANTED.search(texts[out]):
                return granted[1]
            if pending := _PENDING.search(texts[errors]):
                self._pending_job = pending[1]
            if pending and (queued := ask_queue(pending[1])) != shown:
                refuse_endless_wait(queued)
                self._watcher.show(queued)
                if shown is None and self._watcher.fileno() >= 0:
                    poller.register(self._watcher.fileno(), select.POLLIN)
                shown = queued
            look_s = min(_MOST_LOOK_S, look_s * _LOOK_GROWTH)

    def _refusal(self, errors: str) -> str:
        self._process.wait()
        rest = os.read(self._process.stderr.fileno(), _READ_BYTES) if self._process.stderr else b""
        text = errors + rest.decode(errors="replace")
        if self._pending_job and (end := end_of_state(job_state(self._pending_job))):
            return f"Slurm's job {self._pending_job} {end} while it was queued"
        if "setpriv: " in text and "No such file" in text:
            return missing("salloc")
        return refusal(text)

    def _release(self) -> None:
        process = self._process
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.write(b"end\n")
                process.stdin.flush()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if not self.job:
            process.terminate()
        try:
            process.wait(_RELEASE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            job = self.job or self._pending_job
            if job and ask("scancel", job) is None and end_of_state(job_state(job)) is None:
                self._watcher.warn(
                    f"Slurm does not answer, and its job {job} may keep its nodes; end it later: scancel {job}"
                )


def ask_queue(job: str) -> Queued:
    """Ask Slurm why a job waits."""
    reason, _, start = (ask("squeue", "-h", f"--jobs={job}", "--format=%r|%S") or "").partition("|")
    return Queued(job, one_line(reason), "" if start == "N/A" else one_line(start))


def refuse_endless_wait(queued: Queued) -> None:
    """Raise UsageError for a reason to wait that no time removes."""
    if advice := _NEVER.get(queued.reason):
        raise UsageError(f"Slurm would let this run wait for ever ({queued.reason}): {advice}")


def missing(program: str) -> str:
    """The refusal on a machine without a program of Slurm."""
    return f"{program} was not found on this machine; {_NO_CLUSTER}"


def refusal(text: str) -> str:
    """Return the messages of salloc or sbatch in words for the user, with advice where there is some."""
    lines = [one_line(line).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "setpriv" in line]
    said = "; ".join(dict.fromkeys(errors or lines))[:_LONGEST_QUOTE] or "it gave no reason"
    advice = next((advice for words, advice in _ADVICE if words.lower() in text.lower()), None)
    return f"Slurm refuses the allocation: {said}" + (f"; {advice}" if advice else "")


def job_words(spec: JobSpec) -> list[str]:
    """The options of salloc and sbatch for the nodes of a run."""
    own = (f"--job-name=orch-{spec.name}", f"--nodes={node_count(spec)}", "--exclusive")
    return [*own, *allocation_words(spec)]
