"""Selection of the run that a command refers to, and cleaning up after lost runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from run_records import make_run
from users import ORDINARY
from waiting import lives, until, until_gone

from orchestrator.core.errors import NoSuchRun
from orchestrator.core.state.state import RunState
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.run_end import result_from_events
from orchestrator.store.runs.writer import RunStore

HERE, ELSEWHERE = Path("/here"), Path("/there")


@pytest.fixture
def stores() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def live(stores: ExitStack, started_at: float, **terms: object) -> RunStore:
    return stores.enter_context(closing(make_run(started_at=started_at, **terms)))  # type: ignore[arg-type]


def ended(started_at: float, **terms: object) -> RunStore:
    store = make_run(started_at=started_at, **terms)  # type: ignore[arg-type]
    store.close()
    return store


def found(wanted: str | None = None, directory: Path = HERE) -> str:
    return catalog.find_run(wanted, directory).record.id


def test_newest_live_run_of_the_directory_is_the_default_then_the_newest_ended_one(
    stores: ExitStack,
) -> None:
    ended(1.0)
    newest = ended(8.0)
    mine, newer = live(stores, 2.0), live(stores, 3.0)
    live(stores, 9.0, directory=str(ELSEWHERE))
    for store in (newer, mine):
        assert found() == store.paths.run_id
        store.close()
    assert found() == newest.paths.run_id


def test_run_is_found_by_id_by_name_and_by_the_beginning_of_its_id(stores: ExitStack) -> None:
    old = live(stores, 1.0, name="first", directory=str(ELSEWHERE))
    new = ended(2.0, name="second")
    for store, name in ((old, "first"), (new, "second")):
        for wanted in (store.paths.run_id, name, name[:3]):
            assert found(wanted) == store.paths.run_id
    ended(3.0, name="secret")
    with pytest.raises(NoSuchRun, match="begins the ids of 2 runs"):
        found("sec")


def test_name_has_priority_over_the_beginning_of_an_id_and_selects_its_newest_live_run(
    stores: ExitStack,
) -> None:
    live(stores, 2.0, name="job-2")
    ended_run = ended(1.0, name="job")
    assert found("job") == ended_run.paths.run_id
    one, two = live(stores, 0.5), live(stores, 0.7)
    assert found("job") == two.paths.run_id
    assert [run.record.id for run in catalog.live_runs("job")] == [one.paths.run_id, two.paths.run_id]


def test_missing_run_is_an_error() -> None:
    for _ in range(2):
        for wanted in ("missing", None):
            with pytest.raises(NoSuchRun):
                found(wanted)
        ended(1.0, directory=str(ELSEWHERE))


def test_runs_in_a_log_dir_are_found_until_it_is_removed(tmp_path: Path) -> None:
    store = ended(1.0, log_dir=tmp_path / "logs")
    assert found() == store.paths.run_id
    shutil.rmtree(tmp_path / "logs")
    assert catalog.all_runs() == []
    with pytest.raises(NoSuchRun):
        found()


def test_runs_are_listed_oldest_first_without_other_entries(stores: ExitStack) -> None:
    order = [ended(3.0), ended(1.0), live(stores, 2.0)]
    (runs_dir() / "file").touch()
    for name in ("empty", ".hidden.new", "torn"):
        (runs_dir() / name).mkdir()
    (runs_dir() / "torn" / "run.json").write_text("{")
    for name, target in (("loop", runs_dir() / "loop"), ("dangling", "/no/such/place")):
        (runs_dir() / name).symlink_to(target)
    assert [run.record.started_at for run in catalog.all_runs()] == [1.0, 2.0, 3.0]
    assert len(order) == 3


@contextmanager
def leftover(run: RunPaths, user: int | None = None, **marks: str) -> Iterator[int]:
    """Start a process of the run, as far as its environment says, and yield its pid."""
    environ = {**os.environ, "ORCH_RUN_ID": run.run_id, "ORCH_RUN_DIR": str(run.root), **marks}
    with subprocess.Popen(["sleep", "600"], env=environ, user=user, cwd="/") as process:
        # During its exec it has no visible environment.
        mark = f"ORCH_RUN_ID={run.run_id}\0".encode()
        until(lambda: mark in Path(f"/proc/{process.pid}/environ").read_bytes())
        try:
            yield process.pid
        finally:
            process.kill()


def test_sweep_ends_processes_of_lost_runs_only(stores: ExitStack) -> None:
    lost, alive, earlier = ended(1.0), live(stores, 2.0), ended(0.5, boot="another")
    with (
        leftover(lost.paths) as lost_pid,
        leftover(alive.paths) as live_pid,
        leftover(earlier.paths) as earlier_pid,
    ):
        assert lost_runs.sweep_lost_runs() == [(lost.paths.run_id, 1)]
        until_gone(lost_pid)
        assert lives(live_pid) and lives(earlier_pid)


def test_sweep_leaves_the_processes_of_another_state_directory_with_the_same_run_id(tmp_path: Path) -> None:
    """Another path of the same directory is the same run."""
    lost = ended(1.0)
    with leftover(lost.paths, ORCH_RUN_DIR=str(tmp_path / lost.paths.run_id)) as pid:
        assert lost_runs.sweep_lost_runs() == []
        assert lives(pid)
    (tmp_path / "link").symlink_to(lost.paths.root.parent)
    with leftover(lost.paths, ORCH_RUN_DIR=str(tmp_path / "link" / lost.paths.run_id)):
        assert lost_runs.sweep_lost_runs() == [(lost.paths.run_id, 1)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start a process of another user")
def test_sweep_leaves_and_names_the_processes_of_another_user() -> None:
    lost = ended(1.0)
    with leftover(lost.paths, user=ORDINARY) as pid:
        swept = end_leftovers(lost.paths)
        assert swept.ended == 0
        assert [(each.pid, each.user, each.command) for each in swept.left] == [
            (pid, str(ORDINARY), "sleep 600")
        ]
        assert lives(pid)


@pytest.mark.parametrize("place", ["state", "log_dir"])
def test_old_unpublished_directories_without_a_lock_are_removed(
    stores: ExitStack, tmp_path: Path, place: str
) -> None:
    def path(name: str) -> Path:
        return where / f".{name}-20260101T000000Z-0000.new"

    where = tmp_path / "logs" if place == "log_dir" else runs_dir()
    published = stores.enter_context(closing(make_run(log_dir=where)))
    stores.enter_context(closing(RunStore.create("held-20260101T000000Z-0000", where, None)))
    for name in ("young", "old", "with-data"):
        (path(name) / "logs").mkdir(parents=True)
    (path("with-data") / "logs/notes").touch()
    for name in ("old", "held", "with-data"):
        os.utime(path(name), (0, 0))
    (where / ".notes.new").mkdir()
    os.utime(where / ".notes.new", (0, 0))
    lost_runs.remove_unpublished_runs(catalog.survey())
    left = {entry.name for entry in where.iterdir() if entry.name.startswith(".")}
    assert left == {".notes.new", *(path(name).name for name in ("young", "held", "with-data"))}
    assert published.paths.root.exists()


def with_result(store: RunStore) -> RunStore:
    """Write the result, and create the files that a supervisor removes after that."""
    store.paths.result.write_text(result_from_events(store.paths.run_id, RunState(), "").model_dump_json())
    store.paths.control.touch()
    store.paths.reserve.touch()
    return store


def remaining_files(store: RunStore) -> list[str]:
    """Return the names of these files that still exist, also as links."""
    return [path.name for path in (store.paths.control, store.paths.reserve) if os.path.lexists(path)]


def test_files_left_by_a_killed_supervisor_are_removed(stores: ExitStack) -> None:
    dead, lost = with_result(ended(1.0)), with_result(ended(1.5))
    lost.paths.result.unlink()
    lost.paths.scratch.mkdir(exist_ok=True)
    before = dead.paths.result.read_bytes(), dead.paths.result.stat().st_mtime_ns
    leaving = with_result(live(stores, 2.0))
    foreign = with_result(ended(3.0, boot="another"))
    record = json.loads(foreign.paths.record.read_text())
    foreign.paths.record.write_text(json.dumps({**record, "host": "elsewhere.invalid"}))
    lost_runs.close_lost_runs()
    assert (remaining_files(dead), remaining_files(lost)) == ([], [])
    assert (dead.paths.result.read_bytes(), dead.paths.result.stat().st_mtime_ns) == before
    assert lost.paths.result.exists() and not lost.paths.scratch.exists()
    # The supervisor of a run with a result is still live, or on another machine.
    for other in (leaving, foreign):
        assert remaining_files(other) == ["control", ".reserve"]


def test_links_and_directories_instead_of_temporary_files_do_no_harm(tmp_path: Path) -> None:
    """A link is removed and its target stays. A directory stays and does not affect other files."""
    theirs = tmp_path / "theirs"
    theirs.touch()
    linked, blocked = with_result(ended(1.0)), with_result(ended(2.0))
    for store, replace in ((linked, lambda path: path.symlink_to(theirs)), (blocked, Path.mkdir)):
        store.paths.control.unlink()
        replace(store.paths.control)
    lost_runs.close_lost_runs()
    assert remaining_files(linked) == [] and theirs.exists()
    assert remaining_files(blocked) == ["control"]
