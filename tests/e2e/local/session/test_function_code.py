"""A function of a script, and that what is unpickled never comes from a file."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

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
