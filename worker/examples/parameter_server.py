"""Trains with a chief, workers and parameter servers, by an own loop.

orch up --strategy parameter-server --workers 2 --ps 1 -- --loop custom      # runs this file
orch up --workers 2 --ps 1 --evaluator -- --loop custom                       # and evaluates each checkpoint
orch example parameter-server                     # writes it here, to edit
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
parser.add_argument("--batch-size", type=int, default=32, help="examples of one worker in a step")
parser.add_argument("--learning-rate", type=float, default=0.001)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--dataset", default="digits", help="digits, mnist, FILE.npz, DIR of TFRecord files")
options = parser.parse_args()


def build_model(shape, classes):
    return keras.Sequential(
        [
            keras.layers.Input(shape),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )


resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()

digits = common.load(options.dataset, options.seed)
if common.is_evaluator():
    model = build_model(digits.shape, digits.classes)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    common.evaluate(model, digits.test, options.epochs)
    sys.exit()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
steps = options.steps_per_epoch or max(1, digits.examples // options.batch_size)
keras.utils.set_random_seed(options.seed)
with strategy.scope():
    model = build_model(digits.shape, digits.classes)
    optimizer = keras.optimizers.Adam(options.learning_rate)
    optimizer.build(model.trainable_variables)
    each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
epochs_done = tf.Variable(0, dtype=tf.int64)


def dataset_fn():
    """Each worker reads all examples, in another order than the others."""
    return common.load(options.dataset, options.seed).shuffled().repeat().batch(options.batch_size)


@tf.function
def train_step(iterator):
    def on_replica(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(each_loss(labels, model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(on_replica, args=next(iterator)), axis=None)


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epochs_done)
checkpoint.restore(tf.train.latest_checkpoint(common.CHECKPOINTS))
manager = tf.train.CheckpointManager(checkpoint, common.CHECKPOINTS, max_to_keep=3)
writer = None
if directory := os.environ.get("ORCH_TENSORBOARD_DIR"):  # orch up --tensorboard
    writer = tf.summary.create_file_writer(directory)
iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
for epoch in range(int(epochs_done) + 1, options.epochs + 1):
    # The coordinator gives a step of a lost worker to another one.
    losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(steps)]
    coordinator.join()
    loss = sum(one.fetch() for one in losses) / steps
    common.report(phase="training", epoch=epoch, epochs=options.epochs, step=steps, steps=steps)
    print(f"epoch {epoch}/{options.epochs}, loss {loss:.4f}", flush=True)
    if writer is not None:
        with writer.as_default(step=epoch * steps):
            tf.summary.scalar("loss", loss)
    epochs_done.assign(epoch)
    manager.save(checkpoint_number=epoch)

images, labels = digits.test
accuracy = (model(images).numpy().argmax(axis=1) == labels).mean()
model.save(f"{common.CHECKPOINTS}/model.keras")
print(f"held-out accuracy {accuracy:.4f}", flush=True)
