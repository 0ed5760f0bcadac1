"""Directories of the state that another user, or an unpacked archive, replaced by something else."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from orch_command import Orch
from run_records import make_run
from test_directory import make_deep_tree
from users import ORDINARY, User
from waiting import until

from orchestrator import Cluster
from orchestrator.checkpoints import list_checkpoints
from orchestrator.core.errors import UsageError
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.locks import lock_name
from orchestrator.store.runs.paths import RunPaths, names_dir, runs_dir
from orchestrator.store.runs.prune_choice import PruneTerms
from orchestrator.store.runs.pruning import Scope, prune
from orchestrator.store.runs.writer import RunStore
from worker.agent.run_logs import RunFile, open_log

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
OTHER = ORDINARY + 1
GIB = 1 << 30
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


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A directory of the user with files that orch's own could be mistaken for, all old."""
    place = tmp_path / "foreign"
    for name in ("logs", "scratch", "checkpoints"):
        (place / name).mkdir(parents=True)
        (place / name / "work").write_text("kept")
    for name in ("notes", "result.json", "lock", ".reserve", "control"):
        (place / name).write_text("kept" if name != "lock" else "")
    for path in (*place.rglob("*"), place):
        os.utime(path, (0, 0))
    return place


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()
    }


def test_names_directory_that_is_a_link_is_not_emptied(foreign: Path) -> None:
    lost_run()
    names_dir().symlink_to(foreign)
    before = contents(foreign)
    tidy_and_prune()
    assert contents(foreign) == before
    with pytest.raises(UsageError, match=f"{names_dir()}: is a symbolic link"):
        lock_name("job")


def test_runs_directory_that_is_a_link_is_refused(foreign: Path) -> None:
    runs_dir().parent.mkdir(mode=0o700, parents=True)
    runs_dir().symlink_to(foreign)
    with pytest.raises(UsageError, match=f"{runs_dir()}: is a symbolic link"):
        catalog.survey()


@pytest.mark.parametrize("where", ["pointer", "target"])
def test_run_that_was_replaced_by_a_link_is_left_alone(tmp_path: Path, foreign: Path, where: str) -> None:
    paths = lost_run(tmp_path / "shared")
    named_so = foreign.rename(foreign.with_name(paths.run_id))
    before = contents(named_so)
    if where == "pointer":
        (runs_dir() / paths.run_id).unlink()
        (runs_dir() / paths.run_id).symlink_to(named_so)
    else:
        shutil.rmtree(paths.root)
        paths.root.symlink_to(named_so)
    tidy_and_prune()
    assert contents(named_so) == before


