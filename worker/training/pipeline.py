"""The training examples as an endless, shuffled tf.data pipeline of global batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from worker.training.datasets import Dataset

POLICIES = {
    "data": tf.data.experimental.AutoShardPolicy.DATA,
    "off": tf.data.experimental.AutoShardPolicy.OFF,
    "auto": tf.data.experimental.AutoShardPolicy.AUTO,
}


def training_batches(dataset: Dataset, *, global_batch: int, auto_shard: str, seed: int) -> Any:
    """Endless (images, labels) global batches; the strategy gives each worker its share of each."""
    examples = len(dataset.train_images)
    batches = (
        tf.data.Dataset.from_tensor_slices((dataset.train_images, dataset.train_labels))
        .shuffle(examples, seed=seed, reshuffle_each_iteration=True)
        .repeat()
        .batch(global_batch, drop_remainder=True)
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = POLICIES[auto_shard]
    options.deterministic = True
    return batches.with_options(options)


def steps_per_epoch(examples: int, global_batch: int, asked: int | None) -> int:
    """What the user asked for, else as many global batches as the examples fill, at least one."""
    return asked if asked is not None else max(1, examples // global_batch)
