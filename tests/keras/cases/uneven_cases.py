"""Cases in which the workers get different numbers of examples, or parts of different lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import (
    BATCH,
    CLASSES,
    FEATURES,
    Place,
    Values,
    compiled,
    cross_entropy,
    data,
    dense,
    fit,
    mlp,
    numbers,
    outcome,
    sequential,
    topic,
)
from keras import layers
from loss_cases import slow
from metric_cases import Counter
from tensorflow.python.eager import context

from worker.bootstrap.keras_fix.rows import refuse_tables, rows_by_example, share_rows

case = topic("")
# A batch of 12 and a last one of 5, which two workers share as 3 and 2.
UNEVEN = BATCH + 5


# -- workers without an example


class Largest(keras.metrics.Metric):
    """The sum of the batches' largest predictions. The largest of no numbers is minus infinity."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_max(y_pred))

    def result(self) -> Any:
        return self.total


@case("one_example_a_step")
def one_example_a_step(place: Place) -> Values:
    """Every step leaves a worker without an example, which the shapes show."""
    model = compiled(place, lambda: mlp(kernel_regularizer="l2"), metrics=lambda: [Largest()])
    x, y = data(5)
    return fit(model, x, y, batch_size=1) | {"score": model.evaluate(x, y, batch_size=1, verbose=0)}


@case("fewer_than_workers")
def fewer_than_workers(place: Place) -> Values:
    batches = tf.data.Dataset.from_tensor_slices(data(6)).batch(2, drop_remainder=True)
    model = compiled(place)
    return fit(model, batches) | {"score": model.evaluate(batches, verbose=0)}


@case("convolutions")
def convolutions(place: Place) -> Values:
    """oneDNN's convolutions fail for an empty batch that another layer has made."""

    def make() -> Any:
        return sequential(
            (8, 8, 3),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(trainable=False),
            layers.Conv2D(2, 3),
            layers.GlobalAveragePooling2D(),
            dense(),
        )

    x, y = numbers(9, 8, 8, 3), data(9)[1]
    model = compiled(place, make)
    return fit(model, x, y, batch_size=8) | {
        "score": model.evaluate(x, y, batch_size=8, verbose=0),
        "one": model.predict(x[:1], verbose=0),
        "all": model.predict(x, batch_size=8, verbose=0),
    }


@case("no_examples_for_batch_norm")
def no_examples_for_batch_norm(place: Place) -> Values:
    """A worker without an example of the last batch must not destroy the moving statistics."""
    norm = layers.BatchNormalization
    model = compiled(place, lambda: sequential((FEATURES,), layers.Dense(4), norm(), dense()))
    return fit(model, *data(BATCH + 1))


def text_files(place: Place, *texts: str) -> list[str]:
    names = []
    for index, text in enumerate(texts):
        path = place.directory / f"part-{index}-of-{place.rank}.txt"
        path.write_text(text)
        names.append(str(path))
    return names


@case("files_of_different_length")
def files_of_different_length(place: Place) -> Values:
    """The workers share the data by file: one has no data left while the other still has."""
    names = text_files(place, *("".join(f"{number / 50}\n" for number in range(lines)) for lines in (40, 8)))

    def example(line: Any) -> Any:
        number = tf.strings.to_number(line)
        return tf.fill([FEATURES], number), tf.cast(number > 0.3, tf.int32)

    batches = tf.data.TextLineDataset(names).map(example).batch(8)
    model = compiled(place)
    return fit(model, batches) | {"score": model.evaluate(batches, verbose=0)}


@case("texts_of_different_length")
def texts_of_different_length(place: Place) -> Values:
    """A worker has no text left. TensorFlow then gives it an empty batch of texts without words."""
    names = text_files(
        place, *("".join("5 " * (1 + number % 3) + "\n" for number in range(texts)) for texts in (12, 4))
    )

    def example(line: Any) -> Any:
        words = tf.strings.to_number(tf.strings.split(line), tf.int32)
        return words, tf.size(words) - 1

    def make() -> Any:
        return sequential((None,), layers.Embedding(8, 4), layers.LSTM(3), dense(), dtype="int32")

    batches = tf.data.TextLineDataset(names).map(example).padded_batch(4)
    model = compiled(place, make)
    return fit(model, batches) | {"score": model.evaluate(batches, verbose=0)}


