"""`orch up` with parameter servers and with an evaluator: real training, also with a killed task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from orch_command import Orch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
PATIENT_S = 360.0
SERVERS = ("--strategy", "parameter-server", "--workers", "2", "--ps", "1")
# At its end the chief stops its workers (argument 2: or its server), which then answer no more.
STOPPING = """
import atexit, os, pathlib, signal, sys

here = pathlib.Path(sys.argv[1])
atexit.register(lambda: (here / "left").write_text("by the script's own function"))

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    (here / f"{resolver.task_type}-{resolver.task_id}").write_text(str(os.getpid()))
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), tf.keras.layers.Dense(2)])
    model.compile(optimizer=tf.keras.optimizers.legacy.SGD(0.01), loss="mse")


def numbers(context):
    return tf.data.Dataset.from_tensors((tf.ones(4), tf.ones(2))).repeat().batch(8)


model.fit(tf.keras.utils.experimental.DatasetCreator(numbers), steps_per_epoch=5, verbose=2)
for task in here.glob(f"{sys.argv[2]}-*"):
    os.kill(int(task.read_text()), signal.SIGSTOP)
raise SystemExit(3)
"""
HELD_OUT = re.compile(r"chief:0 \| held-out accuracy (\d\.\d{4})")


def test_training_continues_after_worker_is_killed(orch: Orch) -> None:
    done = orch("up", *SERVERS, "--evaluator", "--chaos", "kill worker:1 at step 100", timeout_s=PATIENT_S)
    assert done.code == 0, done.out + done.err
    (accuracy,) = HELD_OUT.findall(done.out)
    assert float(accuracy) >= 0.9  # usually 0.98: a late gradient can spoil the last epoch
    assert "evaluator:0 | ckpt-10 of epoch 10/10: held-out accuracy" in done.out
    result = orch.result()
    assert (result["outcome"], result["attempts"]) == ("succeeded", 1)
    restarts = {task["task"]: task["restarts"] for task in result["tasks"]}
    assert restarts == {"chief:0": 0, "worker:0": 0, "worker:1": 1, "ps:0": 0, "evaluator:0": 0}


def test_killed_parameter_server_is_the_cause(orch: Orch) -> None:
    done = orch("up", *SERVERS, "--chaos", "kill ps:0 at step 100", timeout_s=PATIENT_S)
    assert done.code == 137, done.out + done.err
    result = orch.result()
    assert result["cause"]["task"] == result["first_failure"]["task"] == "ps:0"
    assert result["cause"]["text"].startswith("SIGKILL")


def test_fit_trains_on_tf_keras(orch: Orch) -> None:
    done = orch("up", *SERVERS, "--keras", "legacy", "--", "--epochs", "4", timeout_s=PATIENT_S)
    assert done.code == 0, done.out + done.err
    assert "parameter-server, fit loop" in done.out
    (accuracy,) = HELD_OUT.findall(done.out)
    assert float(accuracy) >= 0.9


@pytest.mark.parametrize("stopped", ["worker", "ps"])
def test_exit_of_the_chief_waits_for_no_answer(orch: Orch, tmp_path: Path, stopped: str) -> None:
    """TensorFlow would remove the chief's functions from all workers, and wait for their answers."""
    script = tmp_path / "script.py"
    script.write_text(STOPPING)
    words = ("--keras", "legacy", "--grace", "1s", "--", str(script), str(tmp_path), stopped)
    done = orch("up", *SERVERS, *words, timeout_s=PATIENT_S)
    assert done.code == 3, done.out + done.err
    assert orch.result()["first_failure"]["task"] == "chief:0"
    assert (tmp_path / "left").read_text() == "by the script's own function"


def test_tf_keras_is_refused_for_keras_3_program(orch: Orch) -> None:
    done = orch("up", "--keras", "legacy")
    assert done.code == 2
    assert "is only for parameter-server with fit" in done.err
    assert not orch.run_dirs()


def test_evaluator_ends_with_last_checkpoint(orch: Orch) -> None:
    done = orch("up", "--workers", "2", "--evaluator", "--", "--epochs", "3", timeout_s=PATIENT_S)
    assert done.code == 0, done.out + done.err
    (evaluated,) = re.findall(r"evaluator:0 \| ckpt-3 of epoch 3/3: (held-out accuracy .*)", done.out)
    assert f"worker:0 | {evaluated}" in done.out
