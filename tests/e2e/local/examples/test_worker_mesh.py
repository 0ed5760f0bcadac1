"""Training on a DTensor mesh: the same numbers as unsharded, sharded checkpoints, and the end of all processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, Cluster, Clusters
from forks import ForkServer

from worker.training.weights import weight_table

MESH = ("--strategy=dtensor", "--mesh=batch=2,model=2")
SHORT = ("--global-batch=32", "--export=none")
# Relative difference. Sums are in another order; measured: 5e-7 after three epochs.
TOLERANCE = 1e-5


def assert_exported(checkpoints: Path, name: str) -> None:
    """Assert that the Keras file has the whole weights of that checkpoint."""
    import keras
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(checkpoints / name))
    weights = keras.models.load_model(checkpoints / "model.keras").get_weights()
    assert len(weights) == len(weight_table((8, 8, 1), 10, 1))
    for number, weight in enumerate(weights):
        assert (reader.get_tensor(f"weights/{number}/.ATTRIBUTES/VARIABLE_VALUE") == weight).all()


@pytest.mark.timeout(300)
def test_steps_equal_those_of_the_keras_model(tmp_path: Path, forks: ForkServer) -> None:
    log = tmp_path / "log"
    words = [str(Path(__file__).with_name("mesh_probe.py")), "2", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    assert forks.start(words, log, env, tmp_path).wait(LONGEST_RUN_S) == 0, log.read_text()
    probed = json.loads(log.read_text().splitlines()[-1])
    assert len(probed["found"]) == len(probed["expected"]) > 1
    for found, expected in zip(probed["found"], probed["expected"], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)
        assert found["accuracy"] == pytest.approx(expected["accuracy"])
    assert probed["difference"] < 1e-5
    # Each device holds its share of a weight and not more.
    assert probed["held"] == [[weight.elements(2)] * 4 for weight in weight_table((8, 8, 1), 10, 1)]
    assert probed["broadcast"] == 41
    # The table, which needs no TensorFlow, has the shapes of the Keras model.
    assert probed["shapes"] == [list(weight.shape) for weight in weight_table((12, 9, 3), 7, 2)]


def losses(cluster: Cluster) -> list[float]:
    return [float(epoch["loss"]) for epoch in cluster.history["epochs"]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_have_the_losses_of_one_device(clusters: Clusters) -> None:
    asked = ("--epochs=3", "--global-batch=32")
    meshed = clusters.train(2, *MESH, *asked)
    alone = clusters.train(1, "--strategy=one-device", *asked, "--export=none")
    assert len(losses(meshed)) == 3
    assert losses(meshed) == pytest.approx(losses(alone), rel=TOLERANCE)
    outputs = [*meshed.outputs, *alone.outputs]
    held_out = [line for output in outputs for line in output.splitlines() if "held-out acc" in line]
    assert len(held_out) == 3 and len(set(held_out)) == 1, held_out
    assert "mesh batch=2 x model=2 over 2 processes, global batch 32" in meshed.outputs[0]
    # Each part of a weight that is cut along the model axis is in its own file; the export has the whole weights.
    assert len(list(meshed.checkpoints.glob("ckpt-3.data-*"))) >= 2
    assert_exported(meshed.checkpoints, "ckpt-3")
    for output in meshed.outputs:
        assert "Error" not in output and "WARNING" not in output, output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_resumes_on_another_mesh(clusters: Clusters, tmp_path: Path) -> None:
    shared = tmp_path / "checkpoints"
    clusters.train(2, *MESH, *SHORT, "--epochs=1", checkpoints=shared)
    half_written = shared / ".checkpoint.4711"
    half_written.touch()
    wide = ("--strategy=dtensor", "--mesh=model=4", *SHORT, "--epochs=2", "--batch-size=16")
    resumed = clusters.train(1, *wide, checkpoints=shared)
    assert "resumed at epoch 2" in resumed.outputs[0]
    assert not half_written.exists()
    assert losses(resumed) == pytest.approx(losses(clusters.train(1, *wide)), rel=TOLERANCE)
    (output,) = clusters.train(1, *wide, "--width=2", checkpoints=shared, code=2).outputs
    assert f"{shared}/ckpt-2 does not fit this model (weight 4 is [256, 64] there" in output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_model_over_the_budget_trains_only_on_a_mesh(clusters: Clusters) -> None:
    large = ("--width=64", "--device-memory=8MB", "--epochs=1", "--steps-per-epoch=3", *SHORT)
    (output,) = clusters.train(1, "--strategy=one-device", *large, code=2).outputs
    assert "take 17.8 MB a device; --device-memory is 8.0 MB" in output
    assert "--mesh model=4 takes 4.7 MB" in output
    cut = clusters.train(1, "--strategy=dtensor", "--mesh=model=4", *large)
    assert "epoch 1/1: loss" in cut.outputs[0]
    assert (cut.checkpoints / "ckpt-1.index").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_all_processes_end_if_one_of_the_mesh_ends(
    clusters: Clusters, number: signal.Signals, code: int
) -> None:
    with clusters.start(2, [*MESH, *SHORT, "--epochs=10000"]) as cluster:
        cluster.tasks[0].wait_for_line("epoch 1/")
        cluster.tasks[1].signal(number)
        assert cluster.tasks[1].wait() == code
        assert cluster.tasks[0].wait() not in (0, None), cluster.describe()
