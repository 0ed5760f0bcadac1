"""Trains with a chief, workers and parameter servers by Keras fit, for which it needs Keras 2.

orch up --strategy parameter-server --workers 2 --ps 1                       # runs this file
orch example parameter-server-fit                 # writes it here, to edit
"""

import argparse
import os

import common
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--steps-per-epoch", type=int, help="default: one pass over the examples")
parser.add_argument("--batch-size", type=int, default=32, help="examples of one worker in a step")
parser.add_argument("--learning-rate", type=float, default=0.001)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--dataset", default="digits", help="digits, mnist, FILE.npz, DIR of TFRecord files")
options = parser.parse_args()
if common.is_evaluator():
    parser.error("an evaluator follows the checkpoints of parameter_server.py: --loop custom")

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
digits = common.load(options.dataset, options.seed)
steps = options.steps_per_epoch or max(1, digits.examples // options.batch_size)
tf.keras.utils.set_random_seed(options.seed)
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(digits.shape),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(digits.classes),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.legacy.Adam(options.learning_rate),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=5,  # one order to a worker for so many steps
    )


def dataset_fn(context):
    """Each worker reads all examples, in another order than the others."""
    data = common.load(options.dataset, options.seed).shuffled().repeat()
    return data.batch(context.get_per_replica_batch_size(options.batch_size))


callbacks = [tf.keras.callbacks.BackupAndRestore(os.path.join(common.CHECKPOINTS, "backup"))]
callbacks.append(
    tf.keras.callbacks.ModelCheckpoint(
        os.path.join(common.CHECKPOINTS, "weights-{epoch}"), save_weights_only=True
    )
)
if directory := os.environ.get("ORCH_TENSORBOARD_DIR"):  # orch up --tensorboard
    callbacks.append(tf.keras.callbacks.TensorBoard(directory))
model.fit(
    tf.keras.utils.experimental.DatasetCreator(dataset_fn),
    epochs=options.epochs,
    steps_per_epoch=steps,
    callbacks=callbacks,
)
images, labels = digits.test
accuracy = (model(images).numpy().argmax(axis=1) == labels).mean()
model.save(os.path.join(common.CHECKPOINTS, "model.keras"))
print(f"held-out accuracy {accuracy:.4f}", flush=True)
