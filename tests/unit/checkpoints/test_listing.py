"""Checkpoints as their files alone describe them, and as another interpreter reads them completely."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from bundle_files import index_bytes, shard_path, write_bundle
from hypothesis import given
from hypothesis import strategies as st
from waiting import until, until_gone

from orchestrator.checkpoints import CheckpointInfo, CheckpointKind, list_checkpoints, verify
from orchestrator.core.errors import EngineError, UsageError
from orchestrator.store.checkpoints.tensorflow_files import DamagedIndex, parse_latest, read_index


def problems(directory: Path) -> dict[str, tuple[str, ...]]:
    return {one.name: one.problems for one in list_checkpoints(directory)}


def test_complete_checkpoints_are_listed_by_number(tmp_path: Path) -> None:
    for number in (10, 9):
        write_bundle(tmp_path / f"ckpt-{number}", 300, 7)
    # An earlier checkpoint with the same name had four shards.
    shard_path(tmp_path / "ckpt-9", 3, 4).write_bytes(b"left over")
    latest = 'model_checkpoint_path: "ckpt-10"\nall_model_checkpoint_paths: "ckpt-9"\n'
    (tmp_path / "checkpoint").write_text(latest)
    found = list_checkpoints(tmp_path)
    assert [(one.number, one.is_latest, one.whole) for one in found] == [(9, False, True), (10, True, True)]
    for one in found:
        prefix = tmp_path / f"ckpt-{one.number}"
        shards = tuple(shard_path(prefix, shard, 2) for shard in range(2))
        index = tmp_path / f"ckpt-{one.number}.index"
        assert (one.prefix, one.shards, one.index, one.shards_expected) == (prefix, shards, index, 2)
        assert one.bytes == 307 + index.stat().st_size
        assert one.modified == max(path.stat().st_mtime for path in (*shards, index))
        assert one.kind is CheckpointKind.TENSORFLOW


def test_missing_and_damaged_files_are_reported(tmp_path: Path) -> None:
    for name in ("no-shard-1", "short-2", "no-index-3", "torn-4", "empty-5", "foreign-6", "pipe-7"):
        write_bundle(tmp_path / name, 300, 7)
    shard_path(tmp_path / "no-shard-1", 1, 2).unlink()
    for name in ("no-index-3.index", "pipe-7.index"):
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / "pipe-7.index")
    for name, size in {"short-2.data-00000-of-00002": 299, "torn-4.index": 60, "empty-5.index": 0}.items():
        os.truncate(tmp_path / name, size)
    (tmp_path / "foreign-6.index").write_text("an index of something else, and long enough to be one\n" * 2)
    (tmp_path / "many-8.data-00000-of-99999").write_bytes(b"x")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"\n')
    found = list_checkpoints(tmp_path)
    reported = {one.name: one.problems for one in found}
    many = reported.pop("many-8")
    assert (len(many), many[-1]) == (10, "99,990 more of its 99,999 data files are missing")
    unfinished = "is missing: it is still being written, or was never finished"
    foreign = "it is cut off, or not the index of a checkpoint: it does not end with the magic number"
    assert reported == {
        "no-shard-1": ("no-shard-1.data-00001-of-00002 is missing",),
        "short-2": ("short-2.data-00000-of-00002 is cut off: 299 of 300 bytes",),
        "no-index-3": (f"no-index-3.index {unfinished}",),
        "pipe-7": (f"pipe-7.index {unfinished}",),
        "torn-4": (f"torn-4.index is damaged: {foreign}",),
        "empty-5": ("empty-5.index is damaged: it is cut off: 0 bytes",),
        "foreign-6": (f"foreign-6.index is damaged: {foreign}",),
        "ckpt-9": reported["ckpt-9"],
    }
    (latest,) = (one for one in found if one.is_latest)
    assert (latest.number, latest.shards, latest.bytes) == (9, (), 0)
    assert "ckpt-9.index is missing" in latest.problems[0]


def test_unfinished_hidden_and_other_files_are_ignored(tmp_path: Path) -> None:
    for path in ("ckpt-1_temp/part-00000-of-00001", ".beside/ckpt-1", ".ckpt-2"):
        write_bundle(tmp_path / path, 5)
    for name in ("events.out.tfevents.1", "x.data-1-of-2", "ckpt-1.index.tempstate77", ".index"):
        (tmp_path / name).write_bytes(b"-")
    (tmp_path / "a-directory.index").mkdir()
    assert problems(tmp_path / "a-directory.index") == problems(tmp_path) == {}
    with pytest.raises(UsageError, match="nowhere: cannot search for checkpoints here: No such file"):
        list_checkpoints(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="embedded null"):
        list_checkpoints("\0")


def test_links_to_files_are_followed_and_links_to_directories_are_not(tmp_path: Path) -> None:
    there, looked_at = tmp_path / "elsewhere", tmp_path / "looked-at"
    write_bundle(there / "ckpt-1", 5)
    write_bundle(looked_at / "ckpt-2", 5)
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        (looked_at / name).symlink_to(there / name)
    (looked_at / "loop").symlink_to(looked_at)
    shard_path(looked_at / "ckpt-2", 0, 1).unlink()
    shard_path(looked_at / "ckpt-2", 0, 1).symlink_to("nowhere")
    assert problems(looked_at) == {"ckpt-1": (), "ckpt-2": ("ckpt-2.data-00000-of-00001 is missing",)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_index_is_reported(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt-1", 5).chmod(0)
    assert problems(tmp_path) == {"ckpt-1": ("ckpt-1.index cannot be read: Permission denied",)}


def test_keras_files_and_saved_models_are_listed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.07.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    (tmp_path / "torn.keras").write_bytes((tmp_path / "model.07.keras").read_bytes()[:-30])
    (tmp_path / "at-3.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n and more")
    (tmp_path / "no.weights.h5").write_bytes(b"PK")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported/saved_model.pb").write_bytes(b"program")
    write_bundle(tmp_path / "exported/variables/variables", 5)
    shard_path(tmp_path / "exported/variables/variables", 0, 1).unlink()
    found = {one.name: (one.kind.value, one.number, one.problems) for one in list_checkpoints(tmp_path)}
    torn = found.pop("torn.keras")
    assert torn[:2] == ("keras", None) and torn[2]
    assert found == {
        "model.07.keras": ("keras", 7, ()),
        "at-3.weights.h5": ("weights.h5", 3, ()),
        "no.weights.h5": ("weights.h5", None, ("no.weights.h5 is not an HDF5 file",)),
        "exported": ("saved_model", None, ("variables/variables.data-00000-of-00001 is missing",)),
    }


def test_latest_name_is_parsed_from_the_state_file() -> None:
    names = {
        'model_checkpoint_path: "ckpt-3"\n': Path("/d/ckpt-3"),
        "# problem by hand\n  model_checkpoint_path:'a\\'b'": Path("/d/a'b"),
        'model_checkpoint_path: "\\303\\244-1"': Path("/d/ä-1"),
        'model_checkpoint_path: "/elsewhere/ckpt-1"': Path("/elsewhere/ckpt-1"),
        'all_model_checkpoint_paths: "ckpt-3"': None,
        'model_checkpoint_path: "ckpt': None,
    }
    assert {text: parse_latest(text, Path("/d")) for text in names} == names


@given(cut=st.integers(0, 250), bit=st.integers(0, 8 * 200))
def test_damaged_index_is_parsed_or_refused(cut: int, bit: int) -> None:
    whole = index_bytes(300, 7, 2**40)
    index = read_index(whole)
    assert index is not None and index.shard_bytes == (300, 7, 2**40)
    flipped = bytearray(whole)
    flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
    assert read_index(index_bytes(5, compression=1)) is None
    for damaged in (whole[:cut], whole[cut:], bytes(flipped)):
        with contextlib.suppress(DamagedIndex):
            read_index(damaged)


@pytest.mark.timeout(60)
def test_pipe_that_replaces_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may write to the directory replaces it after the look at it. The pipe has a writer or none."""
    write_bundle(tmp_path / "ckpt-1", 300, 7)
    real, files = os.stat, set()

    def replaced(found: object, *args: object, **kwargs: object) -> os.stat_result:
        status: os.stat_result = real(found, *args, **kwargs)  # type: ignore[call-overload]
        if (path := Path(str(found))) in files:
            files.remove(path)
            path.unlink()
            os.mkfifo(path)
        return status

    monkeypatch.setattr(os, "stat", replaced)
    for name in ("model.keras", "model.weights.h5", "ckpt-1.index", "checkpoint"):
        path = tmp_path / name
        path.write_bytes(b"")
        files.add(path)
        list_checkpoints(tmp_path)
        assert path.is_fifo()
        writer = os.open(path, os.O_RDWR)
        list_checkpoints(tmp_path)
        os.close(writer)
        path.unlink()


