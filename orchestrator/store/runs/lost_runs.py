"""Clean up after runs whose supervisor was killed: remaining processes, missing results, temporary files."""

from __future__ import annotations

import os
import shutil
import time

from orchestrator.core.errors import NewerFormat
from orchestrator.core.state.result import RunResult
from orchestrator.store.files import write_once
from orchestrator.store.runs import catalog, locks, run_end
from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.reader import RunView

# A supervisor publishes its directory within milliseconds; a hidden directory older than this was abandoned.
_ABANDONED_AFTER_S = 60.0


def sweep_lost_runs(known: catalog.Survey | None = None) -> list[tuple[str, int]]:
    """End processes of lost runs. Return (run id, number of processes) for each run that had any.

    The agent of a lost run ends all tasks. Only if it was killed too can a daemonised grandchild survive.
    `known` saves a survey that was just made.
    """
    swept = []
    for run in (known or catalog.survey()).runs:
        if _has_result(run) or not run.can_be_swept:
            continue
        ended = end_leftovers(run.paths).ended
        if ended:
            swept.append((run.record.id, ended))
    return swept


def close_lost_runs(known: catalog.Survey | None = None) -> None:
    """Write the result of each lost run and remove the files that its supervisor would have removed.

    This does not take the run's lock, which would make the run look live. If several processes do this at the
    same time, one result is written.
    """
    for run in (known or catalog.survey()).runs:
        if _has_result(run):
            _remove_temporary_files(run)
            continue
        if not run.can_be_closed:
            continue
        run.refresh()
        try:
            _set_damaged_result_aside(run)
            # Removed first: on a full disk the result needs their space.
            shutil.rmtree(run.paths.scratch, ignore_errors=True)
            run.paths.reserve.unlink(missing_ok=True)
            write_once(run.paths.result, result_of(run).model_dump_json(indent=1) + "\n")
            _remove_temporary_files(run)
        except (OSError, NewerFormat):
            continue  # read-only for this user, or just removed; its state is shown correctly without a result


def result_of(run: RunView) -> RunResult:
    """Return the result of a refreshed run that is not live, from its events if result.json is missing."""
    result = run.result()
    if result is not None:
        return result
    return run_end.result_from_events(run.record.id, run.state, run.record.checkpoint_dir)


def _has_result(run: RunView) -> bool:
    try:
        return run.result() is not None
    except NewerFormat:
        return True


def _remove_temporary_files(run: RunView) -> None:
    left = [path for path in (run.paths.control, run.paths.reserve) if os.path.lexists(path)]
    if not left or not run.can_be_closed:
        return
    for path in left:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            continue  # read-only for this user


def _set_damaged_result_aside(run: RunView) -> None:
    if os.path.lexists(run.paths.result) and not _has_result(run):
        run.paths.result.replace(run.paths.result.with_name("result.json.damaged"))


def remove_unpublished_runs() -> None:
    """Remove directories of runs whose supervisor was killed before it published them."""
    for hidden in runs_dir().glob(".*.new"):
        try:
            is_old = time.time() - hidden.lstat().st_mtime > _ABANDONED_AFTER_S
        except OSError:
            continue
        if is_old and not hidden.is_symlink() and not locks.is_held(RunPaths(hidden).lock):
            shutil.rmtree(hidden, ignore_errors=True)
