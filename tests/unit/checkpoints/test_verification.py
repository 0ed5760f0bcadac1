"""Checkpoints that another interpreter reads completely."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from bundle_files import write_bundle
from waiting import until, until_gone

from orchestrator.checkpoints import CheckpointInfo, list_checkpoints, verify
from orchestrator.core.errors import EngineError, UsageError

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


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o700)
    return str(path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_changed_bytes_are_found(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITES, str(tmp_path)], check=True, capture_output=True)
    flip(tmp_path / "ckpt-2.data-00000-of-00001", 1000)
    flip(tmp_path / "ckpt-3.index", 60)
    flip(tmp_path / "exported/variables/variables.data-00000-of-00001", 1000)
    found = {one.name: one for one in list_checkpoints(tmp_path)}
    assert [name for name, one in found.items() if one.whole and name != "ckpt-3"] == [
        "ckpt-1",
        "ckpt-2",
        "ckpt-4",
        "exported",
    ]
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


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """The index of a whole checkpoint ckpt-1."""
    return write_bundle(tmp_path / "ckpt-1", 5)


def test_incomplete_checkpoint_needs_no_interpreter(index: Path) -> None:
    index.unlink()
    (one,) = list_checkpoints(index.parent)
    assert verify(one, python="/no/such/python").problems == one.problems


def test_invalid_input_is_an_error(index: Path) -> None:
    with pytest.raises(UsageError, match="ckpt-2: there is no checkpoint of that name"):
        verify(index.parent / "ckpt-2")
    with pytest.raises(UsageError, match="/no/such/python: the interpreter cannot be started: No such file"):
        verify(index.parent / "ckpt-1", python="/no/such/python")


def test_interpreter_without_an_answer_or_tensorflow_is_reported(index: Path) -> None:
    """-S leaves out all that is installed."""
    python = script(index.parent / "python", "#!/bin/sh\necho first >&2; echo last; exit 9\n")
    with pytest.raises(EngineError, match=r"did not read .*ckpt-1: it exited with code 9: last"):
        verify(index.parent / "ckpt-1", python=python)
    (problem,) = verify(index.parent / "ckpt-1", python=[sys.executable, "-S"]).problems
    assert "cannot read this kind of checkpoint: ModuleNotFoundError: No module named 'tensorflow'" in problem


def test_slow_interpreter_is_killed_with_its_children(index: Path) -> None:
    child = index.with_name("child")
    python = script(index.with_name("python"), f"#!/bin/sh\nsleep 600 & echo $! > {child}; exec sleep 600\n")

    def inspect() -> CheckpointInfo:
        checked = verify(index.parent / "ckpt-1", python=python, timeout_s=0.5)
        assert checked.problems == ("it was not read within 0.5 s",)
        return checked.info

    until(lambda: inspect().whole and child.exists() and child.read_text().strip())
    until_gone(int(child.read_text()))
