"""Prune runs: remove or trim the directories of ended runs, and never the checkpoints that others use."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.store.directory import PRIVATE_DIR, Directory
from orchestrator.store.files import disk_bytes
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.locks import Lock, remove_free_names
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.prune_choice import CheckpointsInUse, PrunableRun, PruneTerms, runs_to_prune
from orchestrator.store.runs.reader import RunView

# A directory is renamed to `.NAME.gone` before its removal, so that no command takes it for a run.
_REMOVAL_SUFFIX = ".gone"


@dataclass(frozen=True)
class Scope:
    """The runs to consider: those started in `directory` (None: any) with the name `name` (None: any)."""

    directory: str | None = None
    name: str | None = None

    def contains(self, view: RunView) -> bool:
        return self.directory in (None, view.record.directory) and self.name in (None, view.record.name)


@dataclass(frozen=True)
class Pruned:
    """The outcome for one run. `kept_checkpoints` is the directory that stays; `problem` says why nothing was done."""

    run: PrunableRun
    freed_bytes: int
    kept_checkpoints: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class PruneReport:
    """The pruned runs, oldest first, and what remains in the scope."""

    pruned: tuple[Pruned, ...]
    left_runs: int
    left_bytes: int

    @property
    def freed_bytes(self) -> int:
        return sum(each.freed_bytes for each in self.pruned)


def prune(scope: Scope, terms: PruneTerms, with_checkpoints: bool, dry_run: bool) -> PruneReport:
    """Prune the runs that `terms` choose.

    A run with checkpoints keeps them, run.json and result.json, unless `with_checkpoints`. Checkpoints outside the
    run's directory and checkpoints in use by a live run always stay.
    """
    if dry_run:
        return _prune(scope, terms, with_checkpoints, dry_run)
    with _only_prune():
        lost_runs.close_lost_runs()
        _finish_interrupted_removals()
        lost_runs.remove_unpublished_runs()
        remove_free_names(time.time())
        return _prune(scope, terms, with_checkpoints, dry_run)


def _prune(scope: Scope, terms: PruneTerms, with_checkpoints: bool, dry_run: bool) -> PruneReport:
    known = catalog.survey()
    views = {str(view.paths.root): view for view in known.runs if scope.contains(view)}
    in_use = CheckpointsInUse(known)
    candidates = {root: _Candidate.of(view, in_use, with_checkpoints) for root, view in views.items()}
    pruned = []
    for run in runs_to_prune([each.run for each in candidates.values()], terms, time.time()):
        candidate = candidates[run.root]
        if dry_run:
            pruned.append(candidate.report())
            continue
        # A run that has started since may use these checkpoints.
        in_use.update()
        if in_use.contain(candidate.paths):
            candidate = _Candidate.of(views[run.root], in_use, with_checkpoints)
        if candidate.run.freed_bytes:
            pruned.append(candidate.prune(in_use))
    removed = [each for each in pruned if each.problem is None and each.kept_checkpoints is None]
    total = sum(each.run.size_bytes for each in candidates.values())
    return PruneReport(
        tuple(pruned), len(candidates) - len(removed), total - sum(each.freed_bytes for each in pruned)
    )


@contextmanager
def _only_prune() -> Iterator[None]:
    """Wait until no other prune is active, and make others wait."""
    try:
        runs = Directory.at(runs_dir())
    except FileNotFoundError:  # no run was ever made
        yield
        return
    with runs:
        fcntl.flock(runs.fd, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class _Candidate:
    """A run that can be pruned, and the names in its directory that stay."""

    run: PrunableRun
    paths: RunPaths
    is_original: bool
    kept: frozenset[str]

    @classmethod
    def of(cls, view: RunView, in_use: CheckpointsInUse, with_checkpoints: bool) -> _Candidate:
        paths = view.paths
        keeps = in_use.contain(paths) or (not with_checkpoints and _has_content(paths.checkpoints))
        names = (paths.checkpoints.name, paths.record.name, paths.result.name)
        kept = frozenset(names) if keeps else frozenset[str]()
        size = disk_bytes(paths.root)
        freed = size - sum(disk_bytes(paths.root / name) for name in kept)
        if not kept or any(name not in kept for name in _entries(paths.root)):
            freed = max(freed, 1)  # an empty file takes no block but has to be removed
        run = PrunableRun(
            root=str(paths.root),
            id=view.record.id,
            name=view.record.name,
            directory=view.record.directory,
            started_at=view.record.started_at,
            # The result of a lost run is newer than its end.
            ended_at=_modified(paths.events) or _modified(paths.result),
            is_live=not view.can_be_removed,
            size_bytes=size,
            freed_bytes=freed,
        )
        return cls(run, paths, view.is_original, kept)

    def report(self, problem: str | None = None) -> Pruned:
        kept = str(self.paths.checkpoints) if self.kept else None
        freed = 0 if problem else min(self.run.freed_bytes, self.run.size_bytes)
        return Pruned(self.run, freed, kept, problem)

    def prune(self, in_use: CheckpointsInUse) -> Pruned:
        try:
            problem = self._objection()
            if problem is not None:
                return self.report(problem)
            lock = Lock.share(self.paths.lock)
            if lock is None:
                return self.report("another process is using it")
            try:
                if self.kept:
                    self._trim()
                elif not self._remove(in_use):
                    return self.report("a run has just started with its checkpoints")
            finally:
                lock.release()
        except OSError as error:
            return self.report(f"{error.filename or self.paths.root}: {error.strerror or error}")
        return self.report()

    def _objection(self) -> str | None:
        """Return why the run must not be pruned: only what orch made for this user is removed."""
        status = self.paths.root.lstat()
        if not self.is_original:
            return f"{self.paths.root} is a copy, or was renamed; remove it yourself"
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return "its directory is another user's"
        if self.kept and not self.paths.result.exists():
            return "its result could not be written"
        return None

    def _remove(self, in_use: CheckpointsInUse) -> bool:
        """Remove the run. False, with the run unchanged, if a run that uses it has just started."""
        renamed = _removal_path(self.paths.root)
        self.paths.root.rename(renamed)
        # A run that started before the rename is found now; one that starts later cannot find the checkpoints.
        in_use.update()
        if in_use.contain(self.paths):
            renamed.rename(self.paths.root)
            return False
        shutil.rmtree(renamed)
        # Removed last: an interrupted removal is found through the link.
        _remove_link(runs_dir() / self.run.id)
        return True

    def _trim(self) -> None:
        removed = _removal_path(self.paths.root)
        removed.mkdir(mode=PRIVATE_DIR, exist_ok=True)
        # The events first: without them readers use the result.
        for name in sorted(_entries(self.paths.root), key=lambda name: name != self.paths.events.name):
            if name not in self.kept:
                (self.paths.root / name).rename(removed / name)
        shutil.rmtree(removed)


def _finish_interrupted_removals() -> None:
    """Remove the rest that a killed prune left, and links to directories that do not exist."""
    for entry in _scan(runs_dir()):
        if entry.name.startswith(".") and entry.name.endswith(_REMOVAL_SUFFIX):
            _remove_rest(entry)
        elif entry.is_symlink():
            target = Path(os.path.realpath(entry))
            if target.name == entry.name:
                had_rest = _remove_rest(_removal_path(target))
                # A missing or empty parent directory means that its disk is perhaps not mounted.
                if not target.exists() and (had_rest or any(True for _ in _scan(target.parent))):
                    _remove_link(entry)


def _remove_rest(path: Path) -> bool:
    """Remove a directory of this user. True if it existed and is gone."""
    try:
        status = path.lstat()
    except OSError:
        return False
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _remove_link(link: Path) -> None:
    if link.is_symlink():
        link.unlink(missing_ok=True)


def _removal_path(root: Path) -> Path:
    return root.with_name(f".{root.name}{_REMOVAL_SUFFIX}")


def _has_content(checkpoints: Path) -> bool:
    # A link counts: only the user may remove what it points to.
    return checkpoints.is_symlink() or any(True for _ in _scan(checkpoints))


def _entries(root: Path) -> list[str]:
    return [entry.name for entry in _scan(root)]


def _scan(directory: Path) -> Iterator[Path]:
    try:
        yield from list(directory.iterdir())
    except OSError:
        return


def _modified(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None
