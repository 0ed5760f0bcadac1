"""Where the code of a called function comes from: scripts, notebooks, modules; and that nothing comes from a file."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

import orchestrator
from orchestrator import TaskFailed
from orchestrator.client.function_pickle import NotImportedHere, ReturnUnpickler
from worker.programs import call_function

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")
ROOT = Path(__file__).resolve().parents[4]


def test_script_with_classes_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def doubled(number):\n    return 2 * number\n")
    (tmp_path / "script.py").write_text("""
import dataclasses, enum, os, sys
import helpers
import orchestrator

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int
    color: Color

def train(rate):
    return Point(helpers.doubled(rate), Color.RED), "tensorflow" in sys.modules

print(orchestrator.run(train, (21,), workers=2) == [(Point(42, Color.RED), False)] * 2)
""")
    script = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (script.stdout, script.stderr) == ("True\n", "")


CELL = """
import inspect, os

class Failed(Exception):
    pass

def look():
    return inspect.getsource(look)

def fail():
    raise Failed("in a cell")
"""


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a cell is in no file. AutoGraph reads it as `inspect` does."""
    cell = ModuleType("__main__")
    file = str(tmp_path / "ipykernel_1/2.py")
    monkeypatch.setitem(linecache.cache, file, (len(CELL), None, CELL.splitlines(keepends=True), file))
    monkeypatch.setitem(sys.modules, "__main__", cell)
    exec(compile(CELL, file, "exec"), vars(cell))
    assert orchestrator.run(cell.look, directory=tmp_path) == [CELL.split("\n\n")[2] + "\n"]
    with pytest.raises(cell.Failed, match="in a cell") as caught:
        orchestrator.run(cell.fail, directory=tmp_path)
    cause = caught.value.__cause__
    assert isinstance(cause, TaskFailed) and 'raise Failed("in a cell")' in cause.__notes__[0]


def test_module_that_a_task_cannot_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pytest's --import-mode=importlib loads test modules."""
    (tmp_path / "aside.py").write_text(
        "def own():\n    return __name__, helper()\n\ndef helper():\n    return 1\n"
    )
    spec = importlib.util.spec_from_file_location("tests.aside", tmp_path / "aside.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert orchestrator.run(module.own, directory=tmp_path) == [("tests.aside", 1)]
    assert cloudpickle.list_registry_pickle_by_value() == set()
    cloudpickle.register_pickle_by_value(module)
    try:
        assert orchestrator.run(module.own, directory=tmp_path) == [("tests.aside", 1)]
        assert cloudpickle.list_registry_pickle_by_value() == {"tests.aside"}
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def called_with(descriptor: int, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the program with a call that comes through this descriptor."""
    values = os.memfd_create("orch-return")
    environ = {
        **os.environ,
        "ORCH_TASK": "worker:0",
        "ORCH_DESCRIPTORS": json.dumps({"call": descriptor, "return": values}),
        "MARK": str(tmp_path / "mark"),
    }
    try:
        return subprocess.run(
            [sys.executable, call_function.__file__],
            env=environ,
            pass_fds=(descriptor, values),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(values)


def a_call() -> bytes:
    def mark() -> None:
        Path(os.environ["MARK"]).touch()

    header = {"function": "mark()", "tasks": ["worker:0"], "path": sys.path, "argv": [], "sources": {}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + cloudpickle.dumps((mark, (), {}))


def test_pickled_data_never_comes_from_a_file(tmp_path: Path) -> None:
    """With a control: the same call is accepted from the sealed memory that orch passes."""
    wrong = []
    for place in ("file", "file in memory", "unsealed", "sealed"):
        directory = Path("/dev/shm") if place == "file in memory" else tmp_path
        path = directory / f"orch-test-{os.getpid()}"
        if "file" in place:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        else:
            descriptor = os.memfd_create("orch-call", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(descriptor, a_call())
            if place == "sealed":
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)
            answer = called_with(descriptor, tmp_path)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)
        found = (tmp_path / "mark").exists(), answer.returncode == 0, "never from a file" in answer.stderr
        is_accepted = place == "sealed"
        if found != (is_accepted, is_accepted, not is_accepted):
            wrong.append((place, answer))
    assert not wrong, wrong


def test_only_functions_are_unpickled() -> None:
    """The two ends of a call, and nothing else of orch, unpickle anything."""
    unpickles = re.compile(r"\bpickle\.(load|loads|Unpickler)\b|\bimport marshal\b|allow_pickle=True|shelve")
    files = {
        str(file.relative_to(ROOT))
        for package in ("orchestrator", "worker")
        for file in (ROOT / package).rglob("*.py")
        if unpickles.search(file.read_text())
    }
    assert files == {"orchestrator/client/function_pickle.py", "worker/programs/call_function.py"}


def test_value_of_a_library_that_is_not_imported_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor comes back if this process has TensorFlow; it is not imported for it."""

    class Tensor:
        def __reduce__(self) -> tuple[Any, ...]:
            return convert, (1,)

    def convert(number: int) -> int:
        return number

    convert.__module__, convert.__qualname__ = "tensorflow.framework", "convert"
    library = ModuleType("tensorflow.framework")
    library.convert = convert  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        # Otherwise pickle imports TensorFlow.
        patch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
        patch.setitem(sys.modules, library.__name__, library)
        pickled = cloudpickle.dumps(Tensor())
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(
        NotImportedHere, match=r"tensorflow, which this process has not imported: return numbers"
    ):
        ReturnUnpickler(pickled, set()).load()
