"""Small trainings in which the workers get different numbers of examples, or parts of different lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case_program import Place
from training_cases import BATCH, CLASSES, FEATURES, Values, classifier, compiled, data, loss, outcome

from worker.bootstrap.keras_fix.rows import refuse_tables, rows_by_example, share_rows

# A batch of 16 and a last one of 5, which two workers share as 3 and 2.
UNEVEN = BATCH + 5
OPTIONS = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False}


def slow_descent() -> Any:
    return keras.optimizers.SGD(0.01)


class Agreed(keras.metrics.Metric):  # type: ignore[misc]  # Keras has no types
    """A counter whose result is its own variable, as Keras's documentation writes it."""

    def __init__(self) -> None:
        super().__init__(name="agreed")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        right = tf.equal(tf.cast(tf.reshape(y_true, [-1]), tf.int64), tf.argmax(y_pred, axis=-1))
        self.count.assign(self.count + tf.reduce_sum(tf.cast(right, tf.float32)))

    def result(self) -> Any:
        return self.count


def metric_outside_of_the_scope(place: Place) -> Values:
    """The rate falls when the count does not grow."""
    agreed = Agreed()
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.02), metrics=[agreed])
    seen: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: seen.append(float(logs["agreed"]))
    )
    lower = keras.callbacks.ReduceLROnPlateau("agreed", mode="max", min_delta=2, patience=1)
    x, y = data(UNEVEN)
    history = model.fit(x, y, callbacks=[lower, note], **{**OPTIONS, "epochs": 3})
    score = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    return outcome(model, history, score=score, seen=seen, rate=float(model.optimizer.learning_rate.numpy()))


