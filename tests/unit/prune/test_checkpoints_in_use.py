"""Checkpoints that a live run uses stay, under any path, even with --checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from run_making import ended_run, live_run, names

from orchestrator.store.runs import prune_choice, pruning
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.prune_choice import PruneTerms
from orchestrator.store.runs.pruning import PruneReport, Scope, prune

LEFT = {"run.json", "result.json", "checkpoints"}


@pytest.fixture
def stores() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def prune_all(dry_run: bool = False) -> PruneReport:
    return prune(Scope(), PruneTerms(keep=0), True, dry_run)


def change(paths: RunPaths, **fields: Any) -> None:
    paths.record.write_text(json.dumps({**json.loads(paths.record.read_text()), **fields}))


def live_on(stores: ExitStack, directory: Path, **fields: Any) -> RunPaths:
    """Create a live run with `directory` as its checkpoint directory."""
    paths = stores.enter_context(closing(live_run())).paths
    change(paths, checkpoint_dir=str(directory), **fields)
    return paths


def through_link(source: RunPaths, place: Path) -> Path:
    (place / "link").symlink_to(source.checkpoints)
    return place / "link"


def through_link_above(source: RunPaths, place: Path) -> Path:
    (place / "state-link").symlink_to(runs_dir())
    return place / "state-link" / source.run_id / "checkpoints"


def through_chain(source: RunPaths, place: Path) -> Path:
    """Return a directory within the checkpoints that does not exist yet."""
    (place / "second").symlink_to(through_link_above(source, place))
    return place / "second" / "best"


def through_target(source: RunPaths, place: Path) -> Path:
    """Make the run's own checkpoints a link, and return its target."""
    (place / "outside").mkdir()
    source.checkpoints.rename(place / "outside" / "moved")
    source.checkpoints.symlink_to(place / "outside" / "moved")
    return place / "outside" / "moved"


PATHS: dict[str, Callable[[RunPaths, Path], Path]] = {
    "checkpoints": lambda source, place: source.checkpoints,
    "run directory": lambda source, place: source.root,
    "link": through_link,
    "link above": through_link_above,
    "chain of links": through_chain,
    "target of a link": through_target,
}


def test_checkpoints_in_use_stay_whatever_path_leads_to_them(stores: ExitStack, tmp_path: Path) -> None:
    sources = {name: ended_run(checkpoint=b"w") for name in PATHS}
    other = ended_run(checkpoint=b"w")
    live = set()
    for name, find_path in PATHS.items():
        (tmp_path / name).mkdir()
        live.add(live_on(stores, find_path(sources[name], tmp_path / name)).run_id)
    used = {source.run_id for source in sources.values()}
    planned = {each.run.id: bool(each.kept_checkpoints) for each in prune_all(dry_run=True).pruned}
    assert planned == {**dict.fromkeys(used, True), other.run_id: False}
    prune_all()
    left = {name: names(source.root) for name, source in sources.items()}
    assert left == dict.fromkeys(PATHS, LEFT)
    assert {(source.checkpoints / "ckpt-1").read_bytes() for source in sources.values()} == {b"w"}
    assert names(runs_dir()) == used | live


def test_checkpoints_in_use_are_compared_by_inode(
    stores: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a linked state directory, and behind a bind mount: two unrelated paths lead to one directory."""
    (tmp_path / "home").symlink_to(tmp_path / "real-home")
    (tmp_path / "real-home").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    source, mounted = ended_run(checkpoint=b"w"), ended_run(checkpoint=b"w")
    live_on(stores, source.checkpoints)
    (tmp_path / "mounted").mkdir()
    real_stat, twin = Path.stat, mounted.checkpoints.stat()
    monkeypatch.setattr(
        Path, "stat", lambda path, **how: twin if path == tmp_path / "mounted" else real_stat(path, **how)
    )
    live_on(stores, tmp_path / "mounted")
    prune_all()
    assert names(source.root) == names(mounted.root) == LEFT
    # Afterwards they can be pruned.
    stores.close()
    prune_all()
    assert not os.path.lexists(source.root)


def test_checkpoints_in_use_by_a_newer_orch_stay(stores: ExitStack) -> None:
    sources, free = [ended_run(checkpoint=b"w") for _ in range(2)], ended_run(checkpoint=b"w")
    change(live_on(stores, sources[0].checkpoints), schema_version=99)
    events = live_on(stores, sources[1].checkpoints).events
    events.write_bytes(events.read_bytes().replace(b'"schema_version":1', b'"schema_version":99', 1))
    prune_all()
    assert names(sources[0].root) == names(sources[1].root) == LEFT
    assert names(free.root) == set()


def test_all_checkpoints_stay_if_the_record_of_a_live_run_is_unreadable() -> None:
    for record in (None, '{"schema_version": 99, "checkpoint_dir": null}'):
        source, other, empty = ended_run(checkpoint=b"w"), ended_run(checkpoint=b"w"), ended_run()
        with ExitStack() as stores:
            paths = live_on(stores, source.checkpoints)
            paths.events.write_bytes(b"")
            paths.record.unlink()
            if record is not None:
                paths.record.write_text(record)
            prune_all()
        assert names(source.root) == names(other.root) == LEFT
        assert names(empty.root) == set()


@pytest.mark.parametrize("moment", ["before", "after it was renamed"])
def test_run_that_starts_during_a_prune_keeps_its_checkpoints(
    moment: str, stores: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ended_run(checkpoint=b"w")
    started: list[RunPaths] = []
    update = prune_choice.CheckpointsInUse.update

    def start_run_before_update(in_use: prune_choice.CheckpointsInUse) -> None:
        if not started and source.root.exists() == (moment == "before"):
            started.append(live_on(stores, source.checkpoints))
        update(in_use)

    monkeypatch.setattr(pruning.CheckpointsInUse, "update", start_run_before_update)
    (pruned,) = prune_all().pruned
    assert started
    assert (source.checkpoints / "ckpt-1").read_bytes() == b"w"
    assert not list(runs_dir().glob(".*.gone"))
    if moment == "before":
        assert names(source.root) == LEFT and pruned.kept_checkpoints
    else:
        assert source.events.exists() and pruned.problem and not pruned.freed_bytes
