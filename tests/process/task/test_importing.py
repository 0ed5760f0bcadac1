"""Imports: callbacks, subinterpreters, garbage collection, and the code that TensorFlow generates."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from run_records import view_of
from tasks import finished, running

from orchestrator import Cluster
from orchestrator.client.page.document import RunPage
from worker.bootstrap.preloaded_modules import PreloadedModules

LATE = """
from _orch_bootstrap.after_import import after_import, before_import
def while_it_is_imported():
    before_import("late", lambda: print("before, late"))
    after_import("late", lambda module: print("after, late", module.x))
before_import("late", while_it_is_imported)
after_import("late", lambda module: print("after", module.x))
import late
"""
ZIPPED = """
import sys
from _orch_bootstrap.after_import import after_import
sys.path.insert(0, "both.zip")
for name in ("one", "two"):
    after_import(name, lambda module: print("after", module.__name__, module.x))
import importlib.util
importlib.util.find_spec("one"), importlib.util.find_spec("two")
import other
import two
import one
"""
SUBINTERPRETER = """
import os
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters as _interpreters
other = _interpreters.create()
program = "import os, sys; print([p for p in sys.path if 'inject' in p], os.environ.get('PYTHONPATH'))"
_interpreters.run_string(other, program)
_interpreters.destroy(other)
print(os.popen('echo "${PYTHONPATH-unset}"').read())
"""
# Newer versions of Python would not free the script's own objects.
IS_FROZEN = sys.version_info < (3, 13)
FREEZING = """
import gc, os
from _orch_bootstrap.keras_fix import iterators
class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        os.write(1, b"freed\\n")
def write(text):
    log.write(text)
log = open("log.csv", "w")
write("step,loss")
cycle = Cycle()
iterators.freeze_objects_of_import("unittest.mock")
import unittest.mock
print(gc.get_freeze_count() > 2 * len(gc.get_objects()) // 10, gc.isenabled())
"""


def test_callbacks_registered_during_the_import_are_called(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("x = 1")
    task = finished(tmp_path, ["-c", LATE])
    assert task.output.splitlines() == ["before, late", "after 1", "after, late 1"]


def test_callbacks_for_modules_of_one_zip_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        for name, text in (("one", "x = 1"), ("two", "x = 2"), ("other", "x = 3")):
            archive.writestr(f"{name}.py", text)
    task = finished(tmp_path, ["-c", ZIPPED])
    assert task.output.splitlines() == ["after two 2", "after one 1"]


@pytest.mark.parametrize("path", [None, "/some/where"])
def test_a_subinterpreter_sees_the_scripts_environment(path: str | None, tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", SUBINTERPRETER], env={"PYTHONPATH": path})
    assert task.output.splitlines()[:2] == [f"[] {path}", path or "unset"]


# -- the garbage collector


def test_objects_of_an_import_are_frozen_and_those_of_the_script_are_not(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", FREEZING])
    assert task.output.splitlines() == [f"{IS_FROZEN} True", "freed"]
    assert (tmp_path / "log.csv").read_text() == "step,loss"


def test_objects_of_a_preloaded_import_are_not_frozen_again(tmp_path: Path) -> None:
    """The preloader has frozen them."""
    finder = "class Finder:\n    are_frozen = True\n    def find_spec(self, *_):\n        return None\n"
    finds = "import sys\nsys.meta_path.append(Finder())\ncycle = Cycle()"
    task = finished(tmp_path, ["-c", finder + FREEZING.replace("cycle = Cycle()", finds)])
    assert PreloadedModules.are_frozen
    assert task.output.splitlines()[0] == "False True"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_objects_of_a_script_with_tensorflow_are_freed(tmp_path: Path) -> None:
    config = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    script = FREEZING.replace('iterators.freeze_objects_of_import("unittest.mock")', "")
    script = script.replace("unittest.mock", "tensorflow")
    task = finished(tmp_path, ["-c", script], env={"TF_CONFIG": json.dumps(config)}, fixes=True)
    assert task.output.splitlines()[-2:] == [f"{IS_FROZEN} True", "freed"]
    assert (tmp_path / "log.csv").read_text() == "step,loss"


# -- code that TensorFlow generates is removed with the run; the script's own temporary files stay where they are

# As TensorFlow's loader does it.
LOADER = """
import tempfile
def load_source(source):
    with tempfile.NamedTemporaryFile(mode="w", prefix="__autograph_generated_file", suffix=".py", delete=False) as file:
        file.write(source)
    return file.name
"""
GENERATES = """
import sys, tempfile
from tensorflow.python.autograph.pyct import loader
print(loader.load_source("1"), tempfile.NamedTemporaryFile(delete=False).name, loader.tempfile.gettempdir(), sep="\\n")
"""
WITH_TENSORFLOW = """
import tempfile, time
import tensorflow as tf
open(tempfile.mkstemp(prefix="own")[1], "w").write("mine")
@tf.function
def step(x):
    if x > 0:
        x += 1
    return x
step(tf.constant(1))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def directories(tmp_path: Path) -> dict[str, str | None]:
    """The variables of two directories for temporary files."""
    for name in ("temporary", "scratch"):
        (tmp_path / name).mkdir()
    return {
        "TMPDIR": str(tmp_path / "temporary"),
        "ORCH_SCRATCH_DIR": str(tmp_path / "scratch"),
        "TF_CONFIG": None,
    }


def test_only_generated_files_go_into_the_scratch_directory(
    tmp_path: Path, directories: dict[str, str | None]
) -> None:
    """Without one, they go into TMPDIR."""
    package = tmp_path / "tensorflow" / "python" / "autograph" / "pyct"
    package.mkdir(parents=True)
    for part in (package, *package.parents[:3]):
        (part / "__init__.py").touch()
    (package / "loader.py").write_text(LOADER)
    places = []
    for begins in ("", "import os; os.rmdir(os.environ['ORCH_SCRATCH_DIR'])"):
        task = finished(tmp_path, ["-c", begins + GENERATES], env=directories)
        assert task.process.returncode == 0, task.output
        generated, own, its = task.output.splitlines()
        places.append([Path(generated).parent.name, Path(own).parent.name, Path(its).name])
        Path(generated).unlink()
    assert places == [["scratch", "temporary", "temporary"], ["temporary"] * 3]


@pytest.mark.slow
def test_a_killed_script_leaves_no_generated_files_in_tmpdir(
    tmp_path: Path, directories: dict[str, str | None]
) -> None:
    (tmp_path / "script.py").write_text(WITH_TENSORFLOW)
    with running(tmp_path, ["script.py"], env=directories) as task:
        task.wait_for_line("ready")
        task.process.kill()
        task.wait()
    assert [path.name[:3] for path in (tmp_path / "temporary").iterdir() if path.is_file()] == ["own"]
    assert list((tmp_path / "scratch").glob("__autograph_generated_file*.py"))


# -- versions and saved checkpoints that a task reports


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
    with running(tmp_path, ["train.py"], env={"ORCH_TASK": "worker:0"}) as task:
        assert task.wait() == 0, task.output
        python = sys.version.split()[0]
        task.wait_for_report(versions={"python": python, "tensorflow": "2.99.0", "keras": "3.99.1"})
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
