"""Trains by a loop of our own: a distributed train step on `strategy.run`, its losses scaled by the global batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from worker.training.distribution import distributed_batches
from worker.training.job import Job, Training
from worker.training.loops.iterator_hold import hold
from worker.training.precision import with_loss_scale


def train(training: Training) -> None:
    """Train from step `training.first_step` on."""
    job, watchers = training.job, training.watchers
    batches = distributed_batches(job, training.strategy, training.first_step)
    step = train_step(training, hold(iter(batches)), usual_global_batch(job))
    if training.around_step is not None:
        step = training.around_step(step)
    steps_before = training.done_steps
    for epoch in range(training.done + 1, job.options.epochs + 1):
        for watcher in watchers:
            watcher.epoch_began(epoch)
        # It stays on the device: reading it is waiting for the step, and at most steps nobody looks.
        totals = tf.zeros(3)
        for number in range(steps_before + 1, job.steps + 1):
            totals = totals + step()
            values = _means(totals, training.model.optimizer)
            for watcher in watchers:
                watcher.step_ended(number, values)
        steps_before = 0
        at_the_end = values()
        for watcher in watchers:
            watcher.epoch_ended(epoch, at_the_end)


def usual_global_batch(job: Job) -> int | None:
    """Examples in each global batch; None if they may be other than asked for, so that each has to be counted."""
    return None if job.short_last or job.global_batch % job.replicas else job.global_batch


def train_step(training: Training, batches: Any, global_batch: int | None) -> Callable[[], Any]:
    """A compiled function that trains on the next global batch of the iterator `batches` and gives, summed over all
    replicas, its losses, right answers and examples: float32 (3,), the same on every worker."""
    strategy, model, optimizer = training.strategy, training.model, training.model.optimizer
    each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def one_replica(images: Any, labels: Any) -> Any:
        examples = tf.cast(tf.shape(images)[0], tf.float32)
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = each_loss(labels, logits)
            # Gradients are summed over the replicas: the loss of each is its share of the global batch's mean.
            loss = tf.nn.compute_average_loss(losses, global_batch_size=_whole(global_batch, examples))
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


def _whole(global_batch: int | None, examples: Any) -> Any:
    """The examples of this step over all replicas, told by each where nobody knows them beforehand."""
    if global_batch is not None:
        return global_batch
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, examples)
    return tf.cast(total, tf.int32)


def _means(totals: Any, optimizer: Any) -> Callable[[], Mapping[str, float]]:
    """What reads the means that `totals` stands for, and the loss scale where there is one."""

    def values() -> Mapping[str, float]:
        loss, hits, examples = (float(total) for total in totals.numpy())
        return with_loss_scale({"accuracy": hits / examples, "loss": loss / examples}, optimizer)

    return values
