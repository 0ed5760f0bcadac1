"""A user's own training script: a custom loop under MultiWorkerMirroredStrategy.

    custom_loop.py OUT STEPS WIDTHS    (64,106,10: 8 thousand parameters; 784,1312,1312,10: 2.8 million)

Writes OUT/<rank>.first at the end of the first step and OUT/<rank>.json, with when each step ended, at its own
end; times are CLOCK_MONOTONIC seconds, which all processes of a machine share.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH_PER_WORKER = 64


def train(out: Path, steps: int, widths: list[int]) -> None:
    config = json.loads(os.environ["TF_CONFIG"])
    workers, rank = len(config["cluster"]["worker"]), config["task"]["index"]

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch = BATCH_PER_WORKER * workers
    random = np.random.default_rng(0)
    inputs = random.random((2048, widths[0]), dtype=np.float32)
    labels = random.integers(0, widths[-1], 2048)
    data = (
        tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().batch(global_batch, drop_remainder=True)
    )
    batches = iter(strategy.experimental_distribute_dataset(data))

    with strategy.scope():
        layers = [tf.keras.layers.Dense(width, activation="relu") for width in widths[1:-1]]
        model = tf.keras.Sequential(
            [tf.keras.Input((widths[0],)), *layers, tf.keras.layers.Dense(widths[-1])]
        )
        optimizer = tf.keras.optimizers.SGD(0.01)
        per_example = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            images, wanted = batch
            with tf.GradientTape() as tape:
                losses = per_example(wanted, model(images, training=True))
                loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    ended = []
    for step in range(steps):
        float(train_step(batches))
        ended.append(time.monotonic())
        if step == 0:
            (out / f"{rank}.first").write_text(str(ended[0]))
    (out / f"{rank}.part").write_text(json.dumps({"parameters": model.count_params(), "ended": ended}))
    (out / f"{rank}.part").rename(out / f"{rank}.json")


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), [int(width) for width in sys.argv[3].split(",")])
