"""A loop of our own over the workers: the chief schedules steps, whichever worker is free takes the next one."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from worker.training.job import Training
from worker.training.parameter_server.examples import chosen_examples, on_each_worker
from worker.training.parameter_server.variables import count_atomically, trained_variables, uncut

# Steps that are under way or wait for a worker, of each worker: enough that none has to wait for the chief.
STEPS_AHEAD = 4


def train(training: Training, coordinator: Any, workers: int) -> None:
    """Train from step `training.first_step` on.

    A step whose worker is lost is done again by another: each example of a pass is trained on once, or once more where
    the lost worker had sent some of that step's updates.
    """
    job = training.job
    totals = Totals()
    count_atomically(training.model.optimizer)
    step = _training_step(training, totals)
    examples = on_each_worker(coordinator, job.dataset.train_images, job.dataset.train_labels)
    chosen = chosen_examples(job, training.first_step)
    steps_before = training.done_steps
    for epoch in range(training.done + 1, job.options.epochs + 1):
        totals.clear()
        for watcher in training.watchers:
            watcher.epoch_began(epoch)
        batches = itertools.islice(chosen, job.steps - steps_before)
        calls = (_scheduling(coordinator, step, examples, batch) for batch in batches)
        for number, _ in enumerate(_in_order(calls, STEPS_AHEAD * workers), steps_before + 1):
            for watcher in training.watchers:
                watcher.step_ended(number, totals.means)
        coordinator.join()
        steps_before = 0
        for watcher in training.watchers:
            watcher.epoch_ended(epoch, totals.means())


class Totals:
    """What the workers' steps add up to since the epoch began, in one variable on a parameter server."""

    def __init__(self) -> None:
        # Loss and hits, both over the examples, and how many examples there were.
        self._sums = uncut([0.0, 0.0, 0.0])

    def clear(self) -> None:
        self._sums.assign([0.0, 0.0, 0.0])

    def add(self, loss: Any, hits: Any, examples: Any) -> None:
        self._sums.assign_add(tf.stack([tf.cast(one, tf.float32) for one in (loss, hits, examples)]))

    def means(self) -> Mapping[str, float]:
        loss, hits, examples = (float(one) for one in self._sums.numpy())
        return {"loss": loss / max(1.0, examples), "accuracy": hits / max(1.0, examples)}


def _training_step(training: Training, totals: Totals) -> Any:
    model, strategy = training.model, training.strategy
    optimizer, weights = model.optimizer, trained_variables(model)
    sources = [weight if isinstance(weight, tf.Variable) else weight.value for weight in weights]

    def one_replica(images: Any, labels: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
            # Of one replica, whose batch is the global one.
            loss = tf.nn.compute_average_loss(losses, global_batch_size=tf.size(labels))
        gradients = tape.gradient(loss, sources)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        return tf.reduce_sum(losses), tf.math.count_nonzero(hits)

    def step(examples: Any, chosen: Any) -> None:
        images, labels = examples.get_next()
        losses, hits = strategy.run(one_replica, args=(tf.gather(images, chosen), tf.gather(labels, chosen)))
        total = strategy.reduce("SUM", losses, axis=None), strategy.reduce("SUM", hits, axis=None)
        totals.add(*total, tf.size(chosen))

    return tf.function(step, autograph=False, reduce_retracing=True)


def _scheduling(coordinator: Any, step: Any, *arguments: Any) -> Callable[[], Any]:
    return lambda: coordinator.schedule(step, args=arguments)


def _in_order(calls: Iterator[Callable[[], Any]], ahead: int) -> Iterator[None]:
    """Make the calls, at most `ahead` unfinished ones at a time; a None for each that has finished, in their order.

    Their results are None: one that had to be fetched would be lost with its worker.
    """
    waiting: deque[Any] = deque()
    for call in calls:
        waiting.append(call())
        if len(waiting) >= ahead:
            yield waiting.popleft().get()
    while waiting:
        yield waiting.popleft().get()
