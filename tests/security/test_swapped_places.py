"""Directories of the state that another user, or an unpacked archive, replaced by something else."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from acting_as import needs_root
from orch_command import Orch
from run_records import make_run
from users import ORDINARY, User

from orchestrator.core.errors import UsageError
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.locks import lock_name
from orchestrator.store.runs.paths import RunPaths, names_dir, runs_dir
from orchestrator.store.runs.prune_choice import PruneTerms
from orchestrator.store.runs.pruning import Scope, prune
from orchestrator.store.runs.writer import RunStore
from worker.agent.run_logs import RunFile, open_log

OTHER = ORDINARY + 1
# A run's id without a directory.
RUN_ID = "job-20260101T000000Z-0000"


def lost_run(log_dir: Path | None = None) -> RunPaths:
    with closing(make_run(log_dir=log_dir)) as store:
        return store.paths


def tidy_and_prune() -> None:
    known = catalog.survey()
    lost_runs.close_lost_runs(known)
    lost_runs.remove_unpublished_runs(known)
    prune(Scope(), PruneTerms(keep=0), with_checkpoints=True, dry_run=False)


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()
    }


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A directory of the user with files that orch's own could be mistaken for, all old."""
    place = tmp_path / "foreign"
    for name in ("logs/work", "scratch/work", "checkpoints/work", "notes", "result.json", "lock", "control"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("kept")
    for path in (*place.rglob("*"), place):
        os.utime(path, (0, 0))
    return place


def test_directory_of_names_or_runs_that_is_a_link_is_refused(foreign: Path) -> None:
    lost_run()
    names_dir().symlink_to(foreign)
    before = contents(foreign)
    tidy_and_prune()
    assert contents(foreign) == before
    with pytest.raises(UsageError, match=f"{names_dir()}: is a symbolic link"):
        lock_name("job")
    runs_dir().rmdir()
    runs_dir().symlink_to(foreign)
    with pytest.raises(UsageError, match=f"{runs_dir()}: is a symbolic link"):
        catalog.survey()


@pytest.mark.parametrize("where", ["pointer", "target", "a directory without a record"])
def test_directory_in_the_place_of_a_run_is_left_alone(tmp_path: Path, foreign: Path, where: str) -> None:
    paths = lost_run(tmp_path / "shared")
    planted = foreign.rename(foreign.with_name(paths.run_id))
    before = contents(planted)
    if where == "target":
        shutil.rmtree(paths.root)
        paths.root.symlink_to(planted)
    else:
        (runs_dir() / paths.run_id).unlink()
        if where == "pointer":
            (runs_dir() / paths.run_id).symlink_to(planted)
        else:
            planted = planted.rename(runs_dir() / paths.run_id)
            planted.chmod(0o700)
    tidy_and_prune()
    assert contents(planted) == before


def test_run_is_not_changed_through_a_view_of_what_was_there_before(tmp_path: Path) -> None:
    paths = lost_run()
    known = catalog.survey()
    paths.root.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", paths.root)
    lost_runs.close_lost_runs(known)
    assert not paths.result.exists()


@needs_root
def test_run_in_a_shared_directory_that_another_user_planted_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    hidden = shared / f".{RUN_ID}.new"
    for plant in (Path.mkdir, lambda path: (path.rmdir(), path.symlink_to(tmp_path))):
        plant(hidden)
        os.chown(hidden, OTHER, OTHER, follow_symlinks=False)
        with pytest.raises(OSError, match="exists"):
            RunStore.create(RUN_ID, shared, None)
    assert [path.name for path in tmp_path.iterdir() if path != shared] == ["state"]


def test_task_output_is_appended_neither_through_a_link_nor_for_another_user(tmp_path: Path) -> None:
    paths = lost_run()
    log = paths.task_log("worker:0")
    secret = tmp_path / "elsewhere" / log.name
    secret.parent.mkdir(mode=0o700)
    secret.write_text("kept")
    log.symlink_to(secret)
    with pytest.raises(OSError):
        open_log(RunFile(str(log)))
    log.unlink()
    if os.geteuid() == 0:
        os.chown(paths.logs, OTHER, OTHER)
        with pytest.raises(PermissionError, match=f"belongs to the user {OTHER}"):
            open_log(RunFile(str(log)))
        assert not log.exists()
    paths.logs.rmdir()
    paths.logs.symlink_to(secret.parent)
    with pytest.raises(OSError):
        open_log(RunFile(str(log)))
    assert secret.read_text() == "kept"


DEEP = """
import os
os.chdir(os.environ["ORCH_SCRATCH_DIR"])
for _ in range(3000):
    os.mkdir("down")
    os.chdir("down")
"""


def test_deep_directory_in_scratch_does_not_change_the_outcome_of_a_run(orch: Orch) -> None:
    done = orch.run(script=DEEP)
    assert done.code == 0 and not (done.run / "scratch").exists()


@needs_root
def test_root_is_refused_in_the_state_directory_of_another_user(orch: Orch) -> None:
    paths = lost_run()
    state = runs_dir().parent
    for path in (*state.rglob("*"), state):
        os.chown(path, ORDINARY, ORDINARY, follow_symlinks=False)
    prunes = ("prune", "--all", "--keep", "0")
    for words in (("ls", "--all"), ("status", paths.run_id), prunes, ("up", "--", "true")):
        done = orch(*words)
        assert done.code == 2
        assert f"{state}: belongs to the user {ORDINARY}" in done.err and "--as-root-anyway" in done.err
    assert paths.root.exists()
    assert paths.run_id in orch("--as-root-anyway", "ls", "--all").out
    assert orch("up", "--as-root-anyway", "--", "true").code == 0
    assert orch(*prunes, "--as-root-anyway").code == 0
    assert not paths.root.exists()


@pytest.mark.slow
@needs_root
def test_run_that_cannot_be_entered_is_named_once_and_skipped(state_dir: Path, tmp_path: Path) -> None:
    with User(ORDINARY, state_dir) as user:
        run, other = (user.detached("--workers", "1", "--", "true") for _ in range(2))
        for each in (run, other):
            assert user("wait", each.name).returncode == 0
        tmp_path.chmod(0o700)
        (run.parent / RUN_ID).symlink_to(tmp_path / RUN_ID)
        for mode in (0, 0o400, 0o600):
            run.chmod(mode)
            for words in (("ls",), ("status", other.name), ("up", "--workers", "1", "--", "true"), ("down",)):
                done = user(*words)
                assert done.returncode == 0, done.stderr
                skipped = [done.stderr.count(f"{name}: skipped: ") for name in (run.name, RUN_ID)]
                assert (skipped, done.stderr.count("Permission denied")) == ([1, 1], 2), done.stderr
        run.chmod(0o700)
