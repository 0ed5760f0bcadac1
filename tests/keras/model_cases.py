"""Small trainings with a script's own models, steps, metrics, callbacks and data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case_program import Place
from training_cases import BATCH, CLASSES, FEATURES, Values, classifier, compiled, data, fit, loss, outcome


class OwnStep(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A model with its own training step, as Keras's guides write it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)
        self.own_loss = keras.metrics.Mean(name="own_loss")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            value = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        self.own_loss.update_state(value * place_of_model(self).num_replicas_in_sync)
        return {"own_loss": self.own_loss.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.own_loss]


def place_of_model(model: Any) -> Any:
    return model.distribute_strategy


def own_training_step(place: Place) -> Values:
    return fit(place, compiled(place, OwnStep, metrics=None))


def two_outputs(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        hidden = keras.layers.Dense(5, activation="relu")(inputs)
        kind = keras.layers.Dense(CLASSES, name="kind")(hidden)
        size = keras.layers.Dense(1, name="size")(hidden)
        return keras.Model(inputs, {"kind": kind, "size": size})

    model = compiled(
        place,
        make,
        loss={"kind": loss(), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    x, y = data(60)
    size = x.sum(axis=1, keepdims=True)
    targets = {"kind": y, "size": size}
    history = model.fit(x, targets, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    return outcome(model, history, score=model.evaluate(x, targets, batch_size=BATCH, verbose=0))


class LargestScore(keras.metrics.Metric):  # type: ignore[misc]
    """A user's own metric with an integer count and a sum."""

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.seen = self.add_weight(shape=(), initializer="zeros", dtype="int32", name="seen")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_sum(tf.reduce_max(y_pred, axis=-1)))
        self.seen.assign_add(tf.shape(y_pred)[0])

    def result(self) -> Any:
        return self.total / tf.cast(self.seen, tf.float32)


def many_metrics(place: Place) -> Values:
    def make() -> Any:
        return keras.Sequential(
            [keras.layers.Input((FEATURES,)), keras.layers.Dense(1, activation="sigmoid")]
        )

    def metrics() -> list[Any]:
        return [
            "accuracy",
            keras.metrics.AUC(name="auc"),
            keras.metrics.F1Score(threshold=0.5, name="f1"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.MeanSquaredError(name="squares"),
            keras.metrics.RootMeanSquaredError(name="root"),
            LargestScore(),
        ]

    with place.scope():
        model = make()
        model.compile("adam", "binary_crossentropy", metrics=metrics())
    x, y = data(57)
    labels = (y > 0).astype(np.float32)[:, None]
    history = model.fit(x, labels, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    score = model.evaluate(x, labels, batch_size=BATCH, verbose=0)
    return outcome(model, history, score=np.concatenate([np.ravel(value) for value in score]))


class StepLogs(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(logs["loss"])


def logs_of_each_step(place: Place) -> Values:
    logs = StepLogs()
    values = fit(place, compiled(place), callbacks=[logs] if place.rank == 0 else [])
    return values | {"logs": logs.seen if place.rank == 0 else []}


def embedding(place: Place) -> Values:
    """Sparse gradients."""

    def make() -> Any:
        return keras.Sequential(
            [
                keras.layers.Input((4,), dtype="int32"),
                keras.layers.Embedding(20, 6),
                keras.layers.Flatten(),
                keras.layers.Dense(CLASSES),
            ]
        )

    x = np.random.default_rng(5).integers(0, 20, size=(57, 4))
    model = compiled(place, make)
    history = model.fit(x, data(57)[1], batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    return outcome(model, history)


def no_examples_for_batch_norm(place: Place) -> Values:
    """A worker without an example of the last batch must not destroy the moving statistics."""

    def make() -> Any:
        return keras.Sequential(
            [
                keras.layers.Input((FEATURES,)),
                keras.layers.Dense(4),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(CLASSES),
            ]
        )

    x, y = data(BATCH + 1)
    model = compiled(place, make)
    return outcome(model, model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False))


def files_of_different_length(place: Place) -> Values:
    """The workers share the data by file: one has no data left while the other still has."""
    names = []
    for index, lines in enumerate((40, 8)):
        path = place.directory / f"part-{index}-of-{place.rank}.txt"
        path.write_text("".join(f"{number / 50}\n" for number in range(lines)))
        names.append(str(path))

    def example(line: Any) -> Any:
        number = tf.strings.to_number(line)
        return tf.fill([FEATURES], number), tf.cast(number > 0.3, tf.int32)

    batches = tf.data.TextLineDataset(names).map(example).batch(8)
    model = compiled(place, optimizer="sgd")
    history = model.fit(batches, epochs=2, verbose=0)
    return outcome(model, history, score=model.evaluate(batches, verbose=0))


def own_distributed_batches(place: Place) -> Values:
    """The script gives each worker its part, as the documentation's tutorial does."""
    x, y = data()

    def mine(context: Any) -> Any:
        batch = context.get_per_replica_batch_size(BATCH)
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).repeat()

    batches = place.strategy.distribute_datasets_from_function(mine)
    model = compiled(place)
    return outcome(model, model.fit(batches, steps_per_epoch=4, epochs=2, verbose=0))


def own_loop_with_clipping(place: Place) -> Values:
    x, y = data()
    with place.scope():
        model = classifier()
        optimizer = keras.optimizers.SGD(1.0, clipnorm=0.05)
        per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def step(batch: Any) -> Any:
        some, labels = batch
        with tf.GradientTape() as tape:
            value = tf.nn.compute_average_loss(per_example(labels, model(some)), global_batch_size=BATCH)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return value

    @tf.function  # type: ignore[untyped-decorator]
    def all_step(batch: Any) -> Any:
        return place.strategy.reduce("SUM", place.strategy.run(step, args=(batch,)), axis=None)

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    losses = [float(all_step(b)) for b in place.strategy.experimental_distribute_dataset(dataset)]
    return outcome(model, losses=losses)


def progress_of_the_chief(place: Place) -> Values:
    """A progress bar on one worker reads the logs of each step; the other reads none."""
    return fit(place, compiled(place), verbose=1 if place.rank == 0 else 0)


class OwnMetrics(keras.Model):  # type: ignore[misc]
    """A model that overrides compute_metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)
        self.extra = keras.metrics.Mean(name="extra")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.extra.update_state(tf.reduce_mean(y_pred))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def own_metrics(place: Place) -> Values:
    return fit(place, compiled(place, OwnMetrics))


def two_inputs(place: Place) -> Values:
    def make() -> Any:
        inputs = [keras.Input((FEATURES,)), keras.Input((FEATURES,))]
        return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Concatenate()(inputs)))

    model = compiled(place, make)
    x, y = data(57)
    history = model.fit([x, x * 2], y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    return outcome(model, history, predicted=model.predict([x, x * 2], batch_size=BATCH, verbose=0))
