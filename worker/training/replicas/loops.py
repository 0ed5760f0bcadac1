"""The two loops: Keras `fit`, and a custom loop with a distributed train step on `strategy.run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from worker.training.job import Job, Training
from worker.training.network import add_loss_scale
from worker.training.replicas.distribution import (
    batches_for_fit,
    distributed_batches,
    keep_fit_iterators,
    keep_iterator,
)


def fit(training: Training) -> None:
    """Train by Keras `fit` from step `training.first_step` on."""
    keep_fit_iterators(training.model)
    _build_from_shape(training.model, training.job)
    if training.wrap_step is not None:
        training.model.train_function = training.wrap_step(training.model.train_function)
    done, steps, epochs = training.epochs_done, training.job.steps, training.job.options.epochs
    if training.steps_done:
        # Keras starts at an epoch, so the rest of this one is trained as a shorter epoch.
        _fit_epochs(
            training, done, done + 1, training.first_step, steps - training.steps_done, training.steps_done
        )
        done += 1
    if done < epochs:
        _fit_epochs(training, done, epochs, done * steps, steps)


def _fit_epochs(
    training: Training, done: int, epochs: int, first_step: int, steps: int, steps_before: int = 0
) -> None:
    """Train the epochs from `done` to `epochs`, of `steps` each; `steps_before` of the first are already done."""
    training.model.fit(
        batches_for_fit(training.job, training.strategy, first_step),
        epochs=epochs,
        initial_epoch=done,
        steps_per_epoch=steps,
        shuffle=False,
        callbacks=[_WatcherCallback(training, steps_before), *training.callbacks],
        verbose=0,
    )


def _build_from_shape(model: Any, job: Job) -> None:
    """Make Keras build the model from the shape of a batch instead of a real batch.

    For a batch Keras would create an iterator and drop it. Each iterator starts the next shuffled order of records.
    If the parts have different sizes, Keras also averages them, which fails.
    """
    images = tf.TensorSpec((None, *job.dataset.image_shape), tf.float32)
    labels = tf.TensorSpec((None,), tf.int32)
    build = model._maybe_symbolic_build
    model._maybe_symbolic_build = lambda iterator=None, data_batch=None: build(data_batch=(images, labels))


class _WatcherCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Calls the watchers. Keras counts epochs and batches from 0, watchers from 1."""

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
        # Keras has already read the values for its callbacks.
        for watcher in self._watchers:
            watcher.step_ended(self._steps_before + batch + 1, lambda: self._values(logs))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        for watcher in self._watchers:
            watcher.epoch_ended(self._epoch, self._values(logs))

    def _values(self, logs: Mapping[str, Any] | None) -> Mapping[str, float]:
        return add_loss_scale(logs or {}, self.model.optimizer)


def train_custom(training: Training) -> None:
    """Train by the custom loop from step `training.first_step` on."""
    job, watchers = training.job, training.watchers
    batches = distributed_batches(job, training.strategy, training.first_step)
    step = _make_train_step(training, keep_iterator(iter(batches)), _fixed_global_batch(job))
    if training.wrap_step is not None:
        step = training.wrap_step(step)
    steps_before = training.steps_done
    for epoch in range(training.epochs_done + 1, job.options.epochs + 1):
        for watcher in watchers:
            watcher.epoch_began(epoch)
        # Kept on the device, because reading it waits for the step, and most steps are not shown.
        totals = tf.zeros(3)
        for number in range(steps_before + 1, job.steps + 1):
            totals = totals + step()
            values = _make_reader(totals, training.model.optimizer)
            for watcher in watchers:
                watcher.step_ended(number, values)
        steps_before = 0
        final = values()
        for watcher in watchers:
            watcher.epoch_ended(epoch, final)


def _fixed_global_batch(job: Job) -> int | None:
    """Return the examples of each global batch; None if the batches differ, so that each has to be counted."""
    return None if job.short_last or job.global_batch % job.replicas else job.global_batch


def _make_train_step(training: Training, batches: Any, global_batch: int | None) -> Callable[[], Any]:
    """Return a compiled function that trains on the next global batch of the iterator `batches`.

    It returns the sums of losses, hits and examples over all replicas: float32 (3,), the same on every worker.
    """
    strategy, model, optimizer = training.strategy, training.model, training.model.optimizer
    each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def one_replica(images: Any, labels: Any) -> Any:
        examples = tf.cast(tf.shape(images)[0], tf.float32)
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = each_loss(labels, logits)
            # Gradients are summed over the replicas, so each loss is a share of the global batch's mean.
            loss = tf.nn.compute_average_loss(losses, global_batch_size=_count_batch(global_batch, examples))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        hits = tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=labels.dtype), labels), tf.float32)
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(hits), examples])

    def step() -> Any:
        sums = strategy.run(one_replica, args=next(batches))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    compiled: Callable[[], Any] = tf.function(step, autograph=False)
    return compiled


def _count_batch(global_batch: int | None, examples: Any) -> Any:
    """Return the examples of this step over all replicas; their sum if it is not fixed."""
    if global_batch is not None:
        return global_batch
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, examples)
    return tf.cast(total, tf.int32)


def _make_reader(totals: Any, optimizer: Any) -> Callable[[], Mapping[str, float]]:
    """Return a function that reads the means from `totals`, and the loss scale if there is one."""

    def read() -> Mapping[str, float]:
        loss, hits, examples = (float(total) for total in totals.numpy())
        return add_loss_scale({"accuracy": hits / examples, "loss": loss / examples}, optimizer)

    return read


LOOP_FUNCTIONS = {"fit": fit, "custom": train_custom}
