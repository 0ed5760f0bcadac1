"""Warm starts with TensorFlow: each run equals a cold one after any change, and 200 runs leak nothing."""

from __future__ import annotations

import sys

import pytest
from warm_command import WarmOrch

FITS = """
import tensorflow as tf
from part import UNITS
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(UNITS)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones((32, 4)), tf.ones((32, UNITS)))).batch(8).repeat()
history = model.fit(data, epochs=1, steps_per_epoch=3, verbose=0)
print("fitted", UNITS, len(history.history["loss"]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_next_run_does_not_import_tensorflow_again(warm: WarmOrch) -> None:
    script = warm.orch.script("train.py", FITS)
    for units, terminal in (("1", "xterm"), ("2", "xterm")):
        warm.orch.script("part.py", f"UNITS = {units}")
        env: dict[str, str | None] = {"TERM": terminal, "SSH_TTY": f"/dev/pts/{units}"}
        done = warm("-v", "up", "--warm", "-n", "2", "--", sys.executable, script, env=env)
        assert done.code == 0, done.err
        fitted = sorted(line for line in done.lines if "fitted" in line)
        assert fitted == [f"worker:{n} | fitted {units} 1" for n in range(2)]
        run = warm.orch.run_dirs()[-1]
        assert warm.orch.methods(run) == {"fork"}
    assert warm.orch.events("preloaded", run)[0]["seconds"] == 0
