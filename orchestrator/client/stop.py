"""Stops a run, live or lost, and returns when none of its processes is left."""

from __future__ import annotations

import signal
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client.orders import ask_run
from orchestrator.core.errors import EngineError, ExitCode, UsageError
from orchestrator.core.job.choices import DEFAULT_GRACE_S, DEFAULT_LINK_TIMEOUT_S
from orchestrator.core.progress.activity import join_names
from orchestrator.core.state import events
from orchestrator.core.state.events import StopReason
from orchestrator.core.state.result import Cause
from orchestrator.core.state.state import HostPhase, RunPhase
from orchestrator.links.orders import StopOrder
from orchestrator.store.runs import lost_runs
from orchestrator.store.runs.leftovers import Swept, end_leftovers, processes_left
from orchestrator.store.runs.liveness import Liveness, is_supervisor_alive, signal_supervisor
from orchestrator.store.runs.reader import RunView
from worker.wire.facts import LeftProcess

_POLL_S = 0.02
# Seconds that a stop may take beyond its grace; the supervisor itself gives up on a silent agent before that.
STOP_MARGIN_S = 20.0
# A new run listens within this time; after it, a run without an answer has lost its socket and gets a signal.
_LISTENS_WITHIN_S = 2.0
# Limit on a time that a record names.
_LONGEST_S = 1e9


@dataclass(frozen=True)
class Ended:
    """The result of a stop: the tasks that were running, as far as they are known, the number of processes
    (`swept`) that a lost run had left behind, those of other users that are still running (`left`), and the hosts that
    orch does not reach (`lost_hosts`)."""

    run_id: str
    tasks: tuple[str, ...]
    swept: int
    was_live: bool
    was_queued: bool = False
    left: tuple[LeftProcess, ...] = ()
    lost_hosts: tuple[str, ...] = ()

    @property
    def rest(self) -> str:
        """`no process is left`, or why orch does not know."""
        if not self.lost_hosts:
            return "no process is left"
        names = join_names(self.lost_hosts)
        if len(self.lost_hosts) == 1:
            return f"the agent on {names}, which orch does not reach, ends everything there by itself"
        return f"the agents on {names}, which orch does not reach, end everything there by themselves"


def stop_run(view: RunView, force: bool) -> Ended:
    """Ask the supervisor to stop and wait until the run is dead; end processes that a lost run left behind.

    Raises EngineError if the run does not end, or if it is not known whether it lives.
    """
    (ended,) = stop_runs([view], force)
    if isinstance(ended, EngineError):
        raise ended
    return ended


def stop_runs(views: Sequence[RunView], force: bool) -> list[Ended | EngineError]:
    """Ask all supervisors to stop before waiting for the first, so that the runs end at the same time.

    Return for each run how it ended, or the error that stop_run() would raise.
    """
    with ExitStack() as kept_open:
        for view in views:
            kept_open.enter_context(view.keep_open())
        was_live = [view.is_live for view in views]
        running = [_running_tasks(view) for view in views]
        were_queued = [view.state.phase is RunPhase.QUEUED for view in views]
        asked = [_ask(view, force) for view in views]
        ended: list[Ended | EngineError] = []
        for view, was, tasks, queued, has_order in zip(
            views, was_live, running, were_queued, asked, strict=True
        ):
            try:
                _wait_until_gone(view, force, has_order)
            except EngineError as error:
                ended.append(error)
                continue
            swept = end_processes_of_lost(view)
            left = _processes_left(view, swept)
            lost_runs.close_lost_runs()
            view.refresh()
            ended.append(Ended(view.record.id, tasks, swept.ended, was, queued, left, _lost_hosts(view)))
    return ended


def end_processes_of_lost(view: RunView) -> Swept:
    """End the processes on this machine of a run without a result whose supervisor was killed, perhaps just now."""
    return end_leftovers(view.paths) if view.can_be_swept and view.result() is None else Swept()


def _running_tasks(view: RunView) -> tuple[str, ...]:
    view.refresh()
    return tuple(task.name for task in view.state.tasks.values() if not task.phase.is_end)


def _ask(view: RunView, force: bool) -> bool:
    """Send the order over the control socket. Return whether the supervisor has it, or a run without one was ended."""
    view.refresh()
    if not view.is_live:
        return False
    if view.record.job_mark and waiting_job(view) and end_unstarted(view, StopReason.DOWN):
        return True
    if not _is_socket(view.paths.control):
        return False
    answer = ask_run(view, StopOrder(reason=StopReason.DOWN, force=force))
    return answer is not None and bool(answer.get("ok"))


def waiting_job(view: RunView) -> str | None:
    """Return the Slurm job that the run waits for, and that has not started."""
    from orchestrator.store.runs.slurm_jobs import JobPhase, job_status

    record = view.record
    if record.job is None or view.state.phase is not RunPhase.QUEUED:
        return None
    is_waiting = job_status(record.job, record.cluster, record.job_mark).phase is JobPhase.WAITING
    return record.job if is_waiting else None


