"""Cases: losses, trained with an uneven last batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import (
    BATCH,
    CLASSES,
    EXAMPLES,
    FEATURES,
    UNEVEN,
    Place,
    Plain,
    Run,
    Values,
    compiled,
    cross_entropy,
    data,
    dense,
    fit,
    labels,
    mlp,
    numbers,
    scores,
    sequential,
    topic,
)
from keras import layers, losses

case = topic("losses")
ONE_NUMBER = (
    "returns one number for a batch: the mean over the workers is used, and "
    "MirroredStrategy adds the numbers of the replicas"
)
Targets = Callable[[], Any]


def size() -> Any:
    return numbers(EXAMPLES, 2, seed=8)


def positive() -> Any:
    return np.abs(size()) + 0.1


def sign() -> Any:
    return np.sign(size())


def two() -> Any:
    return (size() > 0).astype(np.float32)


def one_hot() -> Any:
    return np.eye(CLASSES, dtype=np.float32)[labels()]


def against(loss: Callable[[], Any], targets: Targets, activation: Any = None, **options: Any) -> Run:
    """Return a case that trains two epochs with a smaller last batch, and evaluates."""

    def run(place: Place) -> Values:
        y = targets()
        outputs = y.shape[-1] if y.ndim > 1 else CLASSES
        model = compiled(place, lambda: mlp(outputs, activation), loss=loss, metrics=None, **options)
        x, _ = data()
        return fit(model, x[:UNEVEN], y[:UNEVEN]) | scores(model, x, y)

    return run


def weights_of(values: Values) -> Values:
    return {name: value for name, value in values.items() if name.startswith("weight")}


def summed_entropy() -> Any:
    return cross_entropy(reduction="sum")


def slow() -> Any:
    return keras.optimizers.SGD(0.01)


# Each: its name, its class, the targets and the activation of the outputs.
BUILT_IN: tuple[tuple[str, Callable[[], Any], Targets, Any], ...] = (
    ("MeanSquaredError", losses.MeanSquaredError, size, None),
    ("MeanAbsoluteError", losses.MeanAbsoluteError, size, None),
    ("MeanAbsolutePercentageError", losses.MeanAbsolutePercentageError, positive, "softplus"),
    ("MeanSquaredLogarithmicError", losses.MeanSquaredLogarithmicError, positive, "softplus"),
    ("Huber", losses.Huber, size, None),
    ("LogCosh", losses.LogCosh, size, None),
    ("CosineSimilarity", losses.CosineSimilarity, size, None),
    ("Poisson", losses.Poisson, positive, "softplus"),
    ("Hinge", losses.Hinge, sign, "tanh"),
    ("SquaredHinge", losses.SquaredHinge, sign, "tanh"),
    ("CategoricalHinge", losses.CategoricalHinge, one_hot, None),
    ("KLDivergence", losses.KLDivergence, one_hot, "softmax"),
    ("BinaryCrossentropy", losses.BinaryCrossentropy, two, "sigmoid"),
    ("BinaryFocalCrossentropy", losses.BinaryFocalCrossentropy, two, "sigmoid"),
    (
        "CategoricalCrossentropy",
        lambda: losses.CategoricalCrossentropy(label_smoothing=0.1),
        one_hot,
        "softmax",
    ),
    ("CategoricalFocalCrossentropy", losses.CategoricalFocalCrossentropy, one_hot, "softmax"),
    ("SparseCategoricalCrossentropy", cross_entropy, labels, None),
    ("CategoricalGeneralizedCrossEntropy", losses.CategoricalGeneralizedCrossEntropy, labels, "softmax"),
)


for _name, *_arguments in BUILT_IN:
    case(_name, against(*_arguments), three=_name == "SparseCategoricalCrossentropy")

case(
    "SparseCategoricalCrossentropy with ignore_class",
    against(lambda: cross_entropy(ignore_class=0), labels),
    differs="the loss is divided by a worker's own number of labels that count",
)


@case("CTC")
def ctc(place: Place) -> Values:
    model = compiled(place, lambda: sequential((6, 2), layers.Dense(5)), loss=losses.CTC, metrics=None)
    return fit(model, numbers(UNEVEN, 6, 2), 1 + labels(UNEVEN * 2, 4).reshape(UNEVEN, 2))


@case("Circle", differs="compares the examples of a worker's part of the batch with each other")
def circle(place: Place) -> Values:
    def make() -> Any:
        return sequential((FEATURES,), layers.Dense(4), layers.UnitNormalization())

    return fit(compiled(place, make, loss=losses.Circle, metrics=None))


case("Dice", against(losses.Dice, two, "sigmoid"), differs=ONE_NUMBER)
case("Dice for each example", against(lambda: losses.Dice(axis=(1,)), two, "sigmoid"))
case("Tversky", against(losses.Tversky, two, "sigmoid"), differs=ONE_NUMBER)


def by_example(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5, axis=-1)


def of_the_batch(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.square(y_true - y_pred))


class Own(losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(tf.square(y_true - y_pred), axis=-1)


case("own function, a number for each example", against(lambda: by_example, size), three=True)


@case("own function, one number for a batch, even batches", three=True)
def own_number(place: Place) -> Values:
    model = compiled(place, lambda: mlp(2), loss=lambda: of_the_batch, metrics=None)
    return fit(model, data()[0], size())


case("own function, one number for a batch, uneven batches", against(lambda: of_the_batch, size))
case("own class", against(Own, size), three=True)
case("function of keras.losses", against(lambda: keras.losses.mean_squared_error, size))


@case("a sum, even batches", three=True)
def summed(place: Place) -> Values:
    return fit(compiled(place, optimizer=slow, loss=summed_entropy, metrics=None))


summed_unevenly = case(
    "a sum, uneven batches",
    against(summed_entropy, labels, optimizer=slow),
    three=True,
    differs="the log weights the workers' sums by their examples; the weights of the model are equal",
)
case("a sum, weights of the model, uneven batches", lambda place: weights_of(summed_unevenly(place)))


@case("a sum and regularisers", three=True)
def summed_regularised(place: Place) -> Values:
    make = functools.partial(mlp, kernel_regularizer="l2")
    model = compiled(place, make, slow, loss=summed_entropy, metrics=None)
    return weights_of(fit(model, *data(UNEVEN)))


@case(
    "mean_with_sample_weight",
    differs="divided by a worker's own weights, as by a replica's under MirroredStrategy",
)
def by_weights(place: Place) -> Values:
    loss = lambda: cross_entropy(reduction="mean_with_sample_weight")  # noqa: E731
    model = compiled(place, loss=loss, metrics=None)
    return fit(model, sample_weight=np.linspace(0.1, 2, EXAMPLES).astype(np.float32))


case("reduction=None", against(lambda: cross_entropy(reduction=None), labels, optimizer=slow))


@case("losses of two outputs, uneven batches", three=True)
def of_outputs(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        return keras.Model(inputs, [layers.Dense(3, name="k")(inputs), layers.Dense(2, name="v")(inputs)])

    model = compiled(place, make, loss=lambda: [cross_entropy(), "mse"], metrics=[["accuracy"], ["mae"]])
    x, y = data(UNEVEN)
    return fit(model, x, [y, size()[:UNEVEN]]) | scores(model, data()[0], [labels(), size()])


@case("an output without a loss", quick=True)
def without_loss(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        return keras.Model(inputs, {"k": layers.Dense(3, name="k")(inputs), "v": layers.Dense(2)(inputs)})

    model = compiled(place, make, loss=lambda: {"k": cross_entropy()}, metrics={"k": ["accuracy"]})
    x, y = data(UNEVEN)
    return fit(model, x, {"k": y, "v": size()[:UNEVEN]})


class OwnComputeLoss(Plain):
    """Adds a penalty of the outputs in compute_loss."""

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return loss + 0.1 * tf.reduce_mean(tf.square(y_pred)) / replicas


case("own compute_loss", lambda place: fit(compiled(place, OwnComputeLoss)), three=True, quick=True)


@case("only add_loss, no compiled loss")
def only_added(place: Place) -> Values:
    class Added(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.last = dense(2)

        def call(self, x: Any) -> Any:
            y = self.last(x)
            self.add_loss(tf.reduce_mean(tf.square(y - x[:, :2])))
            return y

    model = compiled(place, Added, loss=None, metrics=None)
    return fit(model, data()[0], batch_size=BATCH)