@case("summed_loss_with_a_regulariser")
def summed_loss_with_a_regulariser(place: Place) -> Values:
    """The last worker has no example of the last batch, and its share of the regulariser counts."""
    model = compiled(
        place,
        lambda: mlp(kernel_regularizer=keras.regularizers.L2(0.5)),
        slow,
        loss=lambda: cross_entropy(reduction="sum"),
    )
    fit(model, *data(BATCH + 1))
    return outcome(model)


def mean_and_sum(place: Place, examples: int) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        hidden = layers.Dense(5, activation="relu", kernel_regularizer="l2")(inputs)
        size = layers.Dense(1, name="size", activity_regularizer="l2")(hidden)
        return keras.Model(inputs, {"kind": layers.Dense(CLASSES, name="kind")(hidden), "size": size})

    model = compiled(
        place,
        make,
        slow,
        loss={"kind": cross_entropy(), "size": keras.losses.MeanSquaredError(reduction="sum")},
        loss_weights={"kind": 5.0, "size": 0.5},
        metrics=None,
    )
    x, y = data(examples)
    values = fit(model, x, {"kind": y, "size": x.sum(axis=1, keepdims=True)})
    return outcome(model) | {"loss": values["history loss"]}


case("mean_beside_sum", lambda place: mean_and_sum(place, UNEVEN))
case("mean_beside_sum_without_examples", lambda place: mean_and_sum(place, BATCH + 1))


@case("overflow")
def overflow(place: Place) -> Values:
    """A number that only one worker has is too large for a float16: all workers skip the step."""
    keras.config.set_dtype_policy("mixed_float16")
    x, y = data()
    x[BATCH] = 60000.0
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.1))
    return fit(model, x, y, epochs=1) | {"scale": float(model.optimizer.dynamic_scale.numpy())}


@case("shuffled_without_a_seed")
def shuffled_without_a_seed(place: Place) -> Values:
    """The weights do not change: the loss is that of all data if each example is used once an epoch."""
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.0))
    context.set_global_seed(None)
    return fit(model, shuffle=True)


@case("endless_then_finite")
def endless_then_finite(place: Place) -> Values:
    batches = tf.data.Dataset.from_tensor_slices(data(UNEVEN)).batch(BATCH)
    model = compiled(place)
    model.fit(batches.repeat(), steps_per_epoch=2, epochs=1, verbose=0)
    return fit(model, batches)


# -- parts of different lengths


class Looked(keras.Model):
    """Adds rows of a table, which is part of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(CLASSES)

    def call(self, inputs: Any) -> Any:
        x, kinds, table = inputs
        return self.dense(x + tf.gather(table, kinds))


@case("table_beside_batches")
def table_beside_batches(place: Place) -> Values:
    x, y = data(UNEVEN)
    table = np.arange(5 * FEATURES, dtype=np.float32).reshape(5, FEATURES) / 10
    kinds = np.arange(UNEVEN, dtype=np.int32) % 5
    examples = tf.data.Dataset.from_tensor_slices((x, kinds, y)).batch(BATCH)
    batches = examples.map(lambda x, kinds, y: ((x, kinds, table), y), num_parallel_calls=2)
    model = compiled(place, Looked)
    values = fit(model, batches)
    endless = model.fit(batches.repeat(), steps_per_epoch=2, epochs=1, verbose=0)
    return values | {"endless": endless.history["loss"]}


class Everything(keras.Model):
    """Two images for each example, a table beside the batch, convolutions, and a mean beside a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Conv2D(3, 3, activation="relu")
        self.second = layers.Conv2D(2, 3, kernel_regularizer="l2")
        self.kind = layers.Dense(CLASSES)
        self.size = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        found = tf.reduce_mean(self.second(self.first(inputs["images"])), axis=[1, 2])
        both = tf.reshape(found, [-1, 4]) + tf.gather(inputs["table"], inputs["rows"])
        return {"kind": self.kind(both), "size": self.size(both)}


