"""`--profile`: the same steps are recorded in every task, and a table shows where the time went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orch_command import Orch
from recordings import xspace

# In place of TensorFlow: a profiler whose recording was made before.
LIBRARY = """
import os, pathlib, shutil

__version__ = "2.21.0"

class Experimental:
    def start(self, directory):
        print("starts", flush=True)
        self.place = pathlib.Path(directory, "plugins/profile/2026_01_01")

    def stop(self):
        print("stops", flush=True)
        self.place.mkdir(parents=True)
        shutil.copy(os.environ["ORCH_TASK"], self.place / "host.xplane.pb")

class profiler:
    experimental = Experimental()
"""
LOOP = """
import json, os
import tensorflow

for epoch in (1, 2):
    for step in (1, 2, 3):
        print(f"step {step} of {epoch}", flush=True)
        report = {"phase": "training", "epoch": epoch, "step": step, "steps": 3}
        os.write(int(os.environ["ORCH_PROGRESS_FD"]), json.dumps(report).encode() + b"\\n")
print(os.environ["ORCH_PROGRESS_AT"])
"""
FIT = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((np.ones((64, 64), "f4"), np.ones((64, 1), "f4"))).batch(16).repeat()
model.fit(data, epochs=3, steps_per_epoch=4, verbose=0)
"""
REDUCE = "CollectiveReduceV2:CollectiveReduceV2"


@pytest.fixture
def loop(orch: Orch) -> Path:
    """A directory with a script that reports six steps, and the recordings that its tasks make."""
    orch.script("tensorflow.py", LIBRARY)
    orch.script("loop.py", LOOP)
    compute = [("a:MatMul", 0, 6)]
    early = {"tf_Compute/1": compute, "collective_ops/1": [(REDUCE, 8, 18)]}
    late = {"tf_Compute/1": compute, "collective_ops/1": [(REDUCE, 15, 18)]}
    (orch.directory / "worker:0").write_bytes(xspace(early, 1000, 1020))
    (orch.directory / "worker:1").write_bytes(xspace(late, 1000, 1020))
    return orch.directory


def table(text: str) -> list[str]:
    lines = [line.removeprefix("orch: ") for line in text.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("profile of the steps"))
    return lines[begin : begin + 5]


def test_reported_steps_of_every_task(loop: Path, orch: Orch) -> None:
    done = orch("up", "--workers", "2", "--profile", "2-5", "--", "loop.py")
    assert done.code == 0, done.err
    assert table(done.err)[:4] == [
        "profile of the steps 2-5, in ms a step",
        "task            step       input     compute  collective       other   waited for",
        "worker:0         5.0         0.0         1.5         2.5         1.0   worker:1 1.8",
        "worker:1         5.0         0.0         1.5         0.8         2.8   -",
    ]
    lines = [line.removeprefix("worker:1 | ") for line in done.lines if line.startswith("worker:1 | ")]
    # After step 1 was reported, until step 5 was. A loop that reports seldom finds these in ORCH_PROGRESS_AT.
    assert lines == [
        "step 1 of 1",
        "starts",
        "step 2 of 1",
        "step 3 of 1",
        "step 1 of 2",
        "step 2 of 2",
        "stops",
        "step 3 of 2",
        "1,5",
    ]
    (place,) = orch.run_dir().rglob("attempt-1")
    assert place.parent.parts[-3:] == ("profile", "plugins", "profile")
    assert f"TensorBoard: tensorboard --logdir {place.parents[2]}" == table(done.err)[4]
    assert sorted(path.name for path in place.iterdir()) == [
        f"worker-{index}.{end}" for index in (0, 1) for end in ("json", "xplane.pb")
    ]
    assert json.loads((place / "worker-0.json").read_text()) == {"task": "worker:0", "first": 2, "last": 5}
    assert not [path for path in place.parents[2].iterdir() if path.name != "plugins"]


def test_training_that_ends_before_the_last_step_or_the_first(loop: Path, orch: Orch) -> None:
    done = orch("up", "--profile", "5-9", "--", "loop.py")
    assert table(done.err)[2].endswith("  - (steps 5-6)")
    done = orch("up", "--profile", "8-9", "--", "loop.py")
    assert done.code == 0 and "starts" not in done.out
    assert "--profile 8-9: no task has recorded these steps" in done.err


def test_profiler_that_does_not_start(loop: Path, orch: Orch) -> None:
    orch.script("tensorflow.py", LIBRARY.replace('print("starts", flush=True)', "raise ValueError('in use')"))
    done = orch("up", "--profile", "2-5", "--", "loop.py")
    assert done.code == 0
    assert "orch: the profile is off in this task: ValueError: in use" in done.out


@pytest.mark.slow
def test_steps_of_fit(orch: Orch) -> None:
    orch.script("fit.py", FIT)
    done = orch("up", "--workers", "2", "--profile", "4-9", "--", "fit.py")
    assert done.code == 0, done.err
    _, _, *rows, _ = table(done.err)
    for row in rows:
        step, _, compute, collective, _ = (float(cell) for cell in row.split()[1:6])
        assert step > 0 and compute > 0 and collective > 0
        assert "(steps" not in row
    for facts in orch.run_dir().rglob("worker-*.json"):
        assert json.loads(facts.read_text())["first"] == 4
        # TensorBoard's step times need them.
        assert b"step_num" in facts.with_suffix(".xplane.pb").read_bytes()
