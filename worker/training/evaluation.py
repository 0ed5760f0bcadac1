"""The held-out evaluation: every worker takes its share, all get the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from worker.training.agreement import sum_over_workers
from worker.training.cluster import Place
from worker.training.datasets import Dataset

BATCH = 256


@dataclass(frozen=True)
class Evaluation:
    """Means over the held-out examples."""

    loss: float
    accuracy: float
    examples: int


def evaluate(model: Any, dataset: Dataset, place: Place, strategy: Any) -> Evaluation:
    """Loss and accuracy on the held-out part; every worker must call it."""
    images = dataset.test_images[place.rank :: place.workers]
    labels = dataset.test_labels[place.rank :: place.workers]

    def loss_and_hits(some: Any, expected: Any) -> tuple[Any, Any]:
        logits = model(some, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(expected, logits)
        hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), expected)
        return tf.reduce_sum(losses), tf.math.count_nonzero(hits)

    compiled = tf.function(loss_and_hits, reduce_retracing=True)
    loss = hits = 0.0
    for start in range(0, len(images), BATCH):
        one_loss, one_hits = compiled(
            tf.constant(images[start : start + BATCH]), tf.constant(labels[start : start + BATCH])
        )
        loss += float(one_loss)
        hits += float(one_hits)
    loss, hits, examples = sum_over_workers(strategy, place, [loss, hits, float(len(images))])
    return Evaluation(loss / examples, hits / examples, int(examples))