def test_directory_that_does_not_name_its_run_is_left_alone(foreign: Path) -> None:
    """It has the name of a run and holds logs, but no record, no first event and no result."""
    runs_dir().mkdir(mode=0o700, parents=True)
    planted = foreign.rename(runs_dir() / RUN_ID)
    planted.chmod(0o700)
    before = contents(planted)
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
@pytest.mark.parametrize("planted", ["directory", "link"])
def test_run_in_a_shared_directory_that_another_user_planted_is_refused(tmp_path: Path, planted: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    hidden = shared / f".{RUN_ID}.new"
    if planted == "directory":
        hidden.mkdir()
    else:
        hidden.symlink_to(tmp_path)
    os.chown(hidden, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(OSError, match="exists"):
        RunStore.create(RUN_ID, shared, None)
    assert [path.name for path in tmp_path.iterdir() if path != shared] == ["state"]


@needs_root
@pytest.mark.parametrize("option", ["--log-dir", "--checkpoint-dir"])
def test_new_directory_that_another_user_creates_first_is_refused(state_dir: Path, option: str) -> None:
    """The other user watches a directory of all users and creates what the run is about to create."""
    with User(ORDINARY, state_dir) as victim, User(OTHER, state_dir) as attacker:
        # Not below the directory of the tests, which other users cannot enter.
        shared = Path(tempfile.mkdtemp(prefix="orch-shared-"))
        shared.chmod(0o1777)
        try:
            secret = victim.home / "bashrc"
            secret.write_text("kept\n")
            os.chown(secret, ORDINARY, ORDINARY)
            racing = subprocess.Popen(
                [str(attacker.python), "-c", RACE, str(shared / "new"), str(secret)], user=OTHER, group=OTHER
            )
            try:
                until((shared / "ready").exists)
                done = victim("up", "--workers", "1", option, str(shared / "new/below"), "--", "echo", "task")
            finally:
                racing.kill()
                racing.wait()
            assert secret.read_text() == "kept\n"
            if done.returncode != 0:  # the attacker was quicker
                assert f"belongs to the user {OTHER}" in done.stderr
        finally:
            shutil.rmtree(shared)


RACE = """
import os, sys
new, secret = sys.argv[1:]
open(os.path.join(os.path.dirname(new), "ready"), "w").close()
while True:
    try:
        os.mkdir(new)
        os.chmod(new, 0o777)
        os.makedirs(os.path.join(new, "below", "logs"))
        os.symlink(secret, os.path.join(new, "below", "logs", "worker-0.log"))
    except OSError:
        continue
"""


@pytest.mark.parametrize("planted", ["log", "directory"])
def test_task_output_is_not_appended_through_a_planted_link(tmp_path: Path, planted: str) -> None:
    paths = lost_run()
    secret = tmp_path / "elsewhere/worker-0.log"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("kept")
    if planted == "log":
        paths.task_log("worker:0").symlink_to(secret)
    else:
        paths.logs.rmdir()
        paths.logs.symlink_to(secret.parent)
    with pytest.raises(OSError):
        open_log(RunFile(str(paths.task_log("worker:0"))))
    assert secret.read_text() == "kept"


@needs_root
def test_log_in_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    paths = lost_run()
    os.chown(paths.logs, OTHER, OTHER)
    with pytest.raises(PermissionError, match=f"belongs to the user {OTHER}"):
        open_log(RunFile(str(paths.task_log("worker:0"))))
    assert not paths.task_log("worker:0").exists()


def test_deep_directory_in_scratch_ends_no_verb(orch: Orch) -> None:
    paths = lost_run()
    make_deep_tree(paths.scratch / "deep")
    make_deep_tree(paths.tensorboard)
    commands = (("ls", "--all"), ("down", paths.run_id), ("prune", "--all", "--keep", "0"))
    for words, done in orch.all_within(commands):
        assert done.code == 0, (words, done.err)
    assert not paths.root.exists()


def test_deep_directory_in_scratch_does_not_change_the_outcome_of_a_run(orch: Orch) -> None:
    script = orch.directory / "deep.py"
    script.write_text(DEEP)
    assert orch("up", "--workers", "1", "--", str(script)).code == 0
    assert not (orch.run_dir() / "scratch").exists()


DEEP = """
import os
os.chdir(os.environ["ORCH_SCRATCH_DIR"])
for _ in range(3000):
    os.mkdir("down")
    os.chdir("down")
"""


@needs_root
def test_root_is_refused_in_the_state_directory_of_another_user(orch: Orch) -> None:
    paths = lost_run()
    state = runs_dir().parent
    for path in (*state.rglob("*"), state):
        os.chown(path, ORDINARY, ORDINARY, follow_symlinks=False)
    for words in (
        ("ls", "--all"),
        ("status", paths.run_id),
        ("prune", "--all", "--keep", "0"),
        ("up", "--", "true"),
    ):
        done = orch(*words)
        assert done.code == 2
        assert f"{state}: belongs to the user {ORDINARY}" in done.err
        assert "--as-root-anyway" in done.err
    assert paths.root.exists()
    assert paths.run_id in orch("--as-root-anyway", "ls", "--all").out
    assert orch("up", "--as-root-anyway", "--", "true").code == 0
    assert orch("prune", "--as-root-anyway", "--all", "--keep", "0").code == 0
    assert not paths.root.exists()


@pytest.mark.slow
@needs_root
def test_run_that_cannot_be_entered_is_named_once_and_skipped(state_dir: Path, tmp_path: Path) -> None:
    with User(ORDINARY, state_dir) as user:
        run = user.detached("--workers", "1", "--", "true")
        other = user.detached("--workers", "1", "--", "true")
        assert user("wait", run.name).returncode == 0
        assert user("wait", other.name).returncode == 0
        tmp_path.chmod(0o700)
        (run.parent / RUN_ID).symlink_to(tmp_path / RUN_ID)
        for mode in (0, 0o400, 0o600):
            run.chmod(mode)
            for words in (("ls",), ("status", other.name), ("up", "--workers", "1", "--", "true"), ("down",)):
                done = user(*words)
                assert done.returncode == 0, done.stderr
                for name in (run.name, RUN_ID):
                    assert done.stderr.count(f"{name}: skipped: ") == 1, done.stderr
                assert done.stderr.count("Permission denied") == 2
        run.chmod(0o700)


@pytest.mark.timeout(60)
def test_sparse_files_are_not_read_to_their_end(orch: Orch) -> None:
    paths = lost_run()
    for path in (paths.events, paths.logs / "index"):
        with path.open("ab") as file:
            file.truncate(4096 * GIB)
    commands = (("ls", "--all"), ("status", paths.run_id), ("logs", paths.run_id), ("down", paths.run_id))
    for words, done in orch.all_within(commands):
        assert done.code == 0, (words, done.err)


@pytest.mark.timeout(60)
def test_damaged_checkpoint_index_is_read_once(tmp_path: Path) -> None:
    """Each entry of its list names the same block, or repeats a key as long as the file."""
    (tmp_path / "repeated.index").write_bytes(index_of_one_block(2_000_000))
    (tmp_path / "long-keys.index").write_bytes(index_with_long_keys(2_000_000))
    found = list_checkpoints(tmp_path)
    assert [one.whole for one in found] == [False, False]


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def footer(offset: int, size: int) -> bytes:
    handles = varint(0) + varint(0) + varint(offset) + varint(size)
    return handles.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def index_of_one_block(size: int) -> bytes:
    block = (b"\0\0\x02\x08\x01" + b"\0\0\0" * (size // 6)) + (0).to_bytes(4, "little")
    handle = varint(0) + varint(len(block))
    entry = b"\0\0" + varint(len(handle)) + handle
    entries = entry * (size // 2 // len(entry)) + (0).to_bytes(4, "little")
    data = block + b"\0" * 5
    return data + entries + b"\0" * 5 + footer(len(data), len(entries))


def index_with_long_keys(size: int) -> bytes:
    key = bytes(size // 2)
    first = b"\0\0\x02\x08\x01" + b"\0" + varint(len(key)) + b"\0" + key
    again = varint(len(key)) + b"\0\0"
    block = first + again * (size // 2 // len(again)) + (0).to_bytes(4, "little")
    handle = varint(0) + varint(len(block))
    entries = b"\0\0" + varint(len(handle)) + handle + (0).to_bytes(4, "little")
    data = block + b"\0" * 5
    return data + entries + b"\0" * 5 + footer(len(data), len(entries))


def test_cluster_warns_of_a_log_directory_that_others_may_write_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    warning = pytest.warns(RuntimeWarning, match="--log-dir: all users of this machine may write in")
    with warning, Cluster(workers=1, command=["true"], log_dir=shared, directory=tmp_path) as run:
        run.wait()
