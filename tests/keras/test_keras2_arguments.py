"""Keras 3 refuses arguments that tf_keras accepts: on several workers, too, and the report names `--keras legacy`."""

from __future__ import annotations

import pytest
from orch_command import Orch

SCRIPT = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
data = tf.data.Dataset.from_tensors((np.ones((4, 2), "f"), np.ones((4, 1), "f"))).repeat()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
options = {"steps_per_epoch": 4, "verbose": 0} | dict(OPTION)
model.fit(data, **options)
print("trained", flush=True)
"""
REFUSED = {
    "steps_per_epoch=100 / 20": "TypeError: 'float' object cannot be interpreted as an integer",
    "callbacks=[tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, l: None)]": (
        "TypeError: <lambda>() got an unexpected keyword argument 'logs'"
    ),
}
# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("option", REFUSED)
def test_a_refused_argument_is_reported_as_keras_does(orch: Orch, option: str) -> None:
    script = orch.script("train.py", SCRIPT.replace("OPTION", option))
    done = orch.start("up", "-n", "2", "--", script).finish(250)
    assert done.code == 1, done.out + done.err
    assert f"both workers failed: {REFUSED[option]}" in done.err.splitlines()[-1]
    assert "or run on tf_keras with --keras legacy" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("option", REFUSED)
def test_tf_keras_accepts_it(orch: Orch, option: str) -> None:
    script = orch.script("train.py", SCRIPT.replace("OPTION", option))
    done = orch.start("up", "-n", "2", "--keras", "legacy", "--", script).finish(250)
    assert done.code == 0, done.out + done.err
    assert done.out.count("| trained") == 2


@pytest.mark.parametrize(
    ("keras", "steps"), [("3", "np.int64(4)"), pytest.param("legacy", "2.5", marks=pytest.mark.slow)]
)
def test_steps_of_another_type_are_reported(orch: Orch, keras: str, steps: str) -> None:
    script = orch.script("train.py", SCRIPT.replace("OPTION", f"steps_per_epoch={steps}"))
    done = orch.start("up", "-n", "1", "--keras", keras, "--", script).finish(250)
    assert done.code == 0, done.out + done.err
    (task,) = orch.status()["tasks"]
    # Quick steps are not all reported.
    assert task["progress"]["fit"]["done"] >= 1
