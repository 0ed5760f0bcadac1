"""Parameter servers and the side-car evaluator as real processes: training, a lost worker, resuming, evaluation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import LONGEST_RUN_S, ROOT, Cluster, Clusters

pytestmark = pytest.mark.timeout(600)

# Usually 0.98. A late gradient of a slow worker may disturb the last epoch (0.94 was seen).
LEAST_ACCURACY = 0.9
# Not anchored at the start of a line: native code writes to stderr, the same file, at any time.
HELD_OUT = re.compile(r"held-out accuracy (\d\.\d{4}), loss \d+\.\d{4}, on 355 examples$", re.MULTILINE)
EVALUATED = re.compile(r"ckpt-(\d+) of epoch \1/\d+: held-out accuracy (\d\.\d{4}), loss")
STRATEGY = ("--strategy", "parameter-server")
FIXED = (*STRATEGY, "--partitioner", "fixed")
SMALL = {"ps": 1, "worker": 1, "chief": 1}
ALL = {"ps": 2, "worker": 2, "evaluator": 1, "chief": 1}
# 90 full batches of 16 in 1,442 examples.
STEPS_OF_TEN_EPOCHS = 900
# Steps that may be running on the lost worker.
RUNNING_STEPS = 1
ITERATIONS = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"
READS = """
import json, sys, tensorflow as tf
reader = tf.train.load_checkpoint(sys.argv[1])
print(json.dumps([reader.get_tensor(sys.argv[2]).tolist(), [*reader.get_variable_to_shape_map().values()]]))
"""
EVALUATES = """
import sys, {library} as keras
from worker.training.data.datasets import load_dataset
digits = load_dataset('digits', 0)
model = keras.models.load_model(sys.argv[1])
print(model.evaluate(digits.test_images, digits.test_labels, verbose=0, return_dict=True)['accuracy'])
"""
SAVES_CUT_MODEL = """
import sys, keras, numpy as np, tensorflow as tf
from worker.bootstrap.keras_fix.variables import train_cut_variables
cut = tf.__internal__.distribute.ShardedVariable
def model():
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
train_cut_variables(keras, report=print)
sharded, whole = model(), model()
for variable in sharded.variables:
    value = variable.numpy()
    variable._value = cut([tf.Variable(value[:2]), tf.Variable(value[2:])], name=variable.name)
saved = sharded.get_weights()
path = tf.train.Checkpoint(model=sharded).write(sys.argv[1])
[variable.assign(variable * 0) for variable in sharded.variables]
for one in (sharded, whole):
    tf.train.Checkpoint(model=one).read(path).assert_existing_objects_matched()
    assert all(np.array_equal(a, b) for a, b in zip(saved, one.get_weights(), strict=True))
