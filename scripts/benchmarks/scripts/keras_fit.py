"""A user's own training script: Keras `fit` under MultiWorkerMirroredStrategy.

    keras_fit.py OUT STEPS WIDTHS    (64,106,10: 8 thousand parameters; 784,1312,1312,10: 2.8 million)

Writes OUT/<rank>.first at the end of the first step and OUT/<rank>.json, with when each step ended and when `fit`
returned; times are CLOCK_MONOTONIC seconds, which all processes of a machine share.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH_PER_WORKER = 64

out, steps, widths = Path(sys.argv[1]), int(sys.argv[2]), [int(width) for width in sys.argv[3].split(",")]
config = json.loads(os.environ["TF_CONFIG"])
workers, rank = len(config["cluster"]["worker"]), config["task"]["index"]
ended = []


class Times(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        ended.append(time.monotonic())
        if len(ended) == 1:
            (out / f"{rank}.first").write_text(str(ended[0]))


strategy = tf.distribute.MultiWorkerMirroredStrategy()
random = np.random.default_rng(0)
inputs = random.random((2048, widths[0]), dtype=np.float32)
labels = random.integers(0, widths[-1], 2048)
data = tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat()
data = data.batch(BATCH_PER_WORKER * workers, drop_remainder=True)
with strategy.scope():
    layers = [tf.keras.layers.Dense(width, activation="relu") for width in widths[1:-1]]
    model = tf.keras.Sequential([tf.keras.Input((widths[0],)), *layers, tf.keras.layers.Dense(widths[-1])])
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.01),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(data, epochs=1, steps_per_epoch=steps, callbacks=[Times()], verbose=0)
returned = time.monotonic()
result = {"parameters": model.count_params(), "ended": ended, "returned": returned}
(out / f"{rank}.part").write_text(json.dumps(result))
(out / f"{rank}.part").rename(out / f"{rank}.json")