# -- workers without an example


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """The sum of the batches' largest predictions. The largest of no numbers is minus infinity."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_max(y_pred))

    def result(self) -> Any:
        return self.total


def one_example_a_step(place: Place) -> Values:
    """Every step leaves a worker without an example, which the shapes show."""
    with place.scope():
        metrics = [Largest()]
    model = compiled(place, lambda: classifier(kernel_regularizer="l2"), "sgd", metrics=metrics)
    x, y = data(5)
    history = model.fit(x, y, **{**OPTIONS, "batch_size": 1})
    return outcome(model, history, score=model.evaluate(x, y, batch_size=1, verbose=0))


def fewer_than_workers(place: Place) -> Values:
    batches = tf.data.Dataset.from_tensor_slices(data(6)).batch(2, drop_remainder=True)
    model = compiled(place, optimizer="sgd")
    history = model.fit(batches, epochs=2, verbose=0)
    return outcome(model, history, score=model.evaluate(batches, verbose=0))


def convolutions(place: Place) -> Values:
    """oneDNN's convolutions fail for an empty batch that another layer has made."""

    def make() -> Any:
        return keras.Sequential(
            [
                keras.layers.Input((8, 8, 3)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.BatchNormalization(trainable=False),
                keras.layers.Conv2D(2, 3),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(CLASSES),
            ]
        )

    x = np.random.default_rng(4).normal(size=(9, 8, 8, 3)).astype(np.float32)
    y = data(9)[1]
    model = compiled(place, make)
    history = model.fit(x, y, **{**OPTIONS, "batch_size": 8})
    return outcome(
        model,
        history,
        score=model.evaluate(x, y, batch_size=8, verbose=0),
        one=model.predict(x[:1], verbose=0),
        all=model.predict(x, batch_size=8, verbose=0),
    )


def texts_of_different_length(place: Place) -> Values:
    """A worker has no text left. TensorFlow then gives it an empty batch of texts without words."""
    names = []
    for index, texts in enumerate((12, 4)):
        path = place.directory / f"texts-{index}-of-{place.rank}.txt"
        path.write_text("".join("5 " * (1 + number % 3) + "\n" for number in range(texts)))
        names.append(str(path))

    def example(line: Any) -> Any:
        words = tf.strings.to_number(tf.strings.split(line), tf.int32)
        return words, tf.size(words) - 1

    def make() -> Any:
        layers = [keras.layers.Embedding(8, 4), keras.layers.LSTM(3), keras.layers.Dense(CLASSES)]
        return keras.Sequential([keras.layers.Input((None,), dtype="int32"), *layers])

    batches = tf.data.TextLineDataset(names).map(example).padded_batch(4)
    model = compiled(place, make, "sgd")
    history = model.fit(batches, epochs=2, verbose=0)
    return outcome(model, history, score=model.evaluate(batches, verbose=0))


def summed_loss_with_a_regulariser(place: Place) -> Values:
    """The last worker has no example of the last batch, and its share of the regulariser counts."""

    def make() -> Any:
        return classifier(kernel_regularizer=keras.regularizers.L2(0.5))

    summed = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model = compiled(place, make, slow_descent, loss=summed)
    model.fit(*data(BATCH + 1), **OPTIONS)
    return outcome(model)


# -- weights


def large_metric(place: Place) -> Values:
    def make() -> Any:
        return keras.Sequential(
            [keras.layers.Input((FEATURES,)), keras.layers.Dense(1, activation="sigmoid")]
        )

    with place.scope():
        model = make()
        model.compile(
            keras.optimizers.SGD(0.5),
            "binary_crossentropy",
            metrics=[keras.metrics.AUC(num_thresholds=20_000, name="auc")],
        )
    x, y = data(UNEVEN)
    history = model.fit(x, (y > 0).astype(np.float32)[:, None], **OPTIONS)
    return outcome(model, history)


class OwnResults(keras.Model):  # type: ignore[misc]
    """A model whose metrics have another result."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return results | {"level": tf.reduce_mean(y_pred)}


def own_results(place: Place) -> Values:
    model = compiled(place, OwnResults, lambda: keras.optimizers.SGD(0.5))
    model.fit(*data(UNEVEN), **OPTIONS)
    return outcome(model)


def mean_beside_sum(place: Place, examples: int = UNEVEN) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        hidden = keras.layers.Dense(5, activation="relu", kernel_regularizer="l2")(inputs)
        kind = keras.layers.Dense(CLASSES, name="kind")(hidden)
        size = keras.layers.Dense(1, name="size", activity_regularizer="l2")(hidden)
        return keras.Model(inputs, {"kind": kind, "size": size})

    summed = keras.losses.MeanSquaredError(reduction="sum")
    model = compiled(
        place,
        make,
        slow_descent,
        loss={"kind": loss(), "size": summed},
        loss_weights={"kind": 5.0, "size": 0.5},
        metrics=None,
    )
    x, y = data(examples)
    history = model.fit(x, {"kind": y, "size": x.sum(axis=1, keepdims=True)}, **OPTIONS)
    return outcome(model) | {"loss": history.history["loss"]}


def mean_beside_sum_without_examples(place: Place) -> Values:
    return mean_beside_sum(place, BATCH + 1)


# -- parts of different lengths


class Pairs(keras.Model):  # type: ignore[misc]
    """Takes two rows for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        return self.dense(tf.reshape(x, [-1, 2 * FEATURES]))


def rows_of_pairs(place: Place) -> Values:
    x, y = data(2 * UNEVEN)
    pairs = tf.data.Dataset.from_tensor_slices((x.reshape(UNEVEN, 2, FEATURES), y[:UNEVEN])).batch(BATCH)
    batches = pairs.map(lambda x, y: (tf.reshape(x, [-1, FEATURES]), y)).prefetch(1)
    model = compiled(place, Pairs, "sgd")
    return outcome(model, model.fit(batches, epochs=2, verbose=0))


class Looked(keras.Model):  # type: ignore[misc]
    """Adds rows of a table, which is part of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, inputs: Any) -> Any:
        x, kinds, table = inputs
        return self.dense(x + tf.gather(table, kinds))


def table_beside_batches(place: Place) -> Values:
    x, y = data(UNEVEN)
    table = np.arange(5 * FEATURES, dtype=np.float32).reshape(5, FEATURES) / 10
    kinds = np.arange(UNEVEN, dtype=np.int32) % 5
    examples = tf.data.Dataset.from_tensor_slices((x, kinds, y)).batch(BATCH)
    batches = examples.map(lambda x, kinds, y: ((x, kinds, table), y), num_parallel_calls=2)
    model = compiled(place, Looked, "sgd")
    values = outcome(model, model.fit(batches, epochs=2, verbose=0))
    endless = model.fit(batches.repeat(), steps_per_epoch=2, epochs=1, verbose=0)
    return values | {"endless": endless.history["loss"]}


class Everything(keras.Model):  # type: ignore[misc]
    """Two images for each example, a table beside the batch, convolutions, and a mean beside a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Conv2D(3, 3, activation="relu")
        self.second = keras.layers.Conv2D(2, 3, kernel_regularizer="l2")
        self.kind = keras.layers.Dense(CLASSES)
        self.size = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        found = tf.reduce_mean(self.second(self.first(inputs["images"])), axis=[1, 2])
        both = tf.reshape(found, [-1, 4]) + tf.gather(inputs["table"], inputs["rows"])
        return {"kind": self.kind(both), "size": self.size(both)}


def everything_uneven(place: Place) -> Values:
    """The last batch has one example."""
    examples = 9
    images = np.random.default_rng(4).normal(size=(examples, 2, 6, 6, 1)).astype(np.float32)
    targets = {"kind": data(examples)[1], "size": images[:, 0, 0, 0]}
    table = np.arange(20, dtype=np.float32).reshape(5, 4) / 10

    def split(images: Any, rows: Any, targets: Any) -> Any:
        return {"images": tf.reshape(images, [-1, 6, 6, 1]), "rows": rows, "table": table}, targets

    dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(examples) % 5, targets))
    batches = dataset.batch(8).map(split)
    agreed = Agreed()
    model = compiled(
        place,
        Everything,
        slow_descent,
        loss={"kind": loss(), "size": keras.losses.MeanSquaredError(reduction="sum")},
        loss_weights={"kind": 9.0, "size": 1.0},
        metrics={"kind": agreed, "size": "mae"},
    )
    history = model.fit(batches, epochs=2, verbose=0).history
    seen = {name: values for name, values in history.items() if name in ("loss", "kind_agreed", "size_mae")}
    return outcome(model, **seen, **model.predict(batches, verbose=0))


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
