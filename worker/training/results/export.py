"""Exports the trained model as a Keras file and as a SavedModel."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker.training.job import Job
from worker.training.network import keras
from worker.training.process.environment import is_legacy_keras
from worker.training.process.progress import ProgressChannel

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
