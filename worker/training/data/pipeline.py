"""The training examples as a stream of batches whose order depends only on the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from worker.training.data.datasets import Dataset
from worker.training.data.records import Records, make_decoder

# Number of passes, more than any training makes.
_ENDLESS = 2**62
# Seeds are smaller, so that each pair of seed and stream has its own number.
_NEXT_STREAM = 2**31
# Records in the shuffle buffer, which a worker holds in memory.
SHUFFLED_RECORDS = 10_000
_OPEN_FILES = 16


@dataclass(frozen=True)
class BatchOrder:
    """The order of the examples in a stream, whose elements are batches of `batch`, from `first_step` on.

    A step takes `per_step` examples: more than `batch` if several elements make one step, fewer if several workers
    share an element, None if it takes one element. With `short_last` each pass ends with its own, smaller batch;
    otherwise a batch may start in one pass and end in the next. `passes` None: endless.
    """

    batch: int
    seed: int
    stream: int = 0
    first_step: int = 0
    per_step: int | None = None
    short_last: bool = False
    passes: int | None = None

    @property
    def first_example(self) -> int:
        return self.first_step * (self.batch if self.per_step is None else self.per_step)

    @property
    def key(self) -> int:
        return self.seed + self.stream * _NEXT_STREAM


def keyed_batches(dataset: Dataset, order: BatchOrder, files: slice = slice(None)) -> Any:
    """Return batches of keys, which `example_maker` turns into examples.

    Each pass over the examples is shuffled by (seed, stream, pass), and the passes follow each other without a gap.
    Batch n is therefore the same whether the stream started at step 0 or, after a resume, later.

    A key is (numbers,) of examples in memory, (numbers, serialized) of those in files. Numbers count from 0 and are
    int64. Only `files` are read.
    """
    if dataset.records is None:
        return _in_memory(dataset.examples, order)
    return _from_files(dataset.records, order, files)


def example_maker(dataset: Dataset) -> Callable[..., tuple[Any, Any]]:
    """Return a function from keys to images, float32 (n, height, width, channels), and labels, int32 (n,)."""
    if dataset.records is not None:
        decode = make_decoder(dataset.records.format)
        return lambda numbers, serialized: decode(serialized)
    images, labels = tf.constant(dataset.train_images), tf.constant(dataset.train_labels)
    return lambda numbers: (tf.gather(images, numbers), tf.gather(labels, numbers))


def take_numbers(numbers: Any, *_: Any) -> Any:
    """Return the examples' numbers of a batch of keys."""
    return numbers


def set_batch_size(examples: int) -> Callable[..., Any]:
    """Return a function that gives batches of keys their static size."""
    return lambda *keys: tuple(tf.ensure_shape(key, (examples, *key.shape[1:])) for key in keys)


def with_sharding(batches: Any, auto_shard: str) -> Any:
    """Return the data set with the policy by which a strategy shards it; its order is deterministic."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[
        auto_shard.upper()
    ]
    options.deterministic = True
    return batches.with_options(options)


def mark_endless(dataset: Any) -> Any:
    """Return the data set with infinite cardinality. Otherwise the workers check in each step that all have a batch."""
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def steps_per_epoch(examples: int, global_batch: int, asked: int | None, *, short_last: bool = False) -> int:
    """Return the steps that the user `asked` for, else the number of full global batches, at least one.

    With `short_last` a smaller last batch counts too.
    """
    if asked is not None:
        return asked
    return -(-examples // global_batch) if short_last else max(1, examples // global_batch)


def _in_memory(examples: int, order: BatchOrder) -> Any:
    def one_pass(number: Any) -> Any:
        numbers = tf.range(examples, dtype=tf.int64)
        chosen = tf.random.experimental.stateless_shuffle(
            numbers, tf.stack([tf.constant(order.key, tf.int64), number])
        )
        return tf.data.Dataset.from_tensor_slices((chosen,))

    if order.short_last:
        first_pass, first_batch = divmod(
            order.first_step, steps_per_epoch(examples, order.batch, None, short_last=True)
        )
        passes = tf.data.Dataset.range(first_pass, _last_pass(order, first_pass))
        batches = passes.flat_map(lambda number: one_pass(number).batch(order.batch)).skip(first_batch)
        return mark_endless(batches) if order.passes is None else batches
    first_pass, first_example = divmod(order.first_example, examples)
    passes = tf.data.Dataset.range(first_pass, _last_pass(order, first_pass))
    ordered = passes.flat_map(one_pass).skip(first_example)
    if order.passes is None:
        return mark_endless(ordered).batch(order.batch, drop_remainder=True)
    return ordered.batch(order.batch)


def _last_pass(order: BatchOrder, first: int) -> int:
    return _ENDLESS if order.passes is None else first + order.passes


def _from_files(records: Records, order: BatchOrder, files: slice) -> Any:
    """Read the records in shuffled order. TensorFlow shards files only where names become records, so the passes are
    repeated after that; the seed gives each repetition its own order."""
    names = [str(path) for path in records.files][files]
    firsts = np.cumsum([0, *records.counts[:-1]], dtype=np.int64)[files]

    def records_of(name: Any, first: Any) -> Any:
        return tf.data.TFRecordDataset(name).enumerate(first)

    ordered = (
        tf.data.Dataset.from_tensor_slices((names, firsts))
        .interleave(records_of, cycle_length=min(len(names), _OPEN_FILES), block_length=1)
        .shuffle(SHUFFLED_RECORDS, seed=order.key, reshuffle_each_iteration=True)
    )
    if order.short_last:
        return ordered.batch(order.batch).repeat(order.passes).skip(order.first_step)
    if order.passes is None:
        return ordered.repeat().skip(order.first_example).batch(order.batch, drop_remainder=True)
    return ordered.repeat(order.passes).skip(order.first_example).batch(order.batch)


def split_for_pipeline(batches: Any, *, pipeline: int, pipelines: int, replicas: int) -> Any:
    """Return, for each global batch, one element per replica that `pipeline` feeds.

    The rows are split into one part per replica, with sizes that differ by one at most. Like TensorFlow, the pipelines
    take the parts in turn.
    """

    def rows(keys: Sequence[Any], replica: Any) -> tuple[Any, ...]:
        size = tf.shape(keys[0], tf.int64)[0]
        start = replica * (size // replicas) + tf.minimum(replica, size % replicas)
        stop = start + size // replicas + tf.cast(replica < size % replicas, tf.int64)
        return tuple(key[start:stop] for key in keys)

    def parts(*keys: Any) -> Any:
        own = tf.data.Dataset.range(pipeline, replicas, pipelines)
        return own.map(lambda replica: rows(keys, replica))

    split = batches.flat_map(parts)
    return mark_endless(split) if int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY else split
