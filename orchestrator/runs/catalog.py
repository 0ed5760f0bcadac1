"""All runs of this user, and which one a command means."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from orchestrator.errors import ExitCode, NoSuchRun
from orchestrator.result import Cause, CauseKind, RunResult, TaskEnd
from orchestrator.runs import locks
from orchestrator.runs.leftovers import end_leftovers
from orchestrator.runs.locks import Lock
from orchestrator.runs.paths import RunPaths, runs_dir
from orchestrator.runs.reader import RunView
from orchestrator.runs.store import write_atomically

# A supervisor shows its run within milliseconds of making its directory.
_UNBORN_AFTER_S = 60.0


def all_runs() -> list[RunView]:
    """Every readable run, oldest first."""
    try:
        entries = [entry for entry in runs_dir().iterdir() if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
    # Not resolve(): that raises where a link leads back to itself.
    views = (RunView.open(RunPaths(Path(os.path.realpath(entry)))) for entry in entries)
    return sorted((view for view in views if view is not None), key=lambda view: view.record.started_at)


def find_run(wanted: str | None, directory: Path) -> RunView:
    """The run that `wanted` (an id, the unique beginning of one, or a name) means, newest live one first.

    Without `wanted`: the newest live run of `directory`, else its newest. NoSuchRun where there is none.
    """
    runs = all_runs()
    if wanted is None:
        mine = [run for run in runs if run.record.directory == str(directory)]
        if not mine:
            raise NoSuchRun(f"no run was started in {directory}; `orch ls --all` lists those of other places")
        return _newest(mine)
    for match in (
        [run for run in runs if run.record.id == wanted],
        [run for run in runs if run.record.name == wanted],
    ):
        if match:
            return _newest(match)
    begun = [run for run in runs if run.record.id.startswith(wanted)]
    if len(begun) > 1:
        some = ", ".join(run.record.id for run in begun[-3:])
        raise NoSuchRun(
            f"{wanted!r} begins the ids of {len(begun)} runs ({some} ...): write more of the one you mean"
        )
    if begun:
        return begun[0]
    raise NoSuchRun(f"no run {wanted!r}; `orch ls --all` lists them")


def _newest(runs: list[RunView]) -> RunView:
    live = [run for run in runs if run.is_live]
    return (live or runs)[-1]


def live_runs(name: str) -> list[RunView]:
    return [run for run in all_runs() if run.record.name == name and run.is_live]


def sweep_lost_runs() -> list[tuple[str, int]]:
    """End what lost runs left running: (run id, processes ended) for each that had any.

    A run is lost when its supervisor was killed: its agent ends all tasks then; only where that was killed too
    can a daemonised grandchild live on.
    """
    swept = []
    for run in all_runs():
        if run.paths.result.exists() or run.is_live or not run.same_boot:
            continue
        count = end_leftovers(run.record.id)
        if count:
            swept.append((run.record.id, count))
    return swept


def close_lost_runs() -> None:
    """Write the result that a killed supervisor could not, under its lock, and remove what it would have removed."""
    for run in all_runs():
        if run.paths.result.exists() or run.is_live:
            continue
        run.refresh()  # before its lock is taken, which makes it look alive
        lock = Lock.acquire(run.paths.lock)
        if lock is None:
            continue
        try:
            if not run.paths.result.exists():
                write_atomically(run.paths.result, lost_result(run).model_dump_json(indent=1) + "\n")
            shutil.rmtree(run.paths.scratch, ignore_errors=True)
            run.paths.control.unlink(missing_ok=True)
        finally:
            lock.release()


def remove_unborn_runs() -> None:
    """Remove directories of runs whose supervisor was killed before it could show them."""
    for hidden in runs_dir().glob(".*.new"):
        try:
            is_old = time.time() - hidden.lstat().st_mtime > _UNBORN_AFTER_S
        except OSError:
            continue
        if is_old and not hidden.is_symlink() and not locks.is_held(RunPaths(hidden).lock):
            shutil.rmtree(hidden, ignore_errors=True)


def lost_result(run: RunView) -> RunResult:
    """What can be said of a run whose end nobody saw."""
    cause = Cause(task=None, kind=CauseKind.ORCH, text="the supervisor was killed; nobody saw the end")
    ends = tuple(
        TaskEnd(
            task=task.name, state=task.phase, exit_code=task.exit_code, signal=task.signal, end=task.phase
        )
        for task in run.state.tasks.values()
    )
    return RunResult(
        run_id=run.record.id,
        outcome="lost",
        exit_code=ExitCode.ORCH,
        attempts=run.state.attempt,
        cause=cause,
        first_failure=None,
        detection_s=None,
        teardown_s=None,
        tasks=ends,
        checkpoint_dir=run.record.checkpoint_dir,
    )
