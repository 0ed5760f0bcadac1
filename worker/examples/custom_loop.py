"""Trains a small network on handwritten digits with an own loop, on several workers.

orch up --workers 4 -- --loop custom              # runs this file
orch up --workers 2 --max-restarts 3 -- --loop custom --checkpoint preemption
orch example custom-loop                          # writes it here, to edit: orch up -- custom_loop.py
"""

import argparse
import os
import sys

import common
import keras
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10, help="in total, with those of earlier runs")
parser.add_argument("--steps-per-epoch", type=int, help="default: one pass over the examples")
parser.add_argument("--batch-size", type=int, default=16, help="examples of one replica in a step")
parser.add_argument("--global-batch", type=int, default=os.environ.get("ORCH_GLOBAL_BATCH") or None)
parser.add_argument("--learning-rate", type=float, default=0.002)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--dataset", default="digits", help="digits, mnist, FILE.npz, DIR of TFRecord files")
parser.add_argument("--precision", default="float32", choices=["float32", "mixed_float16", "mixed_bfloat16"])
parser.add_argument("--checkpoint", default="manager", choices=["manager", "preemption"])
options = parser.parse_args()


def build_model(shape, classes):
    return keras.Sequential(
        [
            keras.layers.Input(shape),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(classes, dtype="float32"),
        ]
    )


if common.is_evaluator():
    if options.checkpoint != "manager":
        parser.error("an evaluator follows the checkpoints of --checkpoint manager")
    digits = common.load(options.dataset, options.seed)
    model = build_model(digits.shape, digits.classes)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    common.evaluate(model, digits.test, options.epochs)
    sys.exit()

# Before the first tensor. In a script of your own: tf.distribute.MultiWorkerMirroredStrategy()
strategy = common.make_strategy()
is_chief = common.is_chief(strategy)
digits = common.load(options.dataset, options.seed)
global_batch = options.global_batch or options.batch_size * strategy.num_replicas_in_sync
steps = options.steps_per_epoch or max(1, digits.examples // global_batch)

keras.utils.set_random_seed(options.seed)
keras.config.set_dtype_policy(options.precision)
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
with strategy.scope():
    model = build_model(digits.shape, digits.classes)
    optimizer = keras.optimizers.Adam(options.learning_rate * (global_batch / options.batch_size) ** 0.5)
    if options.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
steps_done = tf.Variable(0, dtype=tf.int64)


@tf.function
def train_step(batch):
    """Train on a global batch. Return its mean loss and accuracy."""

    def on_replica(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # Gradients are summed over the replicas, so each loss is its part of the global mean.
            loss = tf.nn.compute_average_loss(each_loss(labels, logits), global_batch_size=global_batch)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        hits = tf.cast(tf.argmax(logits, axis=1) == labels, tf.float32)
        return tf.stack([loss, tf.reduce_sum(hits) / global_batch])

    return strategy.reduce("SUM", strategy.run(on_replica, args=batch), axis=None)


@tf.function
def test_step(batch):
    """Return the sums of losses, hits and examples."""

    def on_replica(images, labels):
        logits = model(images, training=False)
        hits = tf.cast(tf.argmax(logits, axis=1) == labels, tf.float32)
        sums = tf.reduce_sum(each_loss(labels, logits)), tf.reduce_sum(hits), tf.size(hits)
        return tf.stack([tf.cast(one, tf.float32) for one in sums])

    return strategy.reduce("SUM", strategy.run(on_replica, args=batch), axis=None)


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, steps_done=steps_done)
if options.checkpoint == "preemption":
    # Restores. At SIGTERM all workers save at the same step and exit with 42; orch starts them again.
    run = tf.distribute.experimental.PreemptionCheckpointHandler(
        strategy.cluster_resolver, checkpoint, common.CHECKPOINTS
    ).run
else:
    checkpoint.restore(tf.train.latest_checkpoint(common.CHECKPOINTS))  # all workers read the same one
    manager = common.checkpoint_manager(strategy, checkpoint)
    run = None
writer = None
if is_chief and os.environ.get("ORCH_TENSORBOARD_DIR"):  # orch up --tensorboard
    writer = tf.summary.create_file_writer(os.environ["ORCH_TENSORBOARD_DIR"])

# The order follows from the seed: a resumed training continues with the very next batch.
start = int(steps_done)
batches = iter(strategy.experimental_distribute_dataset(digits.batches(global_batch, start)))
position = {"epochs": options.epochs, "steps": steps, "start_step": start, "global_batch": global_batch}
for epoch in range(start // steps + 1, options.epochs + 1):
    sums, first = tf.zeros(2), int(steps_done) % steps
    for step in range(first, steps):
        batch = next(batches)
        sums += run(train_step, batch) if run else train_step(batch)
        steps_done.assign_add(1)
        common.report(phase="training", epoch=epoch, step=step + 1, **position)
    loss, accuracy = (sums / (steps - first)).numpy()
    print(f"epoch {epoch}/{options.epochs}, loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    if writer is not None:
        with writer.as_default(step=epoch * steps):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("accuracy", accuracy)
    if run is None:
        manager.save(checkpoint_number=epoch)

# In equal batches, so that each replica has examples of the last one, too.
count = -(-len(digits.test[1]) // 1000)
held_out = tf.data.Dataset.from_tensor_slices(digits.test).batch(-(-len(digits.test[1]) // count))
held_out = strategy.experimental_distribute_dataset(held_out)
loss, hits, examples = sum(test_step(batch) for batch in held_out).numpy()
if is_chief:
    model.save(f"{common.CHECKPOINTS}/model.keras")
print(f"held-out accuracy {hits / examples:.4f}, loss {loss / examples:.4f}", flush=True)
