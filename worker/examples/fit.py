"""Trains a small network on handwritten digits with Keras fit, on several workers.

orch up --workers 4                               # runs this file
orch up --workers 2 --evaluator                   # and a task that evaluates each checkpoint
orch up --strategy mirrored --replicas 2          # another strategy: see make_strategy in common.py
orch example fit                                  # writes it here, to edit: orch up --workers 4 -- fit.py
"""

import argparse
import os

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
parser.add_argument("--checkpoint", default="manager", choices=["manager", "backup"])
options = parser.parse_args()


def build_model(shape, classes, learning_rate=0.001):
    model = keras.Sequential(
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
    # Under mixed_float16, compile adds the scaling of the loss.
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train():
    # Before the first tensor. In a script of your own: tf.distribute.MultiWorkerMirroredStrategy()
    strategy = common.make_strategy()
    digits = common.load(options.dataset, options.seed)
    global_batch = options.global_batch or options.batch_size * strategy.num_replicas_in_sync
    steps = options.steps_per_epoch or max(1, digits.examples // global_batch)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.precision)
    with strategy.scope():
        rate = options.learning_rate * (global_batch / options.batch_size) ** 0.5
        model = build_model(digits.shape, digits.classes, rate)
        model.optimizer.build(model.trainable_variables)
    epochs_done = tf.Variable(0, dtype=tf.int64)

    callbacks = []
    if options.checkpoint == "manager":
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=epochs_done)
        checkpoint.restore(tf.train.latest_checkpoint(common.CHECKPOINTS))  # all workers read the same one
        manager = common.checkpoint_manager(strategy, checkpoint)

        def save(epoch, logs):
            epochs_done.assign(epoch + 1)
            manager.save(checkpoint_number=epoch + 1)

        callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=save))
    else:
        # Keras's own way, in one line. Under orch the chief writes it, and all workers continue from it.
        path = f"{common.CHECKPOINTS}/backup"
        callbacks.append(keras.callbacks.BackupAndRestore(path, delete_checkpoint=False))
    if directory := os.environ.get("ORCH_TENSORBOARD_DIR"):  # orch up --tensorboard
        callbacks.append(keras.callbacks.TensorBoard(directory))

    # The order follows from the seed: a resumed training continues with the very next batch.
    done = int(epochs_done)
    common.report(global_batch=global_batch)  # steps and losses of fit are known to orch
    model.fit(
        digits.batches(global_batch, done * steps),
        epochs=options.epochs,
        initial_epoch=done,
        steps_per_epoch=steps,
        callbacks=callbacks,
    )
    loss, accuracy = model.evaluate(*digits.test, batch_size=global_batch, verbose=0)
    if common.is_chief(strategy):
        model.save(f"{common.CHECKPOINTS}/model.keras")
    print(f"held-out accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True)


if common.is_evaluator():
    if options.checkpoint != "manager":
        parser.error("an evaluator follows the checkpoints of --checkpoint manager")
    data = common.load(options.dataset, options.seed)
    common.evaluate(build_model(data.shape, data.classes), data.test, options.epochs)
else:
    train()