WRITES = """
import sys, tensorflow as tf
weights = tf.Variable(tf.ones([64, 32])); words = tf.Variable(["a", "b"]); step = tf.Variable(7, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, words=words, step=step)
manager = tf.train.CheckpointManager(checkpoint, sys.argv[1], max_to_keep=5)
for _ in range(4):
    manager.save()
module = tf.Module(); module.weights = weights
tf.saved_model.save(module, sys.argv[1] + "/exported")
"""


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_changed_bytes_are_found(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITES, str(tmp_path)], check=True, capture_output=True)
    flip(tmp_path / "ckpt-2.data-00000-of-00001", 1000)
    flip(tmp_path / "ckpt-3.index", 60)
    flip(tmp_path / "exported/variables/variables.data-00000-of-00001", 1000)
    found = {one.name: one for one in list_checkpoints(tmp_path)}
    whole = [name for name, one in found.items() if one.whole and name != "ckpt-3"]
    assert whole == ["ckpt-1", "ckpt-2", "ckpt-4", "exported"]
    good = verify(tmp_path / "ckpt-1")
    assert good.ok and good.tensors == 4
    assert good.numbers == {"step": 7, "save_counter": 1}
    assert good.bytes >= 64 * 32 * 4
    for name, what in (("ckpt-2", "weights"), ("ckpt-3", ""), ("exported", "weights")):
        bad = verify(found[name])
        assert not bad.ok and any(what in problem for problem in bad.problems), bad


