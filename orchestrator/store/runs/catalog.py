"""List the runs of this user and find the run that a command refers to."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import NameTaken, NewerFormat, NoSuchRun, NotOurs
from orchestrator.core.text.nearest import did_you_mean
from orchestrator.store.files import read_object
from orchestrator.store.runs import locks
from orchestrator.store.runs.liveness import Liveness, has_end_event, liveness_of
from orchestrator.store.runs.paths import RunPaths, open_runs, runs_dir
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.record import RunRecord, read_newer_record


@dataclass(frozen=True)
class NewerRun:
    """A run that a later orch wrote. `checkpoint_dir` is None if unknown; `error` says what to do."""

    record: RunRecord
    is_live: bool
    checkpoint_dir: str | None
    error: NewerFormat


@dataclass(frozen=True)
class Survey:
    """All runs, oldest first, those that this version cannot read, and why other entries were skipped."""

    runs: list[RunView]
    newer: list[NewerRun]
    skipped: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        return [run.record.id for run in self.runs] + [run.record.id for run in self.newer]


def survey(skip: frozenset[str] = frozenset()) -> Survey:
    """Find this user's runs in the state directory, except for the ids in `skip`. NotOurs, UsageError."""
    runs: dict[tuple[int, int], RunView] = {}
    newer = []
    skipped = []
    for name, paths in _entries(skip):
        try:
            view = RunView.open(paths, name)
        except NewerFormat as error:
            newer.append(_newer_run(paths, name, error))
            continue
        except NotOurs as error:
            skipped.append(f"{name}: skipped: {error.path}: {error.reason}")
            continue
        except OSError as error:
            skipped.append(f"{name}: skipped: {error.filename or paths.root}: {error.strerror or error}")
            continue
        # A directory with two names is one run.
        if view is not None and (view.identity not in runs or view.is_original):
            runs[view.identity] = view
    return Survey(sorted(runs.values(), key=_age_order), newer, tuple(skipped))


def _entries(skip: frozenset[str]) -> list[tuple[str, RunPaths]]:
    """Return the name of each entry of the state directory and the directory that it is, or that it points to."""
    try:
        runs = open_runs()
    except FileNotFoundError:
        # No runs. `up` reports a state directory that is below a file.
        return []
    found = []
    with runs:
        place = Path(os.path.realpath(runs_dir()))
        for name in runs.entries():
            if name.startswith(".") or name in skip:
                continue
            root = place / name
            try:
                if stat.S_ISLNK(runs.lstat(name).st_mode):
                    # Path.resolve() would raise on a link cycle.
                    root = Path(os.path.realpath(root))
            except OSError:  # removed in the meantime
                continue
            found.append((name, RunPaths(root)))
    return found


def _newer_run(paths: RunPaths, run_id: str, error: NewerFormat) -> NewerRun:
    with paths.open() as run:
        read = read_newer_record(paths, run, run_id)

    def has_recorded_end() -> bool:
        return read_object(paths.result) is not None or has_end_event(paths)

    liveness = liveness_of(
        read.record, paths, locks.probe(paths.lock), read.recorded_id == run_id, has_recorded_end
    )
    return NewerRun(
        record=read.record.model_copy(update={"id": run_id}),
        is_live=liveness is not Liveness.DEAD,
        checkpoint_dir=read.record.checkpoint_dir if read.knows_checkpoints else None,
        error=error,
    )


def _age_order(run: RunView) -> tuple[float, str]:
    # The monotonic clock would be exact, but starts elsewhere in another time namespace.
    return run.record.started_at, run.record.id


def all_runs() -> list[RunView]:
    return survey().runs


def live_runs(name: str, skip: frozenset[str] = frozenset()) -> list[RunView]:
    """Return the live runs of a name, oldest first, without the ids in `skip`."""
    return [run for run in survey(skip).runs if run.record.name == name and run.is_live]


def take_name(name: str, is_explicit: bool, own_id: str = "") -> locks.Lock | None:
    """Lock a run's name. NameTaken if a live run has it and the user chose it; a default name may be used twice.

    `own_id`: the run that gets the name, if it exists. The process that has made it may still hold the lock.
    """
    lock = locks.lock_name(name)
    is_taken = lock is None and not own_id
    # If two runs have the same default name, only one holds the lock, and the other one may live longer.
    if is_explicit and (is_taken or live_runs(name, frozenset({own_id}))):
        if lock is not None:
            lock.release()
        raise NameTaken(
            f"a live run is named {name!r}: `orch status {name}` shows it, --replace stops it first"
        )
    return lock


def live_in(directory: Path, there: Survey) -> list[RunView]:
    """Return the live runs that were started in `directory`, newest first."""
    return [run for run in reversed(there.runs) if run.record.directory == str(directory) and run.is_live]


def find_run(wanted: str | None, directory: Path, known: Survey | None = None) -> RunView:
    """Return the newest live run whose id, name or unique beginning of the id is `wanted`, else the newest such run.

    Without `wanted` the runs of `directory` are considered. `known` saves a survey that was just made.
    NoSuchRun if there is none; NewerFormat if a later orch wrote it.
    """
    known = known or survey()
    if wanted is None:
        found = _select(known, lambda run: run.directory == str(directory))
        if not found.ids:
            raise NoSuchRun(f"no run was started in {directory}; `orch ls --all` lists those of other places")
        return _newest(found)
    for found in (
        _select(known, lambda run: run.id == wanted),
        _select(known, lambda run: run.name == wanted),
    ):
        if found.ids:
            return _newest(found)
    found = _select(known, lambda run: run.id.startswith(wanted))
    if len(found.ids) > 1:
        some = ", ".join(found.ids[-3:])
        raise NoSuchRun(
            f"{wanted!r} begins the ids of {len(found.ids)} runs ({some} ...): write more of the one you mean"
        )
    if found.ids:
        return _newest(found)
    names = dict.fromkeys(run.record.name for run in known.runs)
    raise NoSuchRun(f"no run {wanted!r}; {did_you_mean(wanted, names, '`orch ls --all` lists them')}")


def _select(known: Survey, is_match: Callable[[RunRecord], bool]) -> Survey:
    return Survey(
        [run for run in known.runs if is_match(run.record)],
        [run for run in known.newer if is_match(run.record)],
    )


def _newest(found: Survey) -> RunView:
    """Return the newest live run, else the newest. NewerFormat if that may be one that this version cannot read."""
    live = [run for run in found.runs if run.is_live]
    refused = [run for run in found.newer if run.is_live or not found.runs]
    if refused and not live:
        raise refused[-1].error
    return (live or found.runs)[-1]
