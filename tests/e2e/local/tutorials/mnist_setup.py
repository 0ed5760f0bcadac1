"""Data, model and files of the TensorFlow documentation's tutorials on several workers, as in their `mnist_setup.py`.

Instead of a download the digits come from the .npz file that DIGITS names (`images` n x 8 x 8 of 0..16, `labels`).
With the same SEED two runs have the same random numbers.
"""

# The style is that of the documentation.
# ruff: noqa: PTH118, PTH119, PTH120

import os

import numpy as np
import tensorflow as tf

if "SEED" in os.environ:
    tf.keras.utils.set_random_seed(int(os.environ["SEED"]))


def digits():
    with np.load(os.environ["DIGITS"]) as arrays:
        x_train, y_train = arrays["images"], arrays["labels"]
    # The pixels are small integers; the model takes floats from 0 to 1.
    x_train = (x_train / np.float32(16)).astype(np.float32)
    y_train = y_train.astype(np.int64)
    # Repeated, because the steps of the tutorials need more examples.
    return tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(60000).repeat()


def mnist_dataset(batch_size):
    return digits().batch(batch_size)


def dataset_fn(global_batch_size, input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    dataset = digits()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size)


def build_cnn_model():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            *(tf.keras.Input(shape=(8, 8)), layers.Reshape(target_shape=(8, 8, 1))),
            *(layers.Conv2D(32, 3, activation="relu"), layers.Flatten()),
            *(layers.Dense(128, activation="relu"), layers.Dense(10)),
        ]
    )


def build_and_compile_cnn_model():
    model = build_cnn_model()
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model


def is_chief(task_type, task_id, cluster_spec):
    return (
        task_type is None
        or task_type == "chief"
        or (task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict())
    )


def write_filepath(filepath, task_type, task_id, cluster_spec):
    """The place for the chief's file; other workers have to write, too, and get one that they remove."""
    if is_chief(task_type, task_id, cluster_spec):
        return filepath
    temp_dir = os.path.join(os.path.dirname(filepath), f"workertemp_{task_id}")
    tf.io.gfile.makedirs(temp_dir)
    return os.path.join(temp_dir, os.path.basename(filepath))
