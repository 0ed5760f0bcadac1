"""The progress of each task in status, result and `orch ls`: from the lines of a script, and before its first line."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from orch_command import Orch
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
# TensorFlow's tutorial for parameter servers prints no loss, and counts from 0.
WITHOUT_LOSS = "for e in range(4): print('Finished epoch %d, accuracy is %f.' % (e, 0.76))"
DIVERGES = """
import time
print("Epoch 1/2", "7/7 - 1s - 16ms/step - loss: 0.5000", sep="\\n")
print("Epoch 2/2", "7/7 - 1s - 16ms/step - loss: nan", sep="\\n")
time.sleep(600)
"""


def test_figures_are_read_as_python_prints_them_and_a_nan_ends_the_run(orch: Orch) -> None:
    loop = orch.run(script=LOOP)
    assert loop.code == 0
    assert loop.err.splitlines()[-1].endswith(": 6 epochs, loss 2.22, accuracy 0.7604"), loop.err
    for figures in (orch.task("worker:0")["progress"], loop.result["training"]):
        assert (figures["epoch"], figures["loss"]) == (6, 2.2204127311706543)
        assert figures["metrics"] == {"accuracy": 0.7604166865348816}
    columns = orch("history", "--json").document["columns"]
    last = [columns[name][-1] for name in ("epoch", "loss", "accuracy")]
    assert last == [6, 2.2204127311706543, 0.7604166865348816]

    diverged = orch.run("-n", "2", "--stop-on-nan", script=DIVERGES)
    assert diverged.code == 1
    assert (
        diverged.err.count("the loss is nan, first seen at epoch 2 step 7") == 2
    )  # the notice and the cause
    assert (diverged.result["outcome"], diverged.result["cause"]["kind"]) == ("failed", "nan")
    task = diverged.result["cause"]["task"]
    assert diverged.result["bad_loss"] == {"task": task, "value": "nan", "epoch": 2, "step": 7}

    bad, good = orch("ls", "--json").document["runs"]
    assert (good["loss"], good["bad_loss"]) == (2.2204127311706543, None)
    assert (bad["loss"], bad["bad_loss"]) == (None, "nan")
    assert [line.split()[4] for line in orch("ls").lines[:3]] == ["LOSS", "nan", "2.22"]


def test_keras_lines_become_progress(orch: Orch) -> None:
    sample = (SAMPLES / "keras3-fit-1.txt").read_bytes()
    fit, evaluation = sample[: sample.index(b"evaluating")], sample[sample.index(b"evaluating") :]
    paths = [orch.directory / "fit.txt", orch.directory / "evaluation.txt"]
    for path, data in zip(paths, (fit, evaluation), strict=True):
        path.write_bytes(data)
    words = [sys.executable, orch.script("replay.py", REPLAY), "go", *map(str, paths)]
    started = orch.start("up", "-n", "2", "--", *words)
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


def test_epochs_without_a_loss_are_in_the_last_line(orch: Orch) -> None:
    done = orch.run(script=WITHOUT_LOSS)
    assert done.err.splitlines()[-1].endswith(": 4 epochs, accuracy 0.76"), done.err
    training = done.result["training"]
    assert (training["epoch"], training["loss"], training["metrics"]) == (4, None, {"accuracy": 0.76})
