"""Fits a plane to points, of which each worker has a part: train.py DATA --epochs N.

DATA holds part-0.csv, part-1.csv ..., one for each worker, with lines of x1,x2,y.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH = 16  # per worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    points = read_points(options.data / f"part-{task['index']}.csv")
    steps = len(points) // BATCH

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.1)
    epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
    shared = os.environ["ORCH_CHECKPOINT_DIR"]
    if newest := tf.train.latest_checkpoint(shared):
        checkpoint.restore(newest)
        print(f"resumed after epoch {int(epoch)}", flush=True)
    # All workers must take part in saving; only the chief writes into the shared directory.
    is_chief = task["index"] == 0
    own = shared if is_chief else os.environ["ORCH_SCRATCH_DIR"]
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=3)

    @tf.function
    def step(batch):
        def on_replica(batch):
            features, wanted = batch[:, :2], batch[:, 2:]
            with tf.GradientTape() as tape:
                errors = tf.square(model(features, training=True) - wanted)
                loss = tf.nn.compute_average_loss(
                    errors[:, 0], global_batch_size=BATCH * strategy.num_replicas_in_sync
                )
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(on_replica, args=(batch,)), axis=None)

    batches = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices(points).repeat().batch(BATCH)
    )
    remaining = iter(batches)
    while int(epoch) < options.epochs:
        loss = [float(step(next(remaining))) for _ in range(steps)][-1]
        epoch.assign_add(1)
        manager.save(checkpoint_number=int(epoch))
        print(f"epoch {int(epoch)} loss {loss:.6f}", flush=True)


def read_points(path: Path) -> np.ndarray:
    return np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)


if __name__ == "__main__":
    main()
