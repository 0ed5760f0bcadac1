"""The progress of each task in status, result and `orch ls`, from the lines of a script and before its first line;
with `--profile`, the steps that are recorded in every task, and a table of where the time went."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from orch_command import Orch
from recordings import xspace
from waiting import until

from orchestrator.client import api

SAMPLES = Path(__file__).parents[3] / "unit/core/keras_samples"
# Prints Keras's own lines, the second part when the test allows it.
REPLAY = """
import pathlib, sys, time
for part in sys.argv[2:]:
    sys.stdout.buffer.write(pathlib.Path(part).read_bytes())
    sys.stdout.flush()
    while not pathlib.Path(sys.argv[1]).exists() and part != sys.argv[-1]:
        time.sleep(0.05)
    time.sleep(0.5)
"""
# worker:0 reports "waiting", as when it builds its strategy; worker:1 never gets that far.
STUCK = """
import os, time
if os.environ["ORCH_TASK"] == "worker:0":
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "waiting"}\\n')
time.sleep(600)
import tensorflow
"""
# A float32 has 16 decimals or more in Python.
LOOP = """
for e in range(1, 6):
    print(f"Epoch {e}, Loss: {2.4 if e < 3 else 2.2204127311706543}")
print("Finished epoch 6, accuracy is 0.7604166865348816.")
"""
DIVERGES = """
import time
print("Epoch 1/2", "7/7 - 1s - 16ms/step - loss: 0.5000", sep="\\n")
print("Epoch 2/2", "7/7 - 1s - 16ms/step - loss: nan", sep="\\n")
time.sleep(600)
"""
# In place of TensorFlow: a profiler whose recording was made before.
PROFILER = """
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
REPORTS = """
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


def test_figures_are_read_as_python_prints_them_and_a_nan_ends_the_run(orch: Orch) -> None:
    loop = orch.run(script=LOOP)
    assert loop.err.splitlines()[-1].endswith(": 6 epochs, loss 2.22, accuracy 0.7604"), loop.err
    for figures in (orch.task("worker:0")["progress"], loop.result["training"]):
        assert (figures["epoch"], figures["loss"]) == (6, 2.2204127311706543)
        assert figures["metrics"] == {"accuracy": 0.7604166865348816}
    columns = orch("history", "--json").document["columns"]
    last = [columns[name][-1] for name in ("epoch", "loss", "accuracy")]
    assert last == [6, 2.2204127311706543, 0.7604166865348816]

    diverged = orch.run("-n", "2", "--stop-on-nan", script=DIVERGES)
    assert diverged.code == 1
    said = "the loss is nan, first seen at epoch 2 step 7"
    assert diverged.err.count(said) == 2, "the notice and the cause"
    assert (diverged.result["outcome"], diverged.result["cause"]["kind"]) == ("failed", "nan")
    task = diverged.result["cause"]["task"]
    assert diverged.result["bad_loss"] == {"task": task, "value": "nan", "epoch": 2, "step": 7}

    # TensorFlow's tutorial for parameter servers prints no loss, and counts from 0.
    counts = orch.run(script="for e in range(4): print('Finished epoch %d, accuracy is %f.' % (e, 0.76))")
    assert counts.err.splitlines()[-1].endswith(": 4 epochs, accuracy 0.76"), counts.err

    _, bad, good = orch("ls", "--json").document["runs"]
    assert (good["loss"], good["bad_loss"]) == (2.2204127311706543, None)
    assert (bad["loss"], bad["bad_loss"]) == (None, "nan")
    assert [line.split()[4] for line in orch("ls").lines[:4:2]] == ["LOSS", "nan"]


def test_keras_lines_become_progress(orch: Orch) -> None:
    sample = (SAMPLES / "keras3-fit-1.txt").read_bytes()
    cut = sample.index(b"evaluating")
    (orch.directory / "fit.txt").write_bytes(sample[:cut])
    (orch.directory / "evaluation.txt").write_bytes(sample[cut:])
    words = (orch.script("replay.py", REPLAY), "go", "fit.txt", "evaluation.txt")
    started = orch.start("up", "-n", "2", "--", sys.executable, *words)
    until(lambda: orch.run_dirs() and _have_validated(orch))
    for task in orch.status()["tasks"]:
        progress = task["progress"]
        assert (progress["phase"], progress["epoch"], progress["epochs"]) == ("training", 2, 2)
        assert progress["steps"] == 20 and progress["steps_per_s"] > 0
        assert set(progress["metrics"]) == {"accuracy", "val_accuracy", "val_loss"}
        assert progress["loss"] > 0
        assert (task["doing"], task["waiting_for"]) == ("epoch 2/2 step 20/20", [])
    assert [line.count("epoch 2/2 step 20/20") for line in orch("status").lines[3:]] == [1, 1]
    orch.script("go", "")
    assert started.finish().code == 0
    ended = orch.status()["tasks"]
    assert [task["doing"] for task in ended] == ["predicting step 16/16"] * 2
    assert [task["progress"]["epoch"] for task in ended] == [2, 2]
    for task in ("worker:0", "worker:1"):
        times = [event["mono"] for event in orch.events("task_progressed") if event["task"] == task]
        # The last report of a task that ends is not delayed.
        assert all(later - earlier >= 0.99 for earlier, later in pairwise(times[:-1]))


def _have_validated(orch: Orch) -> bool:
    """Whether the second epoch is reported completely; its lines may be read in parts."""
    tasks = orch.status()["tasks"]
    return bool(tasks) and all(
        task["doing"] == "epoch 2/2 step 20/20" and "val_loss" in task["progress"]["metrics"]
        for task in tasks
    )


def test_stuck_start_and_its_timeout_name_the_missing_task(orch: Orch) -> None:
    # Longer than two busy cores need to start the tasks.
    words = ("-n", "2", "--start", "spawn", "--timeout", "15s", "--", orch.script("stuck.py", STUCK))
    started = orch.start("up", *words)
    until(lambda: orch.run_dirs() and orch.status()["tasks"])
    until(lambda: [task["waiting_for"] for task in orch.status()["tasks"]] == [["worker:1"], []])
    assert "waiting for worker:1" in orch("status").lines[3]
    with pytest.raises(TimeoutError, match=r"not ready after 0 s: worker:0 waits for worker:1 \(starting"):
        api.find(None, orch.directory).wait_ready(timeout_s=0)
    done = started.finish()
    assert done.code == 124
    cause = orch.result()["cause"]["text"]
    assert cause.startswith("not done after 15 s (--timeout); worker:0 waits for worker:1 (starting")
    assert cause in done.err


@pytest.fixture
def loop(orch: Orch) -> None:
    """A directory with a script that reports six steps, and the recordings that its tasks make."""
    orch.script("tensorflow.py", PROFILER)
    orch.script("loop.py", REPORTS)
    for index, begin in enumerate((8, 15)):
        events = {"tf_Compute/1": [("a:MatMul", 0, 6)], "collective_ops/1": [(REDUCE, begin, 18)]}
        (orch.directory / f"worker:{index}").write_bytes(xspace(events, 1000, 1020))


def table(text: str) -> list[str]:
    lines = [line.removeprefix("orch: ") for line in text.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("profile of the steps"))
    return lines[begin : begin + 5]


def test_reported_steps_of_every_task(loop: None, orch: Orch) -> None:
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
    steps = [f"step {step} of {epoch}" for epoch in (1, 2) for step in (1, 2, 3)]
    assert lines == [steps[0], "starts", *steps[1:5], "stops", steps[5], "1,5"]
    (place,) = orch.run_dir().rglob("attempt-1")
    assert place.parent.parts[-3:] == ("profile", "plugins", "profile")
    assert f"TensorBoard: tensorboard --logdir {place.parents[2]}" == table(done.err)[4]
    names = {f"worker-{index}.{end}" for index in (0, 1) for end in ("json", "xplane.pb")}
    assert {path.name for path in place.iterdir()} == names
    assert json.loads((place / "worker-0.json").read_text()) == {"task": "worker:0", "first": 2, "last": 5}
    assert not [path for path in place.parents[2].iterdir() if path.name != "plugins"]


def test_training_without_these_steps_and_profiler_that_does_not_start(loop: None, orch: Orch) -> None:
    done = orch("up", "--profile", "5-9", "--", "loop.py")
    assert table(done.err)[2].endswith("  - (steps 5-6)")
    done = orch("up", "--profile", "8-9", "--", "loop.py")
    assert done.code == 0 and "starts" not in done.out
    assert "--profile 8-9: no task has recorded these steps" in done.err
    orch.script(
        "tensorflow.py", PROFILER.replace('print("starts", flush=True)', "raise ValueError('in use')")
    )
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
