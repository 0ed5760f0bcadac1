"""Serves the requests of clients: creates each run's directory, runs its supervisor, makes sure a result is written."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.diagnosis.shortages import storage_advice
from orchestrator.core.errors import EngineError, ExitCode, OrchError, UsageError
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.outcome import Findings, run_result
from orchestrator.core.state.events import AgentLost, JobStarted, Noticed, RunEndedEvent
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import Cause, CauseKind, RunResult
from orchestrator.core.state.state import RunState
from orchestrator.engines import Engine
from orchestrator.host.headroom import many_files
from orchestrator.links.client_link import ClientLink, First, HostQuestions, Request, unpack_environ
from orchestrator.store.files import make_private
from orchestrator.store.ownership import accept_owner
from orchestrator.store.runs.catalog import take_name
from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.liveness import start_ticks
from orchestrator.store.runs.locks import Lock
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.record import RunRecord, boot_id
from orchestrator.store.runs.slurm_jobs import own_job
from orchestrator.store.runs.writer import RunStore, new_run_id
from orchestrator.supervisor import now
from orchestrator.supervisor.earlier import close_earlier
from orchestrator.supervisor.here import LocalAgent
from orchestrator.supervisor.hosts import Hosts
from orchestrator.supervisor.kept import Door, OwnerDoor, WarmDoor, next_client, redirect_output
from orchestrator.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from orchestrator.supervisor.preparing import Prepared

_PR_SET_CHILD_SUBREAPER = 36
# Seconds for `orch up` on the login node to release the run that it has submitted.
_RELEASE_S = 10.0


def serve(door: Door, here: LocalAgent, remote: Engine | None = None) -> int:
    """Serve the clients that come to a door, one after another. Return the exit code of the last run.

    `remote`: the engine that reaches hosts, in place of the one that a job names.
    """
    _become_subreaper()
    # Imported modules stay for good: the garbage collector need not traverse them.
    gc.freeze()
    gc.enable()
    code: int = ExitCode.ORCH
    client: ClientLink | None = None
    try:
        while (asked := next_client(door, here)) is not None:
            client, message = asked
            with ExitStack() as files:
                request, early = _prepared(message, client, here, remote, files)
                if request is None:
                    client.close()
                    continue
                here.are_kept = door.stays or request.warm is not None
                hosts = _hosts(request.spec, here, remote, early)
                try:
                    may_stay, code = _serve_one(request, client, here, hosts)
                finally:
                    if not hosts.are_kept:
                        hosts.end()  # also those of a request that was refused
            if may_stay:
                door = _door_after(door, request)
            if not may_stay or door.must_leave(here):
                break
            client.close()
            # A run leaves reference cycles, which Python by itself would only collect after hundreds of runs.
            gc.collect()
    finally:
        door.close()  # the next holder of a directory need not wait until the agent has left
        here.end()
        if client is not None:
            client.close()
    return code


def _door_after(door: Door, request: Request) -> Door:
    """Return the door of the next client: that of a warm holder once a run has asked for it."""
    with suppress(OrchError, OSError):
        if isinstance(door, OwnerDoor) and request.warm is not None:
            door = WarmDoor.take(str(request.spec.directory), request.warm) or door
        if isinstance(door, WarmDoor):
            door.open(request.warm)
    return door


def _prepared(
    message: First,
    client: ClientLink,
    here: LocalAgent,
    remote: Engine | None,
    files: ExitStack,
) -> tuple[Request | None, Hosts | None]:
    """Return (the request, None if the client has left; the hosts whose agents were started early for it).

    `files`: gets the raised limit on open files, while there are agents that were started early."""
    prepared: Prepared | None = None
    following: First | None = message
    while following is not None and not isinstance(following, Request):
        if isinstance(following, HostQuestions):
            if prepared is not None:
                prepared.ask(following.questions)
        else:
            from orchestrator.supervisor.preparing import Prepared  # links to other hosts take long to import

            if prepared is not None:
                prepared.hosts.end()
                prepared = None
            files.enter_context(many_files())
            _take_environ(following.environ)
            try:
                prepared = Prepared(following, remote)
                here.end()  # it waits for the agent's exit, during which the connections are opened
            except EngineError as error:
                client.refused(error)
        if prepared is not None and not client.has_line:
            prepared.serve_until_readable(client.fileno(), client.hosts)
        following = client.read_request()
    if following is None and prepared is not None:
        prepared.hosts.end()
    return following, None if prepared is None else prepared.hosts


def _take_environ(packed: Mapping[str, str]) -> None:
    """Work for a client with its environment: the agents inherit it."""
    os.environ.clear()
    os.environ.update(unpack_environ(packed))


def _serve_one(request: Request, client: ClientLink, here: LocalAgent, hosts: Hosts) -> tuple[bool, int]:
    """Return (whether this process may serve another run, the run's exit code)."""
    started_mono = time.monotonic()
    _take_environ(request.environ)
    if request.state_owner is not None:
        accept_owner(request.state_owner)
    try:
        store = _open_store(request, started_mono, hosts.run_id)
    except OrchError as error:
        client.refused(error)
        return True, error.exit_code
    except OSError as error:
        client.refused(UsageError(_cannot_make(request.spec, error)))
        return True, ExitCode.USAGE
    redirect_output(store.open_log(store.paths.supervisor_log))
    client.created(store.paths.root)
    spec = request.spec
    if not spec.hosts:  # else the default is a directory of each host
        checkpoint_dir = spec.checkpoint_dir or store.paths.checkpoints
        spec = spec.model_copy(update={"checkpoint_dir": checkpoint_dir})
    here.take_descriptors(dict(zip(request.descriptors, client.descriptors, strict=True)))
    supervisor = Supervisor(spec, request.is_detached, hosts, store, client)
    try:
        result = supervisor.run()
    except Exception as error:
        traceback.print_exc()
        hosts.end()
        took_s = time.monotonic() - started_mono
        result = _result_after_error(spec, store, supervisor.state, error, took_s)
    finally:
        if not hosts.are_kept:
            hosts.end()
        store.close()
    if not store.result_is_written:
        client.ended(result)
    return not supervisor.was_signalled, result.exit_code


def _hosts(spec: JobSpec, here: LocalAgent, remote: Engine | None, early: Hosts | None) -> Hosts:
    """Return the hosts of a job: those that were opened `early` if they are its own."""
    if early is not None:
        if early.spec == spec:
            return early
        early.end()
    if not spec.hosts:
        return Hosts(spec, here)
    here.end()
    return Hosts(spec, remote=remote)


def _cannot_make(spec: JobSpec, error: OSError) -> str:
    place = error.filename or spec.log_dir or runs_dir()
    why = error.strerror or str(error)
    advice = storage_advice(why)
    return f"the run's files cannot be made in {place}: {why}" + (f". {advice}" if advice else "")


def _result_after_error(
    spec: JobSpec, store: RunStore, state: RunState, error: Exception, took_s: float
) -> RunResult:
    """Kill what is left of the run after an error of orch's own, and write the result as far as it is known."""
    swept = end_leftovers(store.paths, ancestor_pid=os.getpid())
    reason = f"{type(error).__name__}: {error}"
    text = f"the supervisor failed ({reason}); see {store.paths.supervisor_log}"
    cause = Cause(task=None, kind=CauseKind.ORCH, text=text)
    result = _known_result(spec, store.paths.run_id, state, took_s).model_copy(
        update={"outcome": "failed", "exit_code": ExitCode.ORCH, "cause": cause, "left": swept.left}
    )
    store.append(RunEndedEvent(**now(), outcome="failed", exit_code=ExitCode.ORCH))
    store.write_result(result)
    return result


def _known_result(spec: JobSpec, run_id: str, state: RunState, took_s: float) -> RunResult:
    """The result with the attempts and tasks as they are known."""
    checkpoint_dir = str(spec.checkpoint_dir)
    lost = AgentLost(**now(), reason="the supervisor failed")
    try:
        findings = Findings(timeout_s=spec.timeout_s, took_s=took_s)
        return run_result(run_id, apply(state, lost), findings, checkpoint_dir)
    except Exception:  # it may be the same error again
        traceback.print_exc()
        return RunResult(
            run_id=run_id,
            outcome="failed",
            exit_code=ExitCode.ORCH,
            attempts=state.attempt,
            cause=None,
            first_failure=None,
            detection_s=None,
            teardown_s=None,
            tasks=(),
            checkpoint_dir=checkpoint_dir,
            history=state.history,
        )


def _open_store(request: Request, started_mono: float, run_id: str | None) -> RunStore:
    """Create the run's directory, or take over the one that the request names. OrchError, OSError."""
    spec, before = request.spec, request.adopt or request.continues
    name_lock = take_name(spec.name, spec.name_is_explicit, "" if before is None else before.name)
    try:
        if request.adopt is not None:
            return _adopt_run(spec, request.adopt, started_mono, name_lock)
        return _create_run(request, started_mono, run_id, name_lock)
    except BaseException:
        if name_lock is not None:
            name_lock.release()  # this process may serve another run of the name
        raise


def _create_run(
    request: Request, started_mono: float, run_id: str | None, name_lock: Lock | None
) -> RunStore:
    spec, existing = request.spec, request.existing
    if spec.checkpoint_dir is not None and not spec.is_remote:
        make_private(spec.checkpoint_dir, existing)
    store = RunStore.create(run_id or new_run_id(spec.name), spec.log_dir, name_lock, existing)
    record = RunRecord(
        id=store.paths.run_id,
        name=spec.name,
        directory=str(spec.directory),
        started_at=time.time(),
        started_mono=started_mono,
        checkpoint_dir=str(spec.checkpoint_dir or store.paths.checkpoints),
        spec=spec.masked().model_dump(mode="json"),
        **_of_this_process(),
        **_job_here(spec),
    )
    if request.continues is None:
        store.publish(record)
        return store
    before = RunView.open(RunPaths(request.continues))
    if before is None:
        store.close()
        raise UsageError(f"{request.continues}: the run was removed")
    mark = before.record.job_mark
    store.publish(record.model_copy(update={"continues": before.record.id, "job_mark": mark}))
    close_earlier(before, store.paths.run_id)
    text = f"Slurm has started its job {record.job} again; the run before is {before.record.id}"
    store.append(Noticed(**now(), text=text))
    return store


def _adopt_run(spec: JobSpec, root: Path, now_mono: float, name_lock: Lock | None) -> RunStore:
    store = RunStore.adopt(root, name_lock, _RELEASE_S)
    record = store.record
    # The age of the run, by the clock of this machine.
    started_mono = max(0.0, now_mono - max(0.0, time.time() - record.started_at))
    spec_text = spec.masked().model_dump(mode="json")
    own = {**_of_this_process(), "spec": spec_text, "started_mono": started_mono}
    try:
        store.take_over(record.model_copy(update=own))
    except BaseException:
        store.close()
        raise
    if record.job is not None:
        store.append(JobStarted(**now(), job=record.job))
    return store


def _of_this_process() -> dict[str, Any]:
    """The values of a record about this supervisor."""
    return {
        "boot_id": boot_id(),
        "host": platform.node(),
        "supervisor_pid": os.getpid(),
        "supervisor_start_ticks": start_ticks(os.getpid()) or 0,
        "versions": _versions(),
    }


def _job_here(spec: JobSpec) -> dict[str, Any]:
    """The values of a record about the Slurm job that has this machine as a node; empty without one."""
    job = own_job(os.environ)
    # A shell of salloc on a login node does not have the name of a node.
    if job is None or job != spec.slurm_job or "SLURMD_NODENAME" not in os.environ:
        return {}
    return {"job": job, "cluster": os.environ.get("SLURM_CLUSTER_NAME", "")}


def _become_subreaper() -> None:
    """If the agent is killed, its orphaned tasks become children of this process and not of init."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _versions() -> dict[str, str]:
    try:
        orch = version("tf-orch")
    except PackageNotFoundError:
        orch = "unknown"
    return {"orch": orch, "python": platform.python_version(), "kernel": platform.release()}
