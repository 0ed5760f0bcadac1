"""A user's own multi-worker script: `plain_fit.py [fixed]` fits, evaluates and prints the result."""

import os
import sys

import numpy as np
import tensorflow as tf

if "fixed" in sys.argv:
    from worker.bootstrap.keras_fix.trainer import fix_multi_worker_fit

    print(fix_multi_worker_fit(2))
    assert fix_multi_worker_fit(2) is None
strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)
x = np.random.rand(64, 4).astype(np.float32)
y = (x.sum(axis=1) > 2).astype(np.float32)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
try:
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    values = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    print(
        "fitted",
        [f"{loss:.6f}" for loss in history.history["loss"]],
        f"{values['loss']:.6f} {values['mae']:.6f}",
    )
    sys.stdout.flush()
    context = __import__("tensorflow.python.eager.context", fromlist=["context"]).context()
    context.wait_at_barrier("end", 60_000)
except Exception as error:
    print(f"failed {type(error).__name__}: {error}")
sys.stdout.flush()
# The peer meets the same; neither needs the other's goodbye.
os._exit(0)
