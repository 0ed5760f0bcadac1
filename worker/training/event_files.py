"""TensorBoard's event files: the figures of each epoch, and of the held-out examples, as scalars."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from worker.training.evaluation import Evaluation
from worker.training.job import Job

TRAINING = "train"
HELD_OUT = "held_out"


class EventFiles:
    """A watcher that writes `<directory>/train` at the end of each epoch, and `<directory>/held_out` at the end.

    Tags: loss, accuracy and what else the loop measures, learning_rate, loss_scale (mixed_float16), steps_per_s. They
    stand at the number of optimizer steps done, over all runs of this training. `more` gives figures besides those that
    the loop tells, at the end of an epoch.
    """

    def __init__(self, job: Job, directory: Path, more: Callable[[], Mapping[str, float]]) -> None:
        self._directory = directory
        self._job = job
        self._more = more
        self._training = _writer(directory / TRAINING)
        self._first_step_end = 0.0
        self._steps = 0

    def epoch_began(self, epoch: int) -> None:
        self._steps = 0

    def step_ended(self, step: int, values: Callable[[], Mapping[str, float]]) -> None:
        if self._steps == 0:
            self._first_step_end = time.monotonic()
        self._steps += 1

    def epoch_ended(self, epoch: int, values: Mapping[str, float]) -> None:
        figures = {**self._more(), **values}
        if self._steps > 1:
            # Not the first: that of a run compiles.
            figures["steps_per_s"] = (self._steps - 1) / (time.monotonic() - self._first_step_end)
        _write(self._training, figures, epoch * self._job.steps)

    def evaluated(self, result: Evaluation) -> None:
        writer = _writer(self._directory / HELD_OUT)
        step = self._job.options.epochs * self._job.steps
        _write(writer, {"loss": result.loss, "accuracy": result.accuracy}, step)
        writer.close()
        self._training.close()


def optimizer_figures(optimizer: Any) -> dict[str, float]:
    """The learning rate of the next step."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return {"learning_rate": float(np.asarray(keras.ops.convert_to_numpy(inner.learning_rate)))}


def _writer(directory: Path) -> Any:
    return tf.summary.create_file_writer(str(directory))


def _write(writer: Any, figures: Mapping[str, float], step: int) -> None:
    # tf.summary.scalar wants the tensorboard package, which TensorFlow does not bring; this is what it writes.
    with writer.as_default(step):
        for name, value in figures.items():
            tf.summary.write(name, tf.constant(float(value), tf.float32), metadata=_scalar(name))
    writer.flush()


def _scalar(name: str) -> Any:
    kind = tf.compat.v1.SummaryMetadata
    metadata = kind(display_name=name, plugin_data=kind.PluginData(plugin_name="scalars"))
    metadata.data_class = 1  # DATA_CLASS_SCALAR
    return metadata
