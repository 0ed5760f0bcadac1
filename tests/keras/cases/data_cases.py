"""Cases: the sources of data, and what fit takes beside it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import (
    BATCH,
    EXAMPLES,
    FEATURES,
    UNEVEN,
    Place,
    Values,
    compiled,
    data,
    dense,
    fit,
    labels,
    mlp,
    numbers,
    outcome,
    predicted,
    scores,
    sequential,
    topic,
)
from keras import layers

case = topic("data")


def slices(examples: int = EXAMPLES) -> Any:
    return tf.data.Dataset.from_tensor_slices(data(examples))


def on(place: Place, batches: Any, **options: Any) -> Values:
    return fit(compiled(place), batches, **options)


@case("arrays", three=True)
def arrays(place: Place) -> Values:
    model = compiled(place)
    return fit(model) | scores(model, *data()) | predicted(model, data()[0])


@case("arrays, shuffled", three=True)
def shuffled(place: Place) -> Values:
    return fit(compiled(place), shuffle=True)


@case("arrays, a smaller last batch", three=True, quick=True)
def smaller_last(place: Place) -> Values:
    return fit(compiled(place), *data(UNEVEN))


@case("arrays, a last batch of one example", three=True, quick=True)
def lonely(place: Place) -> Values:
    return fit(compiled(place), *data(BATCH * 2 + 1))


@case("arrays, batches that cannot be shared evenly", three=True)
def odd(place: Place) -> Values:
    return fit(compiled(place), batch_size=7)


@case("arrays, batch_size=1")
def single(place: Place) -> Values:
    return fit(compiled(place), *data(5), batch_size=1)


@case("arrays, fewer examples than a batch")
def few(place: Place) -> Values:
    return fit(compiled(place), *data(5))


@case("tensors")
def tensors(place: Place) -> Values:
    x, y = data()
    return fit(compiled(place), tf.constant(x), tf.constant(y), batch_size=BATCH)


@case("tf.data", three=True, quick=True)
def tf_data(place: Place) -> Values:
    return on(place, slices().batch(BATCH))


@case("tf.data, a smaller last batch", three=True)
def tf_data_uneven(place: Place) -> Values:
    return on(place, slices(UNEVEN).batch(BATCH), validation_data=slices(17).batch(BATCH))


@case("tf.data, drop_remainder")
def dropped(place: Place) -> Values:
    return on(place, slices(UNEVEN).batch(BATCH, drop_remainder=True))


@case("tf.data, shuffle with a seed", three=True)
def seeded(place: Place) -> Values:
    return on(place, slices().shuffle(EXAMPLES, seed=5).batch(BATCH))


@case("tf.data, map, cache and prefetch")
def mapped(place: Place) -> Values:
    batches = slices().map(lambda x, y: (x * 2.0, y), num_parallel_calls=2).cache()
    return on(place, batches.batch(BATCH).prefetch(tf.data.AUTOTUNE))


@case("tf.data, repeat and steps_per_epoch", three=True)
def endless(place: Place) -> Values:
    return on(place, slices(UNEVEN).repeat().batch(BATCH), steps_per_epoch=4)


@case("tf.data, batches that repeat, uneven")
def repeated_batches(place: Place) -> Values:
    return on(place, slices(UNEVEN).batch(BATCH).repeat(), steps_per_epoch=4)


@case("tf.data, filter and take")
def filtered(place: Place) -> Values:
    return on(place, slices().filter(lambda x, y: y > 0).take(17).batch(BATCH))


@case("tf.data, zip and concatenate")
def zipped(place: Place) -> Values:
    x, y = data()
    parts = tf.data.Dataset.zip(
        (tf.data.Dataset.from_tensor_slices(x), tf.data.Dataset.from_tensor_slices(y))
    )
    return on(place, parts.concatenate(slices(UNEVEN)).batch(BATCH))


@case("tf.data, interleave")
def interleaved(place: Place) -> Values:
    many = tf.data.Dataset.range(3).interleave(lambda n: slices().shard(3, n), cycle_length=3)
    return on(place, many.batch(BATCH))


@case("tf.data, sample_from_datasets with a seed")
def sampled(place: Place) -> Values:
    both = tf.data.Dataset.sample_from_datasets([slices(), slices().skip(10)], [0.3, 0.7], seed=5)
    return on(place, both.batch(BATCH))


@case("tf.data, windows of a series")
def windows(place: Place) -> Values:
    series = tf.data.Dataset.from_tensor_slices(numbers(40)).window(
        FEATURES + 1, shift=1, drop_remainder=True
    )
    rows = series.flat_map(lambda part: part.batch(FEATURES + 1))
    batches = rows.map(lambda row: (row[:-1], tf.cast(row[-1] > 0, tf.int32))).batch(BATCH)
    return on(place, batches)


@case("tf.data, padded batches of texts")
def padded(place: Place) -> Values:
    def make() -> Any:
        return sequential((None,), layers.Embedding(9, 4), layers.LSTM(3), dense(), dtype="int32")

    texts = tf.data.Dataset.range(UNEVEN).map(lambda n: (tf.range(1 + n % 5, dtype=tf.int32), n % 3))
    return fit(compiled(place, make), texts.padded_batch(BATCH))


@case("tf.data, buckets of texts by length")
def buckets(place: Place) -> Values:
    def make() -> Any:
        return sequential((None,), layers.Embedding(9, 4), layers.LSTM(3), dense(), dtype="int32")

    texts = tf.data.Dataset.range(30).map(lambda n: (tf.range(1 + n % 6, dtype=tf.int32), n % 3))
    sizes = {"bucket_boundaries": [4], "bucket_batch_sizes": [6, 12]}
    batches = texts.bucket_by_sequence_length(lambda x, y: tf.size(x), **sizes)
    return fit(compiled(place, make), batches)


@case("tf.data, unbatch and another batch size")
def batched_again(place: Place) -> Values:
    return on(place, slices().batch(5).unbatch().batch(BATCH))


@case("tf.data, rebatch")
def rebatched(place: Place) -> Values:
    return on(place, slices(UNEVEN).batch(5).rebatch(BATCH))


@case("tf.data, from_generator")
def from_generator(place: Place) -> Values:
    def examples() -> Any:
        yield from zip(*data(), strict=True)

    specs = (tf.TensorSpec([FEATURES], tf.float32), tf.TensorSpec([], tf.int64))
    return on(place, tf.data.Dataset.from_generator(examples, output_signature=specs).batch(BATCH))


@case("tf.data, several rows for each example", three=True, quick=True)
def rows(place: Place) -> Values:
    def make() -> Any:
        return sequential((2, FEATURES), layers.Flatten(), dense())

    class Pairs(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def call(self, x: Any) -> Any:
            return self.inner(tf.reshape(x, [-1, 2, FEATURES]))

    pairs = tf.data.Dataset.from_tensor_slices((numbers(UNEVEN, 2, FEATURES), labels(UNEVEN))).batch(BATCH)
    batches = pairs.map(lambda x, y: (tf.reshape(x, [-1, FEATURES]), y))
    return fit(compiled(place, Pairs), batches)


@case("tf.data, sample weights in the elements", three=True)
def weighted_elements(place: Place) -> Values:
    weights = np.linspace(0.1, 2, UNEVEN).astype(np.float32)
    return on(place, tf.data.Dataset.from_tensor_slices((*data(UNEVEN), weights)).batch(BATCH))


@case("tf.data, random operations by stateless seeds")
def stateless(place: Place) -> Values:
    def blurred(index: Any, example: Any) -> Any:
        x, y = example
        return x + tf.random.stateless_normal([FEATURES], [3, tf.cast(index, tf.int32)]), y

    return on(place, slices().enumerate().map(blurred).batch(BATCH))


@case("timeseries_dataset_from_array")
def series(place: Place) -> Values:
    batches = keras.utils.timeseries_dataset_from_array(
        numbers(40, 1), labels(40), sequence_length=FEATURES, batch_size=BATCH
    )

    def make() -> Any:
        return sequential((FEATURES, 1), layers.Flatten(), dense())

    return fit(compiled(place, make), batches)


@case("generator", quick=True)
def generator(place: Place) -> Values:
    x, y = data()

    def batches() -> Any:
        while True:
            for start in range(0, EXAMPLES, BATCH):
                yield x[start : start + BATCH], y[start : start + BATCH]

    return on(place, batches(), steps_per_epoch=3)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        x, y = data(UNEVEN)
        part = slice(index * BATCH, (index + 1) * BATCH)
        return x[part], y[part]


@case("PyDataset", three=True)
def py_dataset(place: Place) -> Values:
    return on(place, Batches())


@case("PyDataset with two threads")
def py_dataset_threads(place: Place) -> Values:
    return on(place, Batches(workers=2, max_queue_size=4))


@case("sparse tensors")
def sparse(place: Place) -> Values:
    x, y = data()
    batches = tf.data.Dataset.from_tensor_slices((np.maximum(x, 0), y)).batch(BATCH)

    def make() -> Any:
        inputs = keras.Input((FEATURES,), sparse=True)
        return keras.Model(inputs, dense()(layers.Dense(4)(inputs)))

    return fit(compiled(place, make), batches.map(lambda x, y: (tf.sparse.from_dense(x), y)))


@case("class weights", three=True, quick=True)
def class_weights(place: Place) -> Values:
    return fit(compiled(place), *data(UNEVEN), class_weight={0: 1.0, 1: 3.0, 2: 0.5})


@case("sample weights", three=True)
def sample_weights(place: Place) -> Values:
    model = compiled(place, weighted_metrics=["accuracy"])
    weights = np.linspace(0.1, 2, UNEVEN).astype(np.float32)
    return fit(model, *data(UNEVEN), sample_weight=weights) | scores(model, *data(), sample_weight=weights)


@case("validation data, a smaller last batch", three=True)
def validation(place: Place) -> Values:
    return fit(compiled(place), validation_data=data(UNEVEN))


@case("validation split and validation_freq")
def validation_split(place: Place) -> Values:
    return fit(compiled(place), validation_split=0.3, validation_freq=2, epochs=4)


@case("validation_steps of an endless data set")
def validation_steps(place: Place) -> Values:
    endless = slices(UNEVEN).repeat().batch(BATCH)
    return fit(compiled(place), validation_data=endless, validation_steps=2)


@case("predict from tf.data and a generator")
def predictions(place: Place) -> Values:
    model = compiled(place)
    x, _ = data()
    batches = tf.data.Dataset.from_tensor_slices(x[:UNEVEN]).batch(BATCH)
    return {
        "data": model.predict(batches, verbose=0),
        "generator": model.predict(((x[i : i + 5],) for i in range(0, 30, 5)), verbose=0, steps=6),
        "batch": model.predict_on_batch(x[:7]),
    }


@case("distribute_datasets_from_function in fit")
def own_shares(place: Place) -> Values:
    def mine(context: Any) -> Any:
        batches = slices().batch(context.get_per_replica_batch_size(BATCH))
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id).repeat()

    model = compiled(place, mlp)
    batches = place.strategy.distribute_datasets_from_function(mine)
    return outcome(model) | fit(model, batches, steps_per_epoch=3)
