"""The held-out evaluation, in which every replica has its share, and the export of the trained model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker.training.data.datasets import Dataset
from worker.training.job import Job
from worker.training.network import keras
from worker.training.process.environment import is_legacy_keras
from worker.training.process.output import counted
from worker.training.process.progress import ProgressChannel

# Examples per replica and step, at most.
BATCH = 256


@dataclass(frozen=True)
class Evaluation:
    """Means over the held-out examples."""

    loss: float
    accuracy: float
    examples: int


def evaluate(
    model: Any, dataset: Dataset, strategy: Any, step: Callable[..., Any] | None = None
) -> Evaluation:
    """Return loss and accuracy on the held-out part; every worker must call it.

    `step` is the model's `make_test_step`; pass it to evaluate repeatedly without compiling again. Each example counts
    once: the shares have one size, and the padding of the last ones has weight 0.
    """
    examples, replicas = len(dataset.test_images), strategy.num_replicas_in_sync
    rows = min(BATCH, -(-examples // replicas))
    step = step or make_test_step(model, strategy)
    totals = np.zeros(3)
    for first in range(0, examples, rows * replicas):
        images, labels, weights = (
            strategy.experimental_distribute_values_from_function(_share(values, first, rows))
            for values in (dataset.test_images, dataset.test_labels, np.ones(examples, np.float32))
        )
        totals += step(images, labels, weights).numpy()
    loss, hits, seen = totals
    return Evaluation(float(loss / seen), float(hits / seen), round(seen))


def print_evaluation(result: Evaluation) -> None:
    on = counted(result.examples, "example")
    print(f"held-out accuracy {result.accuracy:.4f}, loss {result.loss:.4f}, on {on}")


def make_test_step(model: Any, strategy: Any) -> Callable[..., Any]:
    """Return a compiled function from each replica's share to the sums of loss, hits and examples, float32 (3,)."""

    def one_replica(images: Any, labels: Any, weights: Any) -> Any:
        logits = model(images, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        hits = tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32)
        return tf.stack([tf.reduce_sum(part * weights) for part in (losses, hits, tf.ones_like(losses))])

    def step(images: Any, labels: Any, weights: Any) -> Any:
        sums = strategy.run(one_replica, args=(images, labels, weights))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    compiled: Callable[..., Any] = tf.function(step, autograph=False)
    return compiled


def _share(values: Any, first: int, rows: int) -> Callable[[Any], Any]:
    """Return a function from a replica's context to its `rows` of the values from `first` on, padded with zeros."""

    def share(context: Any) -> Any:
        start = first + context.replica_id_in_sync_group * rows
        part = values[start : start + rows]
        return tf.constant(np.concatenate([part, np.zeros((rows - len(part), *part.shape[1:]), part.dtype)]))

    return share


# -- the exported model

MODEL_FILE = "model.keras"
SAVED_MODEL = "export"
INPUT = "images"


def export(job: Job, model: Any, progress: ProgressChannel) -> None:
    """Write what `--export` asks for. Every worker must call it; only the chief writes."""
    # Reading a value that is summed over replicas needs all of them.
    weights = [np.asarray(weight) for weight in model.get_weights()]
    if job.place.is_chief:
        write_exports(job, model, weights, progress)


def write_exports(job: Job, model: Any, weights: list[Any], progress: ProgressChannel) -> None:
    """Write `model`, which has these weights, as `--export` asks for. Only the chief calls it."""
    wanted = job.options.export
    if wanted == "none":
        return
    progress.phase("saving")
    directory = job.options.checkpoint_dir
    directory.mkdir(parents=True, exist_ok=True)
    if wanted in ("both", "keras"):
        beside = directory / f".{os.getpid()}.{MODEL_FILE}"
        model.save(beside)
        print(f"model written to {beside.replace(directory / MODEL_FILE)}")
    if wanted in ("both", "savedmodel"):
        print(f"SavedModel written to {save_for_serving(model, weights, directory)}")


def save_for_serving(model: Any, weights: list[Any], directory: Path) -> Path:
    """Write the model with `weights` as the SavedModel `export/`, replacing it atomically; return its path.

    `serve` and the signature `serving_default` take images, float32 (n, height, width, channels), and return logits
    (n, classes). A copy outside the strategy's scope is written: its variables are on one device, so that any single
    process can load it.
    """
    path = directory / SAVED_MODEL
    beside = directory / f".{os.getpid()}.{SAVED_MODEL}"
    old = directory / f".{os.getpid()}.gone.{SAVED_MODEL}"
    copy = keras.models.clone_model(model)
    copy.set_weights(weights)
    images = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32, name=INPUT)
    if not is_legacy_keras(os.environ):
        copy.export(beside, format="tf_saved_model", verbose=False, input_signature=[images])
    else:
        # The export of tf_keras does not let us name the inputs.
        copy.serve = tf.function(lambda images: copy(images, training=False), input_signature=[images])
        tf.saved_model.save(copy, str(beside), signatures={"serving_default": copy.serve})
    # A directory cannot replace one that is not empty.
    if path.exists():
        path.replace(old)
    beside.replace(path)
    shutil.rmtree(old, ignore_errors=True)
    return path
