"""The held-out evaluation by the workers: each test step puts its numbers into a place of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from worker.training.datasets import Dataset
from worker.training.evaluation import Evaluation
from worker.training.parameter_server.examples import on_each_worker
from worker.training.parameter_server.variables import uncut

# Small, so that several workers have something to do.
BATCH = 64


def evaluate(model: Any, dataset: Dataset, strategy: Any, coordinator: Any) -> Evaluation:
    """Loss and accuracy on the held-out part.

    A test step that a lost worker leaves is done again and writes the same numbers to the same place: each example
    counts once.
    """
    count = len(dataset.test_images)
    begins = range(0, count, BATCH)
    sums = uncut(tf.zeros([len(begins), 2]))

    def one_replica(images: Any, labels: Any) -> tuple[Any, Any]:
        logits = tf.cast(model(images, training=False), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        return tf.reduce_sum(losses), tf.reduce_sum(tf.cast(hits, tf.float32))

    def step(examples: Any, place: Any, chosen: Any) -> None:
        images, labels = examples.get_next()
        losses, hits = strategy.run(one_replica, args=(tf.gather(images, chosen), tf.gather(labels, chosen)))
        both = tf.stack([strategy.reduce("SUM", losses, axis=None), strategy.reduce("SUM", hits, axis=None)])
        sums.scatter_nd_update([[place]], [both])

    compiled = tf.function(step, autograph=False, reduce_retracing=True)
    examples = on_each_worker(coordinator, dataset.test_images, dataset.test_labels)
    for place, begin in enumerate(begins):
        chosen = np.arange(begin, min(begin + BATCH, count), dtype=np.int64)
        coordinator.schedule(compiled, args=(examples, tf.constant(place), tf.constant(chosen)))
    coordinator.join()
    loss, hits = sums.numpy().sum(axis=0)
    return Evaluation(float(loss) / count, float(hits) / count, count)
