"""Clean up after runs whose supervisor was killed: remaining processes, missing results, temporary files."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from orchestrator.core.errors import NewerFormat
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import RunPhase
from orchestrator.store.directory import Directory
from orchestrator.store.files import exists
from orchestrator.store.runs import catalog, locks, run_end
from orchestrator.store.runs.paths import (
    NEW_RUN_DIRECTORIES,
    NEW_RUN_ENTRIES,
    RunPaths,
    open_runs,
    unpublished_run,
)
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
        # This imports psutil, which is only needed for a run that was lost.
        from orchestrator.store.runs.leftovers import end_leftovers

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
        has_result = _has_result(run)
        if has_result and not _has_temporary_files(run):
            continue
        if not run.can_be_closed:
            continue
        try:
            with run.open_to_change() as directory:
                if not has_result:
                    _close(run, directory)
                _remove_temporary_files(run, directory)
        except (OSError, NewerFormat):
            continue  # read-only for this user, or just removed; its state is shown correctly without a result


def _close(run: RunView, directory: Directory) -> None:
    run.refresh()
    result = run.paths.result.name
    if directory.exists(result) and not _has_result(run):
        directory.rename(result, "result.json.damaged")
    # Removed first: on a full disk the result needs their space.
    directory.remove_tree(run.paths.scratch.name)
    directory.unlink(run.paths.reserve.name)
    directory.write_once(result, result_of(run).model_dump_json(indent=1) + "\n")


def result_of(run: RunView) -> RunResult:
    """Return the result of a refreshed run that is not live, from its events if result.json is missing."""
    result = run.result()
    if result is not None:
        return result
    end_of_job = run.end_of_job() if run.state.phase is RunPhase.LOST else None
    return run_end.result_from_events(run.record.id, run.state, run.record.checkpoint_dir, end_of_job)


def _has_result(run: RunView) -> bool:
    try:
        return run.result() is not None
    except NewerFormat:
        return True


def _has_temporary_files(run: RunView) -> bool:
    return any(exists(path) for path in (run.paths.control, run.paths.reserve))


def _remove_temporary_files(run: RunView, directory: Directory) -> None:
    for path in (run.paths.control, run.paths.reserve):
        try:
            directory.unlink(path.name)
        except OSError:
            continue  # read-only for this user


def remove_unpublished_runs(known: catalog.Survey) -> None:
    """Remove what is left of unpublished runs in the state directory and in each --log-dir that contains a run."""
    try:
        runs = open_runs()
    except FileNotFoundError:
        return
    with runs:
        places = {os.path.realpath(runs.path): runs.path}
    places |= {os.path.realpath(run.paths.root.parent): run.paths.root.parent for run in known.runs}
    for place in places.values():
        with suppress(OSError), Directory.shared(place) as parent:
            remove_unpublished_in(parent)


def remove_unpublished_in(parent: Directory) -> None:
    """Remove directories of runs whose supervisor was killed before it published them in `parent`."""
    try:
        names = parent.entries()
    except OSError:  # it may be written but not read
        return
    for name in names:
        if unpublished_run(name) is None:
            continue
        try:
            with parent.sub(name) as hidden:
                is_old = time.time() - os.fstat(hidden.fd).st_mtime > _ABANDONED_AFTER_S
                is_held = locks.probe_in(hidden, RunPaths(parent.path / name).lock.name) is locks.Held.YES
                if is_old and not is_held and _contains_only_own_files(hidden):
                    parent.remove_tree(name, hidden.identity)
        except OSError:  # another user's, or published in the meantime
            continue


def _contains_only_own_files(hidden: Directory) -> bool:
    # Before the run is published, these directories stay empty.
    if not set(hidden.entries()) <= NEW_RUN_ENTRIES:
        return False
    for name in NEW_RUN_DIRECTORIES:
        if hidden.exists(name):
            with hidden.sub(name) as directory:
                if directory.entries():
                    return False
    return True
