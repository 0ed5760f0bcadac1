"""A directory that another user prepared: an unpacked state directory, a project with planted files, chosen names."""

from __future__ import annotations

import ast
import json
import os
import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from acting_as import needs_root
from making import planned_task
from orch_command import Orch
from run_records import make_run, one_task
from users import ORDINARY, User

from orchestrator.checkpoints import list_checkpoints
from orchestrator.core.errors import UsageError
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.locks import lock_name
from orchestrator.store.runs.paths import RunPaths, names_dir, runs_dir
from orchestrator.store.runs.prune_choice import PruneTerms
from orchestrator.store.runs.pruning import Scope, prune
from worker.agent.run_logs import RunFile, open_log

ROOT = Path(__file__).resolve().parents[2]
PRECIOUS = "precious"
OTHER = ORDINARY + 1
# A run's id without a directory.
RUN_ID = "job-20260101T000000Z-0000"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file outside the state directory, in a directory that could be taken for a run's."""
    directory = tmp_path / "outside/victim-20260101T000000Z-0000"
    (directory / "logs").mkdir(parents=True)
    (directory / "canary.log").write_text(PRECIOUS)
    return directory / "canary.log"


def lost_run(
    directory: Path | str = "/here", task: str = "worker:0", log_dir: Path | None = None
) -> RunPaths:
    """A run whose supervisor was killed, with one task of this name."""
    with closing(make_run(directory=str(directory), log_dir=log_dir)) as store:
        plan, *rest = one_task(time.monotonic())
        store.append(plan.model_copy(update={"tasks": (replace(planned_task(), task=task),)}))
        for each in rest:
            store.append(each.model_copy(update={"task": task}))
    return store.paths


def shown_by_all_verbs(orch: Orch, *words: str) -> str:
    shown = ""
    for verb in ("ls", "status", "logs", "stacks", "prune --dry-run --keep 0", "down"):
        done = orch(*verb.split(), *(words if verb[:2] not in ("ls", "pr") else ()))
        assert "Traceback" not in done.err, (verb, done.err)
        shown += done.out + done.err
    return shown


NAMES = ("", ".", "..", "-rf", "../../x", "/tmp/x", "a/b", "a\nb", "$(x)", "a b", "\u202ea")


def test_run_name_is_never_a_path_or_an_option(orch: Orch) -> None:
    settings = orch.directory / "orch.toml"
    for name in NAMES:
        settings.unlink(missing_ok=True)
        assert orch("up", f"--name={name}", "--", "true").code == 2, name
        settings.write_text(f"name = {json.dumps(name)}\n")
        assert orch("up", "--", "true").code == 2, name
    assert orch.run_dirs() == []


def test_word_for_a_run_is_never_a_path(orch: Orch, canary: Path) -> None:
    """A directory that looks like a run's is none unless the state directory contains it."""
    orch.state.mkdir()
    above = os.path.relpath(canary.parent, orch.state / "orch/runs")
    for word in (str(canary.parent), above, "..", ".", "../runs", "%2e%2e", "\x00"):
        for words in (("status", word), ("logs", word), ("wait", word), ("kill", word, "0"), ("down", word)):
            done = orch(*words)
            assert (done.code, done.out) == (3, ""), (words, done.err)


def test_task_name_of_a_record_leads_to_no_file_outside(orch: Orch, canary: Path) -> None:
    paths = lost_run(orch.directory, "../../../../../outside/victim-20260101T000000Z-0000/canary")
    assert (paths.logs / "../../../../../outside/victim-20260101T000000Z-0000/canary.log").exists()
    assert PRECIOUS not in shown_by_all_verbs(orch)
    assert canary.read_text() == PRECIOUS


def test_other_kinds_of_file_in_place_of_logs_and_documents(orch: Orch, canary: Path) -> None:
    """A link is not followed and a pipe is not waited for."""
    for make in (lambda place: place.symlink_to(canary), os.mkfifo, Path.mkdir):
        paths = lost_run(orch.directory)
        per_task = (each("worker:0") for each in (paths.task_log, paths.task_exception, paths.task_stacks))
        documents = (paths.logs / "index", paths.sample, paths.result, paths.record)
        for place in (*per_task, *documents, paths.control, paths.agent_log):
            place.unlink(missing_ok=True)
            make(place)
        assert PRECIOUS not in shown_by_all_verbs(orch, paths.run_id)
        assert orch("prune", "--all", "--keep", "0").code == 0
        assert canary.read_text() == PRECIOUS


def test_hard_link_in_place_of_a_document_keeps_the_content_of_the_file(orch: Orch, canary: Path) -> None:
    """Documents are replaced, never written over. A log of a run that has ended is never opened for writing."""
    paths = lost_run(orch.directory)
    for place in (paths.result, paths.record, paths.reserve, paths.task_log("worker:0"), paths.control):
        place.unlink(missing_ok=True)
        place.hardlink_to(canary)
    shown_by_all_verbs(orch, paths.run_id)
    assert canary.read_text() == PRECIOUS
    assert orch("up", "--", "true").code == 0
    assert orch("prune", "--all", "--keep", "0").code == 0
    assert canary.read_text() == PRECIOUS


