"""Trains by Keras `fit`; its callbacks become the words that watchers understand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from worker.training.distribution import batches_for_fit
from worker.training.job import Job, Training
from worker.training.loops.iterator_hold import hold_iterators
from worker.training.precision import with_loss_scale


def train(training: Training) -> None:
    """Fit from step `training.first_step` on."""
    hold_iterators(training.model)
    build_from_form(training.model, training.job)
    if training.around_step is not None:
        training.model.train_function = training.around_step(training.model.train_function)
    done, steps, epochs = training.done, training.job.steps, training.job.options.epochs
    if training.done_steps:
        # Keras begins at an epoch: the rest of this one is an epoch of fewer steps.
        _fit(training, done, done + 1, training.first_step, steps - training.done_steps, training.done_steps)
        done += 1
    if done < epochs:
        _fit(training, done, epochs, done * steps, steps)


def _fit(
    training: Training, done: int, epochs: int, first_step: int, steps: int, steps_before: int = 0
) -> None:
    """Epochs from `done` to `epochs`, of `steps` each; of the first of them `steps_before` are done."""
    training.model.fit(
        batches_for_fit(training.job, training.strategy, first_step),
        epochs=epochs,
        initial_epoch=done,
        steps_per_epoch=steps,
        shuffle=False,
        callbacks=[_Telling(training, steps_before), *training.callbacks],
        verbose=0,
    )


def build_from_form(model: Any, job: Job) -> None:
    """Let Keras build from the form of a batch. It would take one, by an iterator that it then drops: the shuffling of
    records begins its next order at each iterator, and of parts that are not equal it takes a mean, which fails."""
    images = tf.TensorSpec((None, *job.dataset.image_shape), tf.float32)
    labels = tf.TensorSpec((None,), tf.int32)
    build = model._maybe_symbolic_build
    model._maybe_symbolic_build = lambda iterator=None, data_batch=None: build(data_batch=(images, labels))


class _Telling(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Keras counts epochs and batches from 0, watchers from 1."""

    def __init__(self, training: Training, steps_before: int) -> None:
        super().__init__()
        self._watchers = training.watchers
        self._steps_before = steps_before
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch = epoch + 1
        for watcher in self._watchers:
            watcher.epoch_began(self._epoch)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        # The values are at hand: Keras has already read them for its callbacks.
        for watcher in self._watchers:
            watcher.step_ended(self._steps_before + batch + 1, lambda: self._values(logs))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        for watcher in self._watchers:
            watcher.epoch_ended(self._epoch, self._values(logs))

    def _values(self, logs: Mapping[str, Any] | None) -> Mapping[str, float]:
        return with_loss_scale(logs or {}, self.model.optimizer)
