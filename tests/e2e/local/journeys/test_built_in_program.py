"""Real TensorFlow under the installed `orch`: the built-in program trains and resumes; the task that broke is named."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from orch_command import Orch

# Seconds for workers to import TensorFlow one after another on two busy cores.
_START_S = 180.0
pytestmark = pytest.mark.timeout(400)

# Endless steps, each a collective of all workers. worker:1 fails as the second word says.
_LOOP = """
import os, sys
fails = sys.argv[1] if os.environ["ORCH_TASK"] == "worker:1" else ""
if fails == "at once":
    raise ValueError("cannot begin")
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    def one():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([8]))
    return strategy.run(one)

for number in range(1_000_000):
    step()
    if number == 50 and fails == "later":
        raise ValueError("cannot continue")
    if number == 50 and fails == "leaves":
        os._exit(0)
"""


def _accuracies(out: str) -> list[float]:
    return [float(number) for number in re.findall(r"held-out accuracy ([0-9.]+)", out)]


def test_two_workers_train(tensorflow_orch: Orch) -> None:
    orch, before = tensorflow_orch, tensorflow_orch.run_dirs()
    done = orch("up", "-n", "2", "--", "--epochs", "1", "--steps-per-epoch", "10")
    assert done.code == 0, done.out + done.err
    losses = re.findall(r"^worker:(\d) \| epoch 1/1: (loss \S+, accuracy \S+),", done.out, re.MULTILINE)
    assert sorted(task for task, _ in losses) == ["0", "1"]
    assert len({loss for _, loss in losses}) == 1, "all workers see the same loss"
    assert len(set(_accuracies(done.out))) == 1
    (run,) = [each for each in orch.run_dirs() if each not in before]
    assert (run / "checkpoints" / "model.keras").exists()
    assert not (run / "scratch").exists(), "scratch directories are removed"
    assert all(task["progress"] is not None for task in orch.status(run.name)["tasks"])


@pytest.mark.slow
def test_second_run_resumes_training(cold_orch: Orch) -> None:
    words = ("up", "-n", "2", "--checkpoint-dir", "kept", "--")
    assert cold_orch.start(*words, "--epochs", "1").finish(_START_S).code == 0
    again = cold_orch.start(*words, "--epochs", "2").finish(_START_S)
    assert again.code == 0, again.out + again.err
    assert "epoch 2/2" in again.out and "epoch 1/2" not in again.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "kind", "first", "said"),
    [
        ("at once", "exited", "worker:1", "orch: worker:1 failed: ValueError: cannot begin ("),
        ("later", "exited", "worker:1", "orch: worker:1 failed: ValueError: cannot continue ("),
        ("leaves", "left_early", "worker:0", "left early"),
    ],
)
def test_worker_that_failed_first_is_the_cause(
    cold_orch: Orch, fails: str, kind: str, first: str, said: str
) -> None:
    script = cold_orch.script("loop.py", _LOOP)
    done = cold_orch.start("up", "-n", "2", "--", script, fails).finish(_START_S)
    result = cold_orch.result()
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", kind), done.err
    assert result["first_failure"]["task"] == first and done.code != 0
    assert said in done.err


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_accuracy(cold_orch: Orch, workers: int) -> None:
    done = cold_orch.start("up", "-n", str(workers)).finish(_START_S * 2)
    assert done.code == 0, done.out + done.err
    accuracies = _accuracies(done.out)
    assert len(accuracies) == workers and len(set(accuracies)) == 1
    assert accuracies[0] >= 0.95
    load = "import sys, keras; keras.models.load_model(sys.argv[1]).summary()"
    model = cold_orch.run_dir() / "checkpoints" / "model.keras"
    subprocess.run([sys.executable, "-c", load, model], check=True, capture_output=True, timeout=_START_S)
