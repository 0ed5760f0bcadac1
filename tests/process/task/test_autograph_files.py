"""Code that TensorFlow generates is removed with the run. The script's own temporary files stay where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks import finished, running

# As TensorFlow's loader does it.
LOADER = """
import tempfile
def load_source(source):
    with tempfile.NamedTemporaryFile(mode="w", prefix="__autograph_generated_file", suffix=".py", delete=False) as file:
        file.write(source)
    return file.name
"""
SCRIPT = """
import shutil, sys, tempfile
from tensorflow.python.autograph.pyct import loader
if "gone" in sys.argv:
    shutil.rmtree(sys.argv[1])
print("generated", loader.load_source("1"))
print("own", tempfile.NamedTemporaryFile(delete=False).name)
print("module", loader.tempfile.gettempdir())
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


def directories(root: Path) -> tuple[Path, Path]:
    temporary, scratch = root / "temporary", root / "scratch"
    temporary.mkdir()
    scratch.mkdir()
    return temporary, scratch


def places(directory: Path, temporary: Path, scratch: Path, *words: str) -> dict[str, Path]:
    package = directory / "tensorflow" / "python" / "autograph" / "pyct"
    package.mkdir(parents=True)
    for part in (package, *package.parents[:3]):
        (part / "__init__.py").touch()
    (package / "loader.py").write_text(LOADER)
    (directory / "script.py").write_text(SCRIPT)
    env = {"TMPDIR": str(temporary), "ORCH_SCRATCH_DIR": str(scratch)}
    task = finished(directory, ["script.py", scratch, *words], env=env)
    assert task.process.returncode == 0, task.output
    return {name: Path(path) for name, path in (line.split() for line in task.output.splitlines())}


def test_only_generated_files_go_into_the_scratch_directory(tmp_path: Path) -> None:
    temporary, scratch = directories(tmp_path)
    found = places(tmp_path, temporary, scratch)
    assert found["generated"].parent == scratch
    assert (found["own"].parent, found["module"]) == (temporary, temporary)


def test_without_a_scratch_directory_they_go_into_tmpdir(tmp_path: Path) -> None:
    temporary, scratch = directories(tmp_path)
    assert places(tmp_path, temporary, scratch, "gone")["generated"].parent == temporary


@pytest.mark.slow
def test_a_killed_script_leaves_no_generated_files_in_tmpdir(tmp_path: Path) -> None:
    temporary, scratch = directories(tmp_path)
    (tmp_path / "script.py").write_text(WITH_TENSORFLOW)
    env = {"TMPDIR": str(temporary), "ORCH_SCRATCH_DIR": str(scratch), "TF_CONFIG": None}
    with running(tmp_path, ["script.py"], env=env) as task:
        task.wait_for_line("ready")
        task.process.kill()
        task.wait()
    assert [path.name[:3] for path in temporary.iterdir() if path.is_file()] == ["own"]
    assert list(scratch.glob("__autograph_generated_file*.py"))
