"""Cases: data that is read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from case import BATCH, EXAMPLES, FEATURES, Place, Values, compiled, dense, fit, labels, numbers, sequential
from data_cases import case, on
from keras import layers

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

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return on(place, tf.data.TextLineDataset(names).map(example).batch(BATCH).with_options(options))


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
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA

    def make() -> Any:
        return sequential((4, 4, 1), layers.Rescaling(1 / 255), layers.Flatten(), dense())

    return fit(compiled(place, make), images.with_options(options))
