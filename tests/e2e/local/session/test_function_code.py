"""A function of a script, also one that trains twice; and that what is unpickled never comes from a file."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from orchestrator.client.function_pickle import NotImportedHere, ReturnUnpickler
from worker.programs import call_function

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")
ROOT = Path(__file__).resolve().parents[4]


CLASSES = """
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
"""


def printed(script: str, directory: Path) -> list[str]:
    """The lines of a script that succeeds."""
    (directory / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_script_with_classes_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def doubled(number):\n    return 2 * number\n")
    assert printed(CLASSES, tmp_path) == ["True"]


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
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    refused = r"tensorflow, which this process has not imported: return numbers"
    with pytest.raises(NotImportedHere, match=refused):
        ReturnUnpickler(b"ctensorflow.framework\nconvert\n.", set()).load()


TRAINS = """
import json, sys
import orchestrator

def train(epochs):
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((32, 4), "f4"), np.ones((32, 1), "f4"))).batch(8).repeat()
    history = model.fit(data, epochs=epochs, steps_per_epoch=3, verbose=0)
    return history.history["loss"], strategy.num_replicas_in_sync

def started():
    # How the tasks of the last run were started, and whether it waited for imports.
    lines = map(json.loads, orchestrator.find().view.paths.events.read_text().splitlines())
    events = [event for event in lines if event["type"] in ("task_started", "preload")]
    known = [event for event in events if event.get("seconds") is not None or "method" in event]
    return {event.get("method") or event["seconds"] > 0 for event in known}

def tensor():
    import tensorflow as tf
    return tf.constant([1.0, 2.0])

with orchestrator.Session() as session:
    for epochs in (1, 2):
        one, other = session.run(train, (epochs,), workers=2)
        assert one == other and len(one[0]) == epochs and one[1] == 2, (one, other)
        assert started() == {"fork", epochs == 1}, started()
    assert "tensorflow" not in sys.modules
    try:
        session.run(tensor)
    except orchestrator.TaskFailed as error:
        print(error)
    import tensorflow as tf
    print(session.run(tensor)[0].numpy().tolist())
"""


@pytest.mark.slow
def test_training_twice_in_a_session(tmp_path: Path) -> None:
    refused, tensor = printed(TRAINS, tmp_path)
    assert "tensorflow, which this process has not imported" in refused
    assert tensor == "[1.0, 2.0]"
