"""List the runs of this user and find the run that a command refers to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import NewerFormat, NoSuchRun
from orchestrator.core.text.nearest import did_you_mean
from orchestrator.store.files import read_object
from orchestrator.store.runs import locks
from orchestrator.store.runs.liveness import Liveness, has_end_event, liveness_of
from orchestrator.store.runs.paths import RunPaths, runs_dir
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
    """All runs, oldest first, and those that this version cannot read."""

    runs: list[RunView]
    newer: list[NewerRun]

    @property
    def ids(self) -> list[str]:
        return [run.record.id for run in self.runs] + [run.record.id for run in self.newer]


def survey(skip: frozenset[str] = frozenset()) -> Survey:
    """Find this user's runs in the state directory, except for the ids in `skip`."""
    runs: dict[tuple[int, int], RunView] = {}
    newer = []
    for entry in _entries(skip):
        # Path.resolve() would raise on a link cycle.
        paths = RunPaths(Path(os.path.realpath(entry)))
        inode = _own_inode(paths.root)
        if inode is None:
            continue
        try:
            view = RunView.open(paths, entry.name)
        except NewerFormat as error:
            newer.append(_newer_run(paths, entry.name, error))
            continue
        # A directory with two names is one run.
        if view is not None and (inode not in runs or view.is_original):
            runs[inode] = view
    return Survey(sorted(runs.values(), key=_age_order), newer)


def _entries(skip: frozenset[str]) -> list[Path]:
    try:
        found = list(runs_dir().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        # No runs. `up` reports a state directory that is below a file.
        return []
    return sorted(entry for entry in found if not entry.name.startswith(".") and entry.name not in skip)


def _own_inode(root: Path) -> tuple[int, int] | None:
    """Return device and inode of a directory of this user; None for another user's, unless this user is root."""
    try:
        found = root.stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if os.geteuid() in (0, found.st_uid) else None


def _newer_run(paths: RunPaths, run_id: str, error: NewerFormat) -> NewerRun:
    read = read_newer_record(paths, run_id)

    def has_recorded_end() -> bool:
        return read_object(paths.result) is not None or has_end_event(paths)

    liveness = liveness_of(
        read.record, paths, locks.probe(paths.lock), read.record.id == run_id, has_recorded_end
    )
    return NewerRun(
        record=read.record.model_copy(update={"id": run_id}),
        is_live=liveness is not Liveness.DEAD,
        checkpoint_dir=read.record.checkpoint_dir if read.knows_checkpoints else None,
        error=error,
    )


def _age_order(run: RunView) -> tuple[bool, float]:
    # The monotonic clock cannot be set, but is valid within one boot only.
    same_boot = run.is_same_boot
    return same_boot, run.record.started_mono if same_boot else run.record.started_at


def all_runs() -> list[RunView]:
    return survey().runs


def live_runs(name: str) -> list[RunView]:
    return [run for run in all_runs() if run.record.name == name and run.is_live]


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
