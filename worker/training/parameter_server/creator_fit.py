"""Trains by the `fit` of tf_keras, whose DatasetCreator gives each worker a stream of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from worker.training.job import Training
from worker.training.which_keras import load_keras

# A worker takes so many steps at a time where an epoch has enough: each time costs a round through the chief.
MOST_STEPS_AT_ONCE = 8


def train(training: Training) -> None:
    """Fit from epoch `training.done` on.

    Each worker walks all examples in a random order of its own, and an epoch is so many steps of whichever workers: how
    often an epoch takes an example is a matter of chance.
    """
    job, keras = training.job, load_keras()
    images, labels = tf.constant(job.dataset.train_images), tf.constant(job.dataset.train_labels)

    def stream(context: Any) -> Any:
        # Evaluated where it runs: a seed of the program's would give all workers the same order.
        seed = tf.cast(tf.timestamp() * 1e6, tf.int64)
        examples = tf.data.Dataset.from_tensor_slices((images, labels))
        return examples.shuffle(len(job.dataset.train_images), seed=seed).repeat().batch(job.global_batch)

    training.model.fit(
        keras.utils.experimental.DatasetCreator(stream),
        epochs=job.options.epochs,
        initial_epoch=training.done,
        steps_per_epoch=job.steps,
        callbacks=[telling(keras, training)],
        verbose=0,
    )


def steps_at_once(steps: int, workers: int) -> int:
    """The most steps a call of a worker's, so that the workers share an epoch evenly and no step is left over."""
    fitting = range(MOST_STEPS_AT_ONCE, 0, -1)
    return next(many for many in fitting if many == 1 or (steps % many == 0 and steps // many >= 2 * workers))


def telling(keras: Any, training: Training) -> Any:
    """A callback that tells the watchers of epochs: under parameter servers fit has no word for the end of a step."""

    class Telling(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            for watcher in training.watchers:
                watcher.epoch_began(epoch + 1)

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            for watcher in training.watchers:
                watcher.epoch_ended(epoch + 1, {name: float(value) for name, value in (logs or {}).items()})

    return Telling()