def test_weights_file_is_read_and_a_cut_one_reported(tmp_path: Path) -> None:
    path = tmp_path / "at-3.weights.h5"
    with h5py.File(path, "w") as file:
        file["layers/dense/vars/0"] = np.ones((4, 5), np.float32)
        file.create_dataset("layers/dense/vars/1", data=np.zeros(1000), fletcher32=True, chunks=(1000,))
        file["step"] = 12
    good = verify(path)
    assert (good.ok, good.tensors, good.numbers) == (True, 3, {"step": 12})
    with h5py.File(path) as file:
        chunk = file["layers/dense/vars/1"].id.get_chunk_info(0).byte_offset
    flip(path, chunk + 8)
    (problem,) = verify(path).problems
    assert problem.startswith("layers/dense/vars/1: OSError")
    path.write_bytes(path.read_bytes()[:1500])
    assert not verify(path).ok


def test_changed_bytes_of_a_keras_model_are_found(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}" * 100)
    assert verify(path).ok
    flip(path, path.read_bytes().index(b"{}{}"))
    assert verify(path).problems == ("config.json in the archive is damaged",)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "")
    assert verify(path).problems == ("it holds no config.json",)


def test_interpreter_that_is_not_needed_or_cannot_read_is_reported(tmp_path: Path) -> None:
    """-S leaves out all that is installed."""
    index, place = write_bundle(tmp_path / "ckpt-1", 5), tmp_path / "ckpt-1"
    with pytest.raises(UsageError, match="ckpt-2: there is no checkpoint of that name"):
        verify(tmp_path / "ckpt-2")
    with pytest.raises(UsageError, match="/no/such/python: the interpreter cannot be started: No such file"):
        verify(place, python="/no/such/python")
    with pytest.raises(EngineError, match=r"did not read .*ckpt-1: it exited with code 9: last"):
        verify(place, python=["sh", "-c", "echo first >&2; echo last; exit 9"])
    (problem,) = verify(place, python=[sys.executable, "-S"]).problems
    assert "cannot read this kind of checkpoint: ModuleNotFoundError: No module named 'tensorflow'" in problem
    index.unlink()
    (incomplete,) = list_checkpoints(tmp_path)
    assert verify(incomplete, python="/no/such/python").problems == incomplete.problems


def test_slow_interpreter_is_killed_with_its_children(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt-1", 5)
    child = tmp_path / "child"
    python = ["sh", "-c", f"sleep 600 & echo $! > {child}; exec sleep 600"]

    def inspect() -> CheckpointInfo:
        checked = verify(tmp_path / "ckpt-1", python=python, timeout_s=0.5)
        assert checked.problems == ("it was not read within 0.5 s",)
        return checked.info

    until(lambda: inspect().whole and child.exists() and child.read_text().strip())
    until_gone(int(child.read_text()))
