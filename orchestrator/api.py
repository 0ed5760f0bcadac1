"""Runs that there are, as Python objects, and the verbs on them: what the command line does, without a screen.

Errors are orchestrator.errors: UsageError before anything starts; TaskFailed, RunTimedOut, RunStopped or RunLost
from wait(), each with the run's result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import (
    EngineError,
    RunEnded,
    RunLost,
    RunStopped,
    RunTimedOut,
    TaskFailed,
)
from orchestrator.events import StopReason
from orchestrator.links.control import StopOrder, request
from orchestrator.progress.doing import late_start
from orchestrator.result import RunResult
from orchestrator.runs import catalog, locks
from orchestrator.runs.leftovers import end_leftovers
from orchestrator.runs.reader import RunView
from orchestrator.status_document import RunStatus, Status, task_statuses

_LOOK_S = 0.02
# A stop takes its grace and then a moment (the supervisor itself gives up on its agent after some); past that
# the supervisor is in trouble.
STOP_MARGIN_S = 20.0


@dataclass(frozen=True)
class Ended:
    """What `down` did: the tasks that were running, and how many processes it had to end besides."""

    run_id: str
    tasks: tuple[str, ...]
    swept: int


class Run:
    """A run, live or ended. Attributes: `id`, `name`, `dir` (its directory), `checkpoint_dir`."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self.id = view.record.id
        self.name = view.record.name
        self.dir = view.paths.root
        self.checkpoint_dir = Path(view.record.checkpoint_dir)

    @property
    def view(self) -> RunView:
        """The run as its directory shows it, for those who draw it."""
        return self._view

    def status(self) -> Status:
        """How the run and each of its tasks stand now."""
        return status_of(self._view)

    def log(self, task: str) -> Path:
        """The raw log of a task ("worker:0"): exactly the bytes it wrote."""
        return self._view.paths.task_log(task)

    def wait(self, timeout_s: float | None = None, check: bool = True) -> RunResult:
        """Wait for the end. With `check`, anything but success raises; TimeoutError after `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._view.is_live:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} still runs after {timeout_s:g} s")
            time.sleep(_LOOK_S)
        result = result_of(self._view)
        if check:
            raise_for(result)
        return result

    def wait_ready(
        self, timeout_s: float | None = None, on_notice: Callable[[str], object] | None = None
    ) -> None:
        """Wait until every TensorFlow task's port listens; the error of a run that ends before, TimeoutError.

        `on_notice` is called with what orch has to say meanwhile: who keeps the others waiting, for instance.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told = 0
        self._view.refresh()
        while not self._view.state.is_ready:
            notices = self._view.state.notices
            if on_notice is not None:
                for notice in notices[told:]:
                    on_notice(notice)
            told = len(notices)
            if self._view.state.phase.is_end or not self._view.is_live:
                raise_for(result_of(self._view))
                return
            if deadline is not None and time.monotonic() >= deadline:
                late = late_start(self._view.state, self._view.now_mono())
                why = f": {late}" if late else ""
                raise TimeoutError(f"{self.id} is not ready after {timeout_s:g} s{why}")
            time.sleep(_LOOK_S)
            self._view.refresh()

    def down(self, force: bool = False) -> Ended:
        """Stop the run and wait until nothing of it is left; idempotent."""
        return stop_run(self._view, force)


def tidy() -> list[tuple[str, int]]:
    """End what lost runs left and write down their ends; (run id, processes ended) where there were any."""
    swept = catalog.sweep_lost_runs()
    catalog.close_lost_runs()
    catalog.remove_unborn_runs()
    return swept


def find(run: str | None = None, directory: Path | None = None) -> Run:
    """The run meant by an id, the beginning of one, or a name; without one the newest of `directory`, live first."""
    return Run(catalog.find_run(run, directory or Path.cwd()))


def status(run: str | None = None) -> Status:
    return find(run).status()


def down(run: str | None = None, force: bool = False) -> Ended:
    return find(run).down(force)


def ls(directory: Path | None = None) -> Iterator[Run]:
    """All runs, oldest first; only those started in `directory` if one is given."""
    for view in catalog.all_runs():
        if directory is None or view.record.directory == str(directory):
            yield Run(view)


def status_of(view: RunView) -> Status:
    view.refresh()
    end = view.state.ended_mono if view.state.ended_mono is not None else view.now_mono()
    run = RunStatus(
        id=view.record.id,
        name=view.record.name,
        state=view.state.phase,
        attempt=view.state.attempt,
        started_at=view.record.started_at,
        uptime_s=round(max(0.0, end - view.record.started_mono), 3),
        dir=str(view.paths.root),
        directory=view.record.directory,
        checkpoint_dir=view.record.checkpoint_dir,
        exit_code=view.state.exit_code,
    )
    return Status(run=run, tasks=task_statuses(view.state, view.sample(), view.now_mono()))


def result_of(view: RunView) -> RunResult:
    """How an ended run ended; a lost one's result is made up from what is known."""
    result = view.result()
    if result is not None:
        return result
    view.refresh()
    return catalog.lost_result(view)


def raise_for(result: RunResult) -> None:
    """Raise what a result other than success means."""
    if result.succeeded:
        return
    first = result.first_failure
    where = f": {result.cause.text}" if result.cause and first is None else ""
    if result.outcome == "failed" and first is not None:
        how = (
            f"exited with code {first.exit_code}"
            if first.signal is None
            else f"died of signal {first.signal}"
        )
        message = f"{first.task} {how}; see {first.log}"
        raise TaskFailed(message, result, first.task, first.exit_code, Path(first.log))
    message = f"run {result.run_id} {result.outcome}{where}"
    kinds: Mapping[str, type[RunEnded]] = {"timed_out": RunTimedOut, "stopped": RunStopped, "lost": RunLost}
    raise kinds.get(result.outcome, RunEnded)(message, result)


def stop_run(view: RunView, force: bool) -> Ended:
    """Ask the supervisor for a stop and wait until it has let go of the run; sweep what a lost run left."""
    view.refresh()
    running = tuple(task.name for task in view.state.tasks.values() if not task.phase.is_end)
    order = StopOrder(reason=StopReason.DOWN, force=force)
    heard = False
    grace_s = 0.0 if force else float(view.record.spec["grace_s"])
    deadline = time.monotonic() + grace_s + STOP_MARGIN_S
    while locks.is_held(view.paths.lock):
        if time.monotonic() >= deadline:
            pid = view.record.supervisor_pid
            raise EngineError(
                f"{view.record.id}: its supervisor, pid {pid}, has been asked to stop and has not; is it stopped?"
                f" `kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it with all its tasks"
            )
        # A run that has just been made does not listen yet.
        heard = heard or request(view.paths.control, order)
        time.sleep(_LOOK_S)
    # Without a result the supervisor did not get to its end, perhaps only just now.
    swept = end_leftovers(view.record.id) if view.same_boot and view.result() is None else 0
    catalog.close_lost_runs()
    view.refresh()
    return Ended(view.record.id, running, swept)