"""


def run_code(code: str, *words: str) -> str:
    """Return the last line of the output of a new process."""
    process = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip().rpartition("\n")[2]


def steps_and_shapes(checkpoint: Path) -> Any:
    return json.loads(run_code(READS, str(checkpoint), ITERATIONS))


def accuracy_of(model: Path, library: str = "keras") -> float:
    """Return the accuracy of a saved model on the held-out digits."""
    return float(run_code(EVALUATES.format(library=library), str(model)))


def trained(cluster: Cluster, least: float = 0.0) -> tuple[str, str]:
    """Wait until the chief has exited with 0 and learnt; return its output and its held-out accuracy."""
    chief = cluster.by_name["chief:0"]
    assert chief.wait() == 0, cluster.describe()
    (accuracy,) = HELD_OUT.findall(chief.output)
    assert float(accuracy) >= least, cluster.describe()
    return chief.output, accuracy


def test_short_training_with_a_cut_model_is_evaluated_afterwards(clusters: Clusters) -> None:
    words = (*FIXED, "--epochs", "1", "--steps-per-epoch", "3", "--export", "keras")
    with clusters.start({"ps": 2, "worker": 1, "chief": 1}, words) as cluster:
        chief, accuracy = trained(cluster)
        for name in ("ps:0", "ps:1", "worker:0"):
            task = cluster.by_name[name]
            assert task.output == f"{name}: serving the chief until it is stopped\n"
            task.signal(signal.SIGTERM)
            assert task.wait() == 143
        # A cut variable is saved whole, so the evaluator can read it.
        evaluator = cluster.start("evaluator:0")
        assert evaluator.wait() == 0, cluster.describe()
    assert "parameter-server, custom loop: 1 worker at its own pace, 16 examples a step, 3 steps" in chief
    assert "weights: 21,077 on ps:0, 14,837 on ps:1" in chief
    assert EVALUATED.findall(evaluator.output) == [("1", accuracy)]


@pytest.mark.slow
def test_no_step_is_lost_with_a_killed_worker_and_the_last_checkpoint_is_evaluated(
    clusters: Clusters, tmp_path: Path
) -> None:
    with clusters.start(ALL, FIXED, checkpoints=tmp_path / "kept") as cluster:
        cluster.by_name["chief:0"].wait_for_line("epoch 2/10")
        worker = cluster.by_name["worker:1"]
        worker.signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        cluster.start("worker:1").wait_for_listener()
        _, accuracy = trained(cluster, LEAST_ACCURACY)
        evaluator = cluster.by_name["evaluator:0"]
        assert evaluator.wait() == 0, cluster.describe()
    epoch, evaluated = EVALUATED.findall(evaluator.output)[-1]
    assert (epoch, float(evaluated)) == ("10", pytest.approx(float(accuracy), abs=1e-4))
    steps, shapes = steps_and_shapes(cluster.checkpoints / "ckpt-10")
    assert STEPS_OF_TEN_EPOCHS <= steps <= STEPS_OF_TEN_EPOCHS + RUNNING_STEPS
    assert [256, 64] in shapes
    assert accuracy_of(cluster.checkpoints / "model.keras") == pytest.approx(float(accuracy), abs=1e-4)
    names = sorted(path.name for path in cluster.checkpoints.glob("ckpt-*.index"))
    assert names == ["ckpt-10.index", "ckpt-8.index", "ckpt-9.index"]
    words = (*FIXED, "--epochs", "11")
    with clusters.start({**SMALL, "ps": 2}, words, checkpoints=tmp_path / "kept") as cluster:
        chief, _ = trained(cluster, LEAST_ACCURACY)
    assert "resumed at epoch 11\n" in chief
    assert re.findall(r"^epoch (\d+)/11", chief, re.MULTILINE) == ["11"]
    resumed, _ = steps_and_shapes(cluster.checkpoints / "ckpt-11")
    assert resumed == steps + STEPS_OF_TEN_EPOCHS // 10


@pytest.mark.slow
def test_checkpoint_within_an_epoch_is_resumed(clusters: Clusters, tmp_path: Path) -> None:
    words = (*STRATEGY, "--steps-per-epoch", "5", "--export", "none", "--epochs")
    with clusters.start(SMALL, (*words, "1"), checkpoints=tmp_path / "kept") as cluster:
        trained(cluster)
    # A preempted mirrored training leaves checkpoints of this form.
    for file in cluster.checkpoints.glob("ckpt-1.*"):
        file.rename(file.with_name(file.name.replace("ckpt-1.", "ckpt-1-2.")))
    with clusters.start(SMALL, (*words, "2"), checkpoints=tmp_path / "kept") as cluster:
        assert "resumed at epoch 2, after 2 of its 5 steps" in trained(cluster)[0]
    assert steps_and_shapes(cluster.checkpoints / "ckpt-2")[0] == 5 + 3


@pytest.mark.slow
def test_checkpoint_of_variables_cut_differently_is_refused(clusters: Clusters, tmp_path: Path) -> None:
    """A variable on another host accepts any shape; without the check the training would fail later, in a graph."""
    rest = ("--steps-per-epoch", "2", "--export", "none", "--epochs")
    with clusters.start({**SMALL, "ps": 2}, (*FIXED, *rest, "1"), checkpoints=tmp_path / "kept") as cluster:
        trained(cluster)
    with clusters.start(SMALL, (*STRATEGY, *rest, "2"), checkpoints=tmp_path / "kept") as cluster:
        chief = cluster.by_name["chief:0"]
        assert chief.wait() == 2, cluster.describe()
    assert "/ckpt-1 does not fit these variables (" in chief.output
    assert "give the --partitioner and the --ps" in chief.output


@pytest.mark.slow
def test_fit_trains_on_tf_keras(clusters: Clusters) -> None:
    words = (*STRATEGY, "--partitioner", "min-size")
    with clusters.start(ALL, words, env={"TF_USE_LEGACY_KERAS": "1"}) as cluster:
        chief, accuracy = trained(cluster, LEAST_ACCURACY)
        assert "parameter-server, fit loop" in chief
        assert cluster.by_name["evaluator:0"].wait() == 0, cluster.describe()
    model = cluster.checkpoints / "model.keras"
    assert accuracy_of(model, "tf_keras") == pytest.approx(float(accuracy), abs=1e-4)


@pytest.mark.slow
def test_killed_parameter_server_ends_the_chief(clusters: Clusters) -> None:
    with clusters.start({**SMALL, "ps": 2}, STRATEGY) as cluster:
        chief = cluster.by_name["chief:0"]
        chief.wait_for_line("epoch 1/10")
        cluster.by_name["ps:1"].signal(signal.SIGKILL)
        assert chief.wait() == 1, cluster.describe()
        assert "/job:ps" in chief.output
        assert cluster.by_name["worker:0"].process.poll() is None


@pytest.mark.slow
def test_cut_model_is_saved_whole_and_restored_into_its_parts(tmp_path: Path) -> None:
    run_code(SAVES_CUT_MODEL, str(tmp_path / "saved"))
