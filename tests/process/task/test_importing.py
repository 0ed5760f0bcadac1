"""Imports: callbacks, zip files, subinterpreters, and the objects that the garbage collector still sees."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest
from tasks import finished

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
WITH_TENSORFLOW = FREEZING.replace("unittest.mock", "tensorflow").replace(
    'iterators.freeze_objects_of_import("tensorflow")', ""
)


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


def test_objects_of_an_import_are_frozen_and_those_of_the_script_are_not(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", FREEZING])
    assert task.output.splitlines() == [f"{IS_FROZEN} True", "freed"]
    assert (tmp_path / "log.csv").read_text() == "step,loss"


def test_objects_of_a_preloaded_import_are_not_frozen_again(tmp_path: Path) -> None:
    """The preloader has frozen them."""
    marked = FREEZING.replace(
        "cycle = Cycle()", "import sys\nsys.meta_path.append(Finder())\ncycle = Cycle()"
    )
    finder = "class Finder:\n    are_frozen = True\n    def find_spec(self, *_):\n        return None\n"
    task = finished(tmp_path, ["-c", finder + marked])
    assert PreloadedModules.are_frozen
    assert task.output.splitlines()[0] == "False True"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_objects_of_a_script_with_tensorflow_are_freed(tmp_path: Path) -> None:
    config = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    env = {"TF_CONFIG": json.dumps(config)}
    task = finished(tmp_path, ["-c", WITH_TENSORFLOW], env=env, fixes=True)
    assert task.output.splitlines()[-2:] == [f"{IS_FROZEN} True", "freed"]
    assert (tmp_path / "log.csv").read_text() == "step,loss"
