"""The training examples as a stream of global batches whose order is a function of the step alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from worker.training.datasets import Dataset
from worker.training.records import Records, decoder

POLICIES = {
    "data": tf.data.experimental.AutoShardPolicy.DATA,
    "file": tf.data.experimental.AutoShardPolicy.FILE,
    "off": tf.data.experimental.AutoShardPolicy.OFF,
    "auto": tf.data.experimental.AutoShardPolicy.AUTO,
}
# More passes than any training has.
_ENDLESS = 2**62
# Seeds are below it: another stream of the same seed is another number.
_NEXT_STREAM = 2**31
# Records are shuffled within so many: what a worker holds in memory of the files.
SHUFFLED_RECORDS = 10_000
_OPEN_FILES = 16


@dataclass(frozen=True)
class Course:
    """Which examples come in which order: the elements of a stream are batches of `batch`, from `first_step` on.

    A step takes `a_step` of the examples: more than `batch` where several elements make one step, less where several
    workers share an element; None: as many as `batch`. With `short_last` each pass ends with its own, smaller batch;
    otherwise a batch may begin in one pass and end in the next. `passes` None: endless.
    """

    batch: int
    seed: int
    stream: int = 0
    first_step: int = 0
    a_step: int | None = None
    short_last: bool = False
    passes: int | None = None

    @property
    def first_example(self) -> int:
        return self.first_step * (self.batch if self.a_step is None else self.a_step)

    @property
    def key(self) -> int:
        return self.seed + self.stream * _NEXT_STREAM


def training_batches(
    dataset: Dataset, *, global_batch: int, auto_shard: str, seed: int, stream: int = 0, first_step: int = 0
) -> Any:
    """Endless (images, labels) global batches; the strategy gives each worker its share of each.

    Each pass over the examples is shuffled by (`seed`, `stream`, pass), and one follows the other without a gap. So
    batch n is the same whether the stream began at step 0 or, after a resume, at `first_step`.
    """
    course = Course(global_batch, seed, stream, first_step)
    return shared_out(keyed_batches(dataset, course).map(examples_of(dataset)), auto_shard)


def keyed_batches(dataset: Dataset, course: Course, files: slice = slice(None)) -> Any:
    """Batches of keys, what an example is known by until it is made: (numbers,) of examples in memory,
    (numbers, serialized) of those in files. Numbers count from 0 and are int64. `files`: which of them are read."""
    if dataset.records is None:
        return _in_memory(dataset.examples, course)
    return _from_files(dataset.records, course, files)


def examples_of(dataset: Dataset) -> Callable[..., tuple[Any, Any]]:
    """What makes a batch of keys (images, labels): float32 (n, height, width, channels), int32 (n,)."""
    if dataset.records is not None:
        decode = decoder(dataset.records.format)
        return lambda numbers, serialized: decode(serialized)
    images, labels = tf.constant(dataset.train_images), tf.constant(dataset.train_labels)
    return lambda numbers: (tf.gather(images, numbers), tf.gather(labels, numbers))


def numbers_of(numbers: Any, *_: Any) -> Any:
    """What makes a batch of keys the examples' numbers."""
    return numbers


def of_size(examples: int) -> Callable[..., Any]:
    """What lets tf.data know that all batches of keys have so many."""
    return lambda *keys: tuple(tf.ensure_shape(key, (examples, *key.shape[1:])) for key in keys)


def shared_out(batches: Any, auto_shard: str) -> Any:
    """The same, telling a strategy how workers share it."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = POLICIES[auto_shard]
    options.deterministic = True
    return batches.with_options(options)


def endless(dataset: Any) -> Any:
    """The same; that it never ends saves each step the question whether all workers have a batch."""
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def steps_per_epoch(examples: int, global_batch: int, asked: int | None, *, short_last: bool = False) -> int:
    """What the user asked for, else as many global batches as the examples fill, at least one; with a short last
    batch as many as hold them all."""
    if asked is not None:
        return asked
    return -(-examples // global_batch) if short_last else max(1, examples // global_batch)


def _in_memory(examples: int, course: Course) -> Any:
    def order(number: Any) -> Any:
        numbers = tf.range(examples, dtype=tf.int64)
        chosen = tf.random.experimental.stateless_shuffle(
            numbers, tf.stack([tf.constant(course.key, tf.int64), number])
        )
        return tf.data.Dataset.from_tensor_slices((chosen,))

    if course.short_last:
        first_pass, first_batch = divmod(
            course.first_step, steps_per_epoch(examples, course.batch, None, short_last=True)
        )
        passes = tf.data.Dataset.range(first_pass, _last_pass(course, first_pass))
        batches = passes.flat_map(lambda number: order(number).batch(course.batch)).skip(first_batch)
        return endless(batches) if course.passes is None else batches
    first_pass, first_example = divmod(course.first_example, examples)
    passes = tf.data.Dataset.range(first_pass, _last_pass(course, first_pass))
    ordered = passes.flat_map(order).skip(first_example)
    if course.passes is None:
        return endless(ordered).batch(course.batch, drop_remainder=True)
    return ordered.batch(course.batch)


def _last_pass(course: Course, first: int) -> int:
    return _ENDLESS if course.passes is None else first + course.passes


def _from_files(records: Records, course: Course, files: slice) -> Any:
    """As TensorFlow shares files out only where names become records, passes are repeated after that: by the seed,
    each repetition is shuffled in its own order."""
    names = [str(path) for path in records.files][files]
    firsts = np.cumsum([0, *records.counts[:-1]], dtype=np.int64)[files]

    def records_of(name: Any, first: Any) -> Any:
        return tf.data.TFRecordDataset(name).enumerate(first)

    ordered = (
        tf.data.Dataset.from_tensor_slices((names, firsts))
        .interleave(records_of, cycle_length=min(len(names), _OPEN_FILES), block_length=1)
        .shuffle(SHUFFLED_RECORDS, seed=course.key, reshuffle_each_iteration=True)
    )
    if course.short_last:
        return ordered.batch(course.batch).repeat(course.passes).skip(course.first_step)
    if course.passes is None:
        return ordered.repeat().skip(course.first_example).batch(course.batch, drop_remainder=True)
    return ordered.repeat(course.passes).skip(course.first_example).batch(course.batch)


def rows_of_pipeline(batches: Any, *, pipeline: int, pipelines: int, replicas: int) -> Any:
    """Of each global batch, one element for each replica that `pipeline` feeds. The rows are cut into as many parts as
    there are replicas, their sizes differing by one at most, and dealt out to the pipelines in turn, as TensorFlow
    deals the parts it cuts."""

    def rows(keys: Sequence[Any], replica: Any) -> tuple[Any, ...]:
        size = tf.shape(keys[0], tf.int64)[0]
        start = replica * (size // replicas) + tf.minimum(replica, size % replicas)
        stop = start + size // replicas + tf.cast(replica < size % replicas, tf.int64)
        return tuple(key[start:stop] for key in keys)

    def parts(*keys: Any) -> Any:
        mine = tf.data.Dataset.range(pipeline, replicas, pipelines)
        return mine.map(lambda replica: rows(keys, replica))

    found = batches.flat_map(parts)
    return endless(found) if int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY else found
