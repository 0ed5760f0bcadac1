"""A user's script with a custom loop. `loop_script.py HOW VICTIM`.

HOW: `manager` (tf.train.CheckpointManager every five steps; all workers read the chief's checkpoint) or `preemption`
(PreemptionCheckpointHandler, which saves when a worker gets SIGTERM, and exits with 42). VICTIM: `nobody`; `training`:
worker 1 in the thirteenth step of the first attempt; `waits`: nobody, with a second between steps until the file `go`
is beside the checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

how, victim = sys.argv[1:]
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
output = Path(os.environ["ORCH_CHECKPOINT_DIR"])
if os.environ["ORCH_ATTEMPT"] != "1":
    victim = "nobody"
STEPS = 30

strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.random.set_seed(5)
x = np.random.RandomState(0).rand(STEPS * 16, 8).astype("float32")
with strategy.scope():
    weights = tf.Variable(tf.random.stateless_normal((8, 1), [3, 4]))
    momentum = tf.Variable(tf.zeros((8, 1)))
    done = tf.Variable(0, dtype=tf.int64)


@tf.function
def step(batch: Any) -> Any:
    def one(some: Any) -> Any:
        with tf.GradientTape() as tape:
            error = some @ weights - tf.reduce_sum(some, axis=1, keepdims=True)
            loss = tf.reduce_mean(error**2)
        gradient = tf.distribute.get_replica_context().all_reduce("MEAN", tape.gradient(loss, weights))
        momentum.assign(0.9 * momentum + gradient)
        weights.assign_sub(0.05 * momentum)
        return loss

    return strategy.reduce("MEAN", strategy.run(one, args=(batch,)), axis=None)


def train_one() -> None:
    number = int(done.numpy())
    if victim == "training" and rank == 1 and number == 12:
        os.kill(os.getpid(), signal.SIGTERM if how == "preemption" else signal.SIGKILL)
    if victim == "waits" and not (output / "go").exists():
        time.sleep(1.0)
    rows = x[number * 16 : (number + 1) * 16][rank * 8 : (rank + 1) * 8]
    loss = float(step(tf.constant(rows)))
    done.assign_add(1)
    where = {"phase": "training", "epoch": 1, "epochs": 1, "step": number + 1, "steps": STEPS}
    progress = where | {"loss": loss, "start_step": start}
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), json.dumps(progress).encode() + b"\n")


checkpoint = tf.train.Checkpoint(weights=weights, momentum=momentum, done=done)
if how == "manager":
    own = output / "saved" if rank == 0 else Path(os.environ["ORCH_SCRATCH_DIR"])
    manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=2)
    newest = tf.train.latest_checkpoint(str(output / "saved"))
    if newest:
        checkpoint.restore(newest).assert_consumed()
    start = int(done.numpy())
    while done.numpy() < STEPS:
        train_one()
        if done.numpy() % 5 == 0:
            manager.save(checkpoint_number=int(done.numpy()))
else:
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        strategy.cluster_resolver, checkpoint, checkpoint_dir=str(output / "saved")
    )
    start = int(done.numpy())
    while done.numpy() < STEPS:
        handler.run(train_one)
np.savez(
    output / f"end-{rank}.npz", weights=weights.numpy(), momentum=momentum.numpy(), start=np.array(start)
)
