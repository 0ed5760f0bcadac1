"""Cases: the sources of data, with files, and what fit takes beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
    Run,
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
WEIGHTS = np.linspace(0.1, 2, UNEVEN).astype(np.float32)


def slices(examples: int = EXAMPLES) -> Any:
    return tf.data.Dataset.from_tensor_slices(data(examples))


def on(place: Place, batches: Any, **options: Any) -> Values:
    return fit(compiled(place), batches, **options)


def of(make: Callable[[], Any], **options: Any) -> Run:
    """Return a case that trains on the data set, generator or PyDataset that `make` returns."""
    return lambda place: on(place, make(), **options)


def of_arrays(examples: int = EXAMPLES, **options: Any) -> Run:
    return lambda place: fit(compiled(place), *data(examples), **options)


@case("arrays", three=True)
def arrays(place: Place) -> Values:
    model = compiled(place)
    return fit(model) | scores(model, *data()) | predicted(model, data()[0])


case("arrays, shuffled", of_arrays(shuffle=True), three=True)
case("arrays, a smaller last batch", of_arrays(UNEVEN), three=True, quick=True)
case("arrays, a last batch of one example", of_arrays(BATCH * 2 + 1), three=True, quick=True)
case("arrays, batches that cannot be shared evenly", of_arrays(batch_size=7), three=True)
case("arrays, batch_size=1", of_arrays(5, batch_size=1))
case("arrays, fewer examples than a batch", of_arrays(5))


@case("tensors")
def tensors(place: Place) -> Values:
    x, y = data()
    return fit(compiled(place), tf.constant(x), tf.constant(y), batch_size=BATCH)


case("tf.data", of(lambda: slices().batch(BATCH)), three=True, quick=True)


@case("tf.data, a smaller last batch", three=True)
def tf_data_uneven(place: Place) -> Values:
    return on(place, slices(UNEVEN).batch(BATCH), validation_data=slices(17).batch(BATCH))


case("tf.data, drop_remainder", of(lambda: slices(UNEVEN).batch(BATCH, drop_remainder=True)))
case(
    "tf.data, shuffle with a seed",
    of(lambda: slices().shuffle(EXAMPLES, seed=5).batch(BATCH)),
    three=True,
)


@case("tf.data, map, cache and prefetch")
def mapped(place: Place) -> Values:
    batches = slices().map(lambda x, y: (x * 2.0, y), num_parallel_calls=2).cache()
    return on(place, batches.batch(BATCH).prefetch(tf.data.AUTOTUNE))


case(
    "tf.data, repeat and steps_per_epoch",
    of(lambda: slices(UNEVEN).repeat().batch(BATCH), steps_per_epoch=4),
    three=True,
)
case(
    "tf.data, batches that repeat, uneven",
    of(lambda: slices(UNEVEN).batch(BATCH).repeat(), steps_per_epoch=4),
)
case("tf.data, filter and take", of(lambda: slices().filter(lambda x, y: y > 0).take(17).batch(BATCH)))


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


def reader_of_texts() -> Any:
    return sequential((None,), layers.Embedding(9, 4), layers.LSTM(3), dense(), dtype="int32")


def texts(examples: int, lengths: int) -> Any:
    numbers = tf.data.Dataset.range(examples)
    return numbers.map(lambda n: (tf.range(1 + n % lengths, dtype=tf.int32), n % 3))


@case("tf.data, padded batches of texts")
def padded(place: Place) -> Values:
    return fit(compiled(place, reader_of_texts), texts(UNEVEN, 5).padded_batch(BATCH))


@case("tf.data, buckets of texts by length")
def buckets(place: Place) -> Values:
    sizes = {"bucket_boundaries": [4], "bucket_batch_sizes": [6, 12]}
    batches = texts(30, 6).bucket_by_sequence_length(lambda x, y: tf.size(x), **sizes)
    return fit(compiled(place, reader_of_texts), batches)


case("tf.data, unbatch and another batch size", of(lambda: slices().batch(5).unbatch().batch(BATCH)))
case("tf.data, rebatch", of(lambda: slices(UNEVEN).batch(5).rebatch(BATCH)))


@case("tf.data, from_generator")
def from_generator(place: Place) -> Values:
    def examples() -> Any:
        yield from zip(*data(), strict=True)

    specs = (tf.TensorSpec([FEATURES], tf.float32), tf.TensorSpec([], tf.int64))
    return on(place, tf.data.Dataset.from_generator(examples, output_signature=specs).batch(BATCH))


class Pairs(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner = sequential((2, FEATURES), layers.Flatten(), dense())

    def call(self, x: Any) -> Any:
        return self.inner(tf.reshape(x, [-1, 2, FEATURES]))


@case("tf.data, several rows for each example", three=True, quick=True)
def rows(place: Place) -> Values:
    pairs = tf.data.Dataset.from_tensor_slices((numbers(UNEVEN, 2, FEATURES), labels(UNEVEN))).batch(BATCH)
    return fit(compiled(place, Pairs), pairs.map(lambda x, y: (tf.reshape(x, [-1, FEATURES]), y)))


case(
    "tf.data, sample weights in the elements",
    of(lambda: tf.data.Dataset.from_tensor_slices((*data(UNEVEN), WEIGHTS)).batch(BATCH)),
    three=True,
)


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
    return fit(compiled(place, lambda: sequential((FEATURES, 1), layers.Flatten(), dense())), batches)


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


case("PyDataset", of(Batches), three=True)
case("PyDataset with two threads", of(lambda: Batches(workers=2, max_queue_size=4)))


@case("sparse tensors")
def sparse(place: Place) -> Values:
    x, y = data()
    batches = tf.data.Dataset.from_tensor_slices((np.maximum(x, 0), y)).batch(BATCH)

    def make() -> Any:
        inputs = keras.Input((FEATURES,), sparse=True)
        return keras.Model(inputs, dense()(layers.Dense(4)(inputs)))

    return fit(compiled(place, make), batches.map(lambda x, y: (tf.sparse.from_dense(x), y)))


case("class weights", of_arrays(UNEVEN, class_weight={0: 1.0, 1: 3.0, 2: 0.5}), three=True, quick=True)


@case("sample weights", three=True)
def sample_weights(place: Place) -> Values:
    model = compiled(place, weighted_metrics=["accuracy"])
    return fit(model, *data(UNEVEN), sample_weight=WEIGHTS) | scores(model, *data(), sample_weight=WEIGHTS)


case("validation data, a smaller last batch", of_arrays(validation_data=data(UNEVEN)), three=True)
case("validation split and validation_freq", of_arrays(validation_split=0.3, validation_freq=2, epochs=4))


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


# -- files


def by_example() -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


SHARED_FILES = (
    "each worker reads its own files, so its batches are of other examples than those of one process; "
    "MirroredStrategy reads all files in one"
)


@case("text files with the policy DATA")
def text_files(place: Place) -> Values:
    names = []
    for part in range(2):
        names.append(str(place.directory / f"{part}-{place.rank}.txt"))
        with Path(names[-1]).open("w") as file:
            file.writelines(f"{value}\n" for value in numbers(18, seed=part))

    def example(line: Any) -> Any:
        number = tf.strings.to_number(line)
        return tf.fill([FEATURES], number), tf.cast(number > 0, tf.int32)

    return on(place, tf.data.TextLineDataset(names).map(example).batch(BATCH).with_options(by_example()))


def records(place: Place, parts: int) -> list[str]:
    names = []
    for part in range(parts):
        names.append(str(place.directory / f"{part}-{place.rank}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1]) as writer:
            for number in numbers(12, seed=part):
                feature = {"number": tf.train.Feature(float_list=tf.train.FloatList(value=[number]))}
                features = tf.train.Features(feature=feature)
                writer.write(tf.train.Example(features=features).SerializeToString())
    return names


def from_records(names: list[str]) -> Any:
    def example(record: Any) -> Any:
        found = tf.io.parse_single_example(record, {"number": tf.io.FixedLenFeature([], tf.float32)})
        return tf.fill([FEATURES], found["number"]), tf.cast(found["number"] > 0, tf.int32)

    return tf.data.TFRecordDataset(names).map(example)


@case("TFRecord files, one for each worker", differs=SHARED_FILES)
def record_files(place: Place) -> Values:
    return on(place, from_records(records(place, 2)).batch(BATCH))


@case("TFRecord files in one batch", three=True)
def record_files_at_once(place: Place) -> Values:
    return on(place, from_records(records(place, 6)).batch(72))


@case("image_dataset_from_directory")
def image_directory(place: Place) -> Values:
    # Each worker writes the same files, into its own directory.
    root = place.directory / str(place.rank)
    for index, pixels in enumerate(labels(EXAMPLES * 16, 255).reshape(EXAMPLES, 4, 4, 1)):
        (root / f"kind{index % 3}").mkdir(parents=True, exist_ok=True)
        encoded = tf.io.encode_png(tf.cast(pixels, tf.uint8))
        tf.io.write_file(str(root / f"kind{index % 3}" / f"{index}.png"), encoded)
    images = keras.utils.image_dataset_from_directory(
        root, batch_size=BATCH, image_size=(4, 4), color_mode="grayscale", seed=3, verbose=False
    )
    pixels = layers.Rescaling(1 / 255)
    model = compiled(place, lambda: sequential((4, 4, 1), pixels, layers.Flatten(), dense()))
    return fit(model, images.with_options(by_example()))