def end_unstarted(
    view: RunView, reason: StopReason | None = None, cause: Cause | None = None, *, cancels: bool = True
) -> bool:
    """End a run that no supervisor serves: stopped for this reason, or refused with this cause.

    `cancels`: cancel its Slurm job. False if the job has just started, or Slurm does not answer.
    """
    from orchestrator.core.lifecycle.outcome import Findings, run_result
    from orchestrator.store.runs import slurm_jobs
    from orchestrator.store.runs.writer import RunStore

    record = view.record
    try:
        # Under the run's lock, so that a job that starts now finds no run to start.
        store = RunStore.adopt(view.paths.root, None)
    except (UsageError, OSError):
        return False
    with closing(store):
        if cancels and slurm_jobs.ask("scancel", record.job or "") is None:
            return False
        now = time.time()
        at, mono = now, record.started_mono + max(0.0, now - record.started_at)
        if reason is not None:
            store.append(events.StopRequested(at=at, mono=mono, reason=reason, force=False))
        view.refresh()
        result = run_result(record.id, view.state, Findings(), record.checkpoint_dir)
        if cause is not None:
            result = result.model_copy(update={"cause": cause})
        if reason is None:
            result = result.model_copy(update={"outcome": "failed", "exit_code": int(ExitCode.USAGE)})
        end = events.RunEndedEvent(at=at, mono=mono, outcome=result.outcome, exit_code=result.exit_code)
        store.append(end)
        store.write_result(result)
    return True


def _processes_left(view: RunView, swept: Swept) -> tuple[LeftProcess, ...]:
    """Return the run's processes that are still running, as far as they are known."""
    if not view.can_be_swept:
        return ()
    view.refresh()
    tasks = view.state.tasks.values()
    starts = (task.started for task in tasks if task.started is not None)
    sessions = {start.pid: start.start_ticks for start in starts if start.pid and start.start_ticks}
    result = view.result()
    return processes_left((*swept.left, *(result.left if result else ())), sessions)


def _lost_hosts(view: RunView) -> tuple[str, ...]:
    """The hosts that were lost; all of them if the supervisor was."""
    result = view.result()
    is_lost = result is not None and result.outcome == "lost"
    return tuple(host.name for host in view.state.hosts.values() if is_lost or host.phase is HostPhase.LOST)


def _wait_until_gone(view: RunView, force: bool, has_order: bool) -> None:
    """Wait for the run's end. Without an order, use the control socket or, if it was removed, a signal to the process
    that holds the run."""
    began = time.monotonic()
    deadline = began + longest_stop_s(view.record.spec, force)
    signal_due = began + _LISTENS_WITHIN_S
    while (liveness := view.liveness) is not Liveness.DEAD:
        now = time.monotonic()
        if now >= deadline:
            raise EngineError(_still_lives(view))
        has_order = has_order or _ask(view, force)
        if not has_order and now >= signal_due:
            if liveness is Liveness.UNKNOWN:
                raise unknown_liveness(view)
            if job := waiting_job(view):
                text = f"it waits for Slurm's job {job}, which orch did not submit; `scancel {job}` ends it"
                raise EngineError(f"{view.record.id}: {text}")
            signal_supervisor(view.record, view.paths, signal.SIGTERM)
            # The second SIGTERM kills.
            signal_due = now + _LISTENS_WITHIN_S if force else deadline
        time.sleep(_POLL_S)


def longest_stop_s(spec: Mapping[str, object], force: bool) -> float:
    """The longest time in which a supervisor ends a run of this spec, as recorded. A silent host counts as lost only
    after --link-timeout."""
    grace_s = 0.0 if force else _seconds(spec.get("grace_s"), DEFAULT_GRACE_S)
    silence_s = _seconds(spec.get("link_timeout_s"), DEFAULT_LINK_TIMEOUT_S) if spec.get("hosts") else 0.0
    return grace_s + silence_s + STOP_MARGIN_S


def _seconds(recorded: object, default: float) -> float:
    """The default if the record does not hold a valid number."""
    if isinstance(recorded, int | float) and 0 <= recorded <= _LONGEST_S:
        return float(recorded)
    return default


def _is_socket(path: Path) -> bool:
    """Links do not count: they may lead to another user's socket."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def _still_lives(view: RunView) -> str:
    pid = view.record.supervisor_pid
    if view.record.job is not None and not is_supervisor_alive(view.record, view.paths):
        job = view.record.job
        return f"{view.record.id}: its supervisor does not answer; `scancel {job}` ends its Slurm job {job}"
    if not is_supervisor_alive(view.record, view.paths):
        return (
            f"{view.record.id}: its lock is still held, but not by the supervisor that its record names:"
            f" `fuser {view.paths.lock}` shows by whom"
        )
    return (
        f"{view.record.id}: the supervisor (pid {pid}) was asked to stop but has not exited; is it suspended?"
        f" `kill -CONT {pid}` resumes it, `kill -KILL {pid}` ends it with all its tasks"
    )


def unknown_liveness(view: RunView) -> EngineError:
    """The error for a run whose liveness cannot be found out on this machine."""
    why = "its record does not name the supervisor"
    if view.record.host:
        why = f"its supervisor is on another machine, {view.record.host}"
    return EngineError(
        f"{view.record.id}: whether the run is live is unknown: {view.paths.lock} cannot be checked from here,"
        f" and {why}"
    )
