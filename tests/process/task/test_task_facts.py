"""Versions and saved checkpoints that a task reports, and what the record and the page of its run say of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from run_records import view_of
from tasks import running

from orchestrator import Cluster
from orchestrator.client.page.document import RunPage

# Packages with the names of TensorFlow's and Keras's modules, and their functions that save.
PACKAGES = {
    "tensorflow/__init__.py": "__version__ = '2.99.0'",
    "tensorflow/python/__init__.py": "",
    "tensorflow/python/checkpoint/__init__.py": "",
    "tensorflow/python/checkpoint/checkpoint.py": """
class TrackableSaver:
    def save(self, file_prefix, checkpoint_number=None, session=None, options=None): return "path"
""",
    "keras/__init__.py": "__version__ = '3.99.1'",
    "keras/src/__init__.py": "",
    "keras/src/saving/__init__.py": "",
    "keras/src/saving/saving_lib.py": """
def save_model(model, filepath, weights_format="h5"):
    if model is None: raise ValueError("no model")
    return "saved"
def save_weights_only(model, filepath): pass
""",
    # A module of the script.
    "tf_keras.py": "",
}
SCRIPT = """
import os
import tensorflow, keras, tf_keras
from tensorflow.python.checkpoint import checkpoint
from keras.src.saving import saving_lib
from pathlib import Path
assert checkpoint.TrackableSaver().save("/there/ckpt", 7) == "path"
try: saving_lib.save_model(None, "failed.keras")
except ValueError: pass
assert saving_lib.save_model(1, filepath=Path("dir/model.keras")) == "saved"
saving_lib.save_weights_only(1, f"/there/.best.worker-0-{os.getpid()}.weights.h5")
saving_lib.save_weights_only(1, object())
print("up")
"""


def test_versions_and_saves_are_reported(tmp_path: Path) -> None:
    for name, text in PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(SCRIPT)
    # A program that handles progress itself has these, too.
    with running(tmp_path, ["train.py"], hooks=False, env={"ORCH_TASK": "worker:0"}) as task:
        assert task.wait() == 0, task.output
        python = sys.version.split()[0]
        task.wait_for_report(versions={"python": python, "tensorflow": "2.99.0", "keras": "3.99.1"})
        assert task.phases == []
        saved = [line["saved"] for line in task.reports if "saved" in line]
    assert [each["name"] for each in saved] == ["ckpt-7", "model.keras", "best.weights.h5"]
    assert all(each["seconds"] >= 0 for each in saved)
    # A path that has no name does not affect the save.
    (line,) = [line for line in task.output.splitlines() if line.startswith("orch:")]
    assert "noticing saved checkpoints is off in this task: TypeError" in line


@pytest.mark.slow
def test_page_has_the_versions_and_saves_of_a_run(tmp_path: Path) -> None:
    script = """
import os, pathlib, keras, tensorflow as tf
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
there = pathlib.Path(os.environ["ORCH_CHECKPOINT_DIR"])
model.save(there / "model.keras")
model.save_weights(there / "all.weights.h5")
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(there), 2)
manager.save(checkpoint_number=3)
"""
    with Cluster(2, [sys.executable, "-c", script], tmp_path) as run:
        run.wait()
        page = RunPage(view_of(run.view.paths))
        page.refresh()
        document: dict[str, Any] = page.document()
    import tensorflow.version  # only here, where it is slow anyway

    versions = document["plan"]["versions"]
    (task, _) = json.loads(run.view.paths.result.read_text())["tasks"]
    assert {name: versions[name] for name in ("tensorflow", "keras")}.items() <= task["versions"].items()
    assert versions["tensorflow"] == tensorflow.version.VERSION and versions["keras"][0] == "3"
    marks = [mark for mark in document["timeline"]["marks"] if mark["kind"] == "checkpoint"]
    names = [mark["text"].split()[2] for mark in marks if mark["task"] == "worker:1"]
    assert names == ["model.keras", "all.weights.h5", "ckpt-3"]