def test_link_in_place_of_a_name_is_not_followed(orch: Orch, canary: Path) -> None:
    names_dir().mkdir(parents=True, mode=0o700)
    names_dir().parent.chmod(0o700)
    for target in (canary, canary.with_name("new")):
        (names_dir() / "job").unlink(missing_ok=True)
        (names_dir() / "job").symlink_to(target)
        done = orch("up", "--name", "job", "--", "true")
        assert done.code != 0 and "Traceback" not in done.err
    assert canary.read_text() == PRECIOUS and not canary.with_name("new").exists()


def test_links_in_place_of_unpublished_and_removed_runs_are_not_followed(orch: Orch, canary: Path) -> None:
    """`prune` removes what killed processes left: `.NAME.new` and `.NAME.gone`."""
    runs_dir().mkdir(parents=True, mode=0o700)
    for name in (".job-20260101T000000Z-0000.new", ".job-20260101T000000Z-0000.gone"):
        (runs_dir() / name).symlink_to(canary.parent)
        os.utime(runs_dir() / name, (0, 0), follow_symlinks=False)
    assert orch("prune", "--all", "--keep", "0", "--checkpoints").code == 0
    assert canary.read_text() == PRECIOUS


def test_commands_that_show_start_nothing_of_the_directory(orch: Orch) -> None:
    """Only `up` runs the command of an orch.toml, like `make` the Makefile."""
    seen = orch.directory / "seen"
    for name in ("train", "python", "python3", "git", "nvidia-smi", "py-spy", "tensorboard"):
        path = orch.directory / name
        path.write_text(f"#!/bin/sh\necho {name} >> {seen}\n")
        path.chmod(0o755)
    (orch.directory / "orch.toml").write_text('command = "./train"\ntensorboard = true\n')
    assert orch("config").code == 0
    for verb in ("ls", "status", "logs", "wait", "down", "prune --keep 0"):
        orch(*verb.split())
    assert not seen.exists(), seen.read_text()


def test_planted_checkpoint_files_are_read_within_limits(tmp_path: Path, canary: Path) -> None:
    """A state file that names a path outside, an index that is a pipe, endless or huge, and a loop of links."""
    place = tmp_path / "checkpoints"
    place.mkdir()
    (place / "checkpoint").write_text(
        f'model_checkpoint_path: "{canary}"\nall_model_checkpoint_paths: "../../x"\n'
    )
    os.mkfifo(place / "pipe-1.index")
    (place / "zero-2.index").symlink_to("/dev/zero")
    with (place / "huge-3.index").open("wb") as file:
        file.truncate(1 << 38)
    (place / "loop").symlink_to(place)
    (place / "loop-4.index").symlink_to(place / "loop-4.index")
    (place / "ckpt-5.data-99998-of-99999").touch()
    listed = {one.name: one for one in list_checkpoints(place)}
    assert not any(one.whole or one.is_latest for one in listed.values())
    assert all(one.prefix.is_relative_to(place) for one in listed.values())
    assert canary.read_text() == PRECIOUS


def index_of(block: bytes, entries: int = 1) -> bytes:
    """A checkpoint index with a block of tensors that so many entries name."""
    block += bytes(4)
    handle = b"\0" + varint(len(block))
    table = (b"\0\0" + varint(len(handle)) + handle) * entries + bytes(4)
    handles = b"\0\0" + varint(len(block) + 5) + varint(len(table))
    footer = handles.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    return block + bytes(5) + table + bytes(5) + footer


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


@pytest.mark.timeout(60)
def test_damaged_checkpoint_index_is_read_once(tmp_path: Path) -> None:
    """Many entries name the same block, or the tensors repeat a key as long as the file."""
    long = varint(1_000_000)
    blocks = {
        "repeated": index_of(b"\0\0\x02\x08\x01" + bytes(999_999), 150_000),
        "long-keys": index_of(b"\0" + long + b"\0" + bytes(1_000_000) + (long + b"\0\0") * 200_000),
    }
    for name, data in blocks.items():
        (tmp_path / f"{name}.index").write_bytes(data)
    assert [one.whole for one in list_checkpoints(tmp_path)] == [False, False]


# What could run code when it is read.
EXECUTABLE = {
    *("pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "jsonpickle")
}


def test_orch_reads_no_format_that_can_contain_code() -> None:
    """No pickle, no marshal, no YAML, no eval: what is read is JSON, TOML and TensorFlow's index of a checkpoint.

    A function's value is unpickled, from a descriptor of this process and never from a file. --watch compiles the
    user's script to show its errors, and does not run the code.
    """
    found = set()
    for path in (*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "worker/agent").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    used = {alias.name.partition(".")[0] for alias in names} & EXECUTABLE
                case ast.ImportFrom(module=str(module)):
                    used = {module.partition(".")[0]} & EXECUTABLE
                case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" as name)):
                    used = {name}
                case _:
                    continue
            found |= {(str(path.relative_to(ROOT / "orchestrator/client")), word) for word in used}
    functions = "function_pickle.py"
    assert found == {(functions, "pickle"), (functions, "cloudpickle"), ("source_watch.py", "compile")}


# -- directories of the state that were replaced by something else


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
    paths = lost_run(log_dir=tmp_path / "shared")
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
