"""A user's training on sharded data. `sharded_script.py HOW [slowly]`.

HOW: `manager` (tf.train.CheckpointManager every five steps; all workers read the chief's checkpoint) or `preemption`
(PreemptionCheckpointHandler). `slowly`: from step 12 of the first attempt on, each step takes a second longer, until
the file `go` is beside the checkpoints. Each worker writes its final state to `end-N.npz`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# Slow steps must last longer than a time limit of Slurm, whose unit is a minute.
STEPS, STEPS_PER_EPOCH, BATCH = 300, 20, 24
FIRST_SLOW, SAVED_EVERY = 12, 5

how, *pace = sys.argv[1:]
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
output = Path(os.environ["ORCH_CHECKPOINT_DIR"])
is_slow = pace == ["slowly"] and os.environ["ORCH_ATTEMPT"] == "1"

strategy = tf.distribute.MultiWorkerMirroredStrategy()
numbers = np.random.RandomState(0)
x = numbers.rand(STEPS_PER_EPOCH * BATCH, 8).astype("float32")
# With noise, so that the weights depend on the order of the examples until the end.
y = x.sum(axis=1, keepdims=True) + numbers.normal(size=(len(x), 1)).astype("float32")
with strategy.scope():
    weights = tf.Variable(tf.random.stateless_normal((8, 1), [3, 4]))
    momentum = tf.Variable(tf.zeros((8, 1)))
    losses = tf.Variable(tf.zeros(STEPS))
    done = tf.Variable(0, dtype=tf.int64)


@tf.function
def step(batch: Any) -> Any:
    def one(some: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((some @ weights - wanted) ** 2)
        gradient = tf.distribute.get_replica_context().all_reduce("MEAN", tape.gradient(loss, weights))
        momentum.assign(0.9 * momentum + gradient)
        weights.assign_sub(0.01 * momentum)
        return loss

    return strategy.reduce("MEAN", strategy.run(one, args=batch), axis=None)


def train_one() -> None:
    number = int(done.numpy())
    if is_slow and number >= FIRST_SLOW and not (output / "go").exists():
        time.sleep(1.0)
    loss = step(next(batches))
    losses.assign(tf.tensor_scatter_nd_update(losses, [[number]], [loss]))
    done.assign_add(1)
    epoch, before = divmod(number, STEPS_PER_EPOCH)
    progress = {"phase": "training", "epoch": epoch + 1, "step": before + 1, "steps": STEPS_PER_EPOCH}
    facts = {**progress, "loss": float(loss), "start_step": start, "global_batch": BATCH}
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), json.dumps(facts).encode() + b"\n")


checkpoint = tf.train.Checkpoint(weights=weights, momentum=momentum, losses=losses, done=done)
saved = output / "saved"
if how == "preemption":
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        strategy.cluster_resolver, checkpoint, checkpoint_dir=str(saved)
    )
else:
    own = saved if rank == 0 else Path(os.environ["ORCH_SCRATCH_DIR"])
    manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=2)
    newest = tf.train.latest_checkpoint(str(saved))
    if newest:
        checkpoint.restore(newest).assert_consumed()

start = int(done.numpy())
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=5).repeat().batch(BATCH)
batches = iter(strategy.experimental_distribute_dataset(data.skip(start)))
while done.numpy() < STEPS:
    if how == "preemption":
        handler.run(train_one)
    else:
        train_one()
        if done.numpy() % SAVED_EVERY == 0:
            manager.save(checkpoint_number=int(done.numpy()))
arrays = {"weights": weights.numpy(), "momentum": momentum.numpy(), "losses": losses.numpy()}
np.savez(output / f"end-{rank}.npz", start=np.array(start), **arrays)