@case("everything_uneven")
def everything_uneven(place: Place) -> Values:
    """The last batch has one example."""
    examples = 9
    images = numbers(examples, 2, 6, 6, 1)
    targets = {"kind": data(examples)[1], "size": images[:, 0, 0, 0]}
    table = np.arange(20, dtype=np.float32).reshape(5, 4) / 10

    def split(images: Any, rows: Any, targets: Any) -> Any:
        return {"images": tf.reshape(images, [-1, 6, 6, 1]), "rows": rows, "table": table}, targets

    dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(examples) % 5, targets))
    batches = dataset.batch(8).map(split)
    model = compiled(
        place,
        Everything,
        slow,
        loss={"kind": cross_entropy(), "size": keras.losses.MeanSquaredError(reduction="sum")},
        loss_weights={"kind": 9.0, "size": 1.0},
        metrics={"kind": Counter(), "size": "mae"},
    )
    history = model.fit(batches, epochs=2, verbose=0).history
    seen = {name: values for name, values in history.items() if name in ("loss", "kind_counter", "size_mae")}
    return outcome(model, **seen, **model.predict(batches, verbose=0))


@case("rows_of_each_part")
def rows_of_each_part(place: Place) -> Values:
    """Return the rows by example that follow from the shapes: 0 for a table, -1 if they are unknown."""
    del place
    x, y, table = tf.zeros([UNEVEN, 2, FEATURES]), tf.zeros([UNEVEN]), tf.zeros([5, 3])
    pairs = tf.data.Dataset.from_tensor_slices((x, y))
    batches, full = pairs.batch(BATCH), pairs.batch(BATCH, drop_remainder=True)

    def flat(x: Any, y: Any) -> Any:
        return tf.reshape(x, [-1, FEATURES]), y, table

    def by_shape(x: Any, y: Any) -> Any:
        return tf.reshape(x, [tf.shape(x)[0] * 2, FEATURES]), tf.ones_like(y)

    def by_constants(x: Any, y: Any) -> Any:
        return tf.reshape(x, [2 * BATCH, FEATURES]), y

    def without_shapes(x: Any, y: Any) -> Any:
        hidden = tf.numpy_function(lambda rows: rows.reshape(-1, FEATURES), [x], tf.float32)
        return tf.ensure_shape(hidden, [None, FEATURES]), y

    pipelines = {
        "batch": batches,
        "rows and a table": batches.map(flat).prefetch(1),
        "rows and a table of full batches": full.map(flat, num_parallel_calls=2).repeat(),
        "shapes": batches.map(by_shape),
        "constants": full.map(by_constants),
        "no shapes": batches.map(without_shapes),
        "sparse": batches.map(lambda x, y: (tf.sparse.from_dense(x), y)),
        "zip": tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensors(table).repeat())),
        "batches of slices": tf.data.Dataset.from_tensor_slices(
            (tf.zeros([4, BATCH, 2]), tf.zeros([4, BATCH]))
        ),
    }
    values: Values = {
        name: [-1 if rows is None else rows for rows in rows_by_example(pipeline)]
        for name, pipeline in pipelines.items()
    }
    try:
        refuse_tables(pipelines["zip"], rows_by_example(pipelines["zip"]))
    except ValueError as error:
        values["refused"] = str(error)
    last = SimpleNamespace(input_pipeline_id=1, num_input_pipelines=2)
    for name in ("rows and a table", "no shapes"):
        pipeline = pipelines[name]
        try:
            taken = [
                part.shape[0] for part in next(iter(share_rows(pipeline, rows_by_example(pipeline), last)))
            ]
            values[f"taken of {name}"] = taken
        except tf.errors.InvalidArgumentError as error:
            values[f"taken of {name}"] = str(error)
    return values
