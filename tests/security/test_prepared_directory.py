"""A directory that another user prepared: an unpacked state directory, a project with planted files, chosen names."""

from __future__ import annotations

import ast
import json
import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from making import planned_task
from orch_command import Orch
from run_records import make_run, one_task

from orchestrator.checkpoints import list_checkpoints
from orchestrator.store.runs.paths import RunPaths, names_dir, runs_dir

ROOT = Path(__file__).resolve().parents[2]
PRECIOUS = "precious"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file outside the state directory, in a directory that could be taken for a run's."""
    directory = tmp_path / "outside/victim-20260101T000000Z-0000"
    (directory / "logs").mkdir(parents=True)
    (directory / "canary.log").write_text(PRECIOUS)
    return directory / "canary.log"


def lost_run(directory: Path, task: str = "worker:0") -> RunPaths:
    """A run whose supervisor was killed, with one task of this name."""
    with closing(make_run(directory=str(directory))) as store:
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
