"""Cases: layers that keep a state or draw numbers, and dtype policies."""

from __future__ import annotations

import functools
from typing import Any

import keras
import model_cases
import numpy as np
import tensorflow as tf
from case import (
    CLASSES,
    EXAMPLES,
    FEATURES,
    Place,
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
    predicted,
    sequential,
    topic,
)
from keras import layers
from model_cases import VARIED, trained

case = topic("layers and policies")
model = functools.partial(model_cases.model, declare=case)
DRAWN = "each worker draws other random numbers; under MirroredStrategy all replicas draw the same"
ROUNDED = "the parts of a batch are rounded to 8 or 11 bits separately"


def between(*stack: Any) -> Run:
    """Return a case that trains with layers between two dense ones."""
    return trained(lambda: sequential((FEATURES,), layers.Dense(6), *[layer() for layer in stack], dense()))


case("LayerNormalization", between(layers.LayerNormalization, layers.ReLU))
case(
    "GroupNormalization, RMSNormalization, UnitNormalization",
    between(lambda: layers.GroupNormalization(2), layers.RMSNormalization, layers.UnitNormalization),
)
case("BatchNormalization", between(layers.BatchNormalization), three=True, differs=VARIED)
case("BatchNormalization that is frozen", between(lambda: layers.BatchNormalization(trainable=False)))
case("SpectralNormalization", between(lambda: layers.SpectralNormalization(layers.Dense(5))))


@model("PReLU, maxout by Maximum")
def prelu() -> Any:
    inputs = keras.Input((FEATURES,))
    parts = [layers.PReLU()(layers.Dense(4)(inputs)) for _ in range(2)]
    return keras.Model(inputs, dense()(layers.Maximum()(parts)))


case("EinsumDense", between(lambda: layers.EinsumDense("ab,bc->ac", 5, bias_axes="c")))
case("Dropout", between(lambda: layers.Dropout(0.5)), differs=DRAWN)
case("GaussianNoise", between(lambda: layers.GaussianNoise(0.5)), differs=DRAWN)


@case("Dropout that is off in evaluate and predict")
def dropout_at_rest(place: Place) -> Values:
    model = compiled(place, lambda: sequential((FEATURES,), layers.Dropout(0.5), dense()))
    x, y = data()
    loss, accuracy = model.evaluate(x, y, batch_size=12, verbose=0)
    return predicted(model, x) | {"loss": loss, "accuracy": accuracy}


case(
    "augmentation by RandomFlip",
    trained(
        lambda: sequential((4, 4, 1), layers.RandomFlip(), layers.Flatten(), dense()),
        numbers(EXAMPLES, 4, 4, 1),
    ),
    differs=DRAWN,
)


class Noted(layers.Layer):
    """Adds a loss, and keeps a running mean as BatchNormalization does."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign(self.seen * 0.9 + 0.1 * tf.reduce_mean(x))
        self.add_loss(0.01 * tf.reduce_sum(tf.square(self.scale)))
        return x * self.scale


case("own layer with add_loss and a running mean", between(Noted), three=True)
case("ActivityRegularization", between(lambda: layers.ActivityRegularization(l1=0.01, l2=0.02)), three=True)
case(
    "regularisers of kernel and bias",
    trained(lambda: mlp(kernel_regularizer="l2", bias_regularizer="l1")),
    three=True,
)
case(
    "orthogonal regulariser",
    trained(lambda: mlp(kernel_regularizer=keras.regularizers.OrthogonalRegularizer())),
)
case("constraints of weights", trained(lambda: mlp(kernel_constraint=keras.constraints.MaxNorm(0.7))))


@model("Normalization that was adapted")
def adapted() -> Any:
    norm = layers.Normalization()
    norm.adapt(data()[0])
    return sequential((FEATURES,), norm, dense())


@model("Discretization and CategoryEncoding")
def discretised() -> Any:
    kinds = layers.CategoryEncoding(3, output_mode="count")
    return sequential((FEATURES,), layers.Discretization([-0.5, 0.5]), kinds, dense())


@case("StringLookup in the pipeline")
def looked_up(place: Place) -> Values:
    names = np.array(["red", "green", "blue", "grey"])[labels(EXAMPLES, 4)]
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
    batches = tf.data.Dataset.from_tensor_slices((names, labels())).batch(12)
    model = compiled(place, lambda: sequential((4,), dense()))
    return fit(model, batches.map(lambda x, y: (lookup(x), y)))


@case("TextVectorization in the pipeline")
def vectorised(place: Place) -> Values:
    texts = np.array(["a good film", "bad", "so good so good", "no film"])[labels(EXAMPLES, 4)]
    vectors = layers.TextVectorization(output_sequence_length=4)
    vectors.adapt(texts)
    batches = tf.data.Dataset.from_tensor_slices((texts, labels())).batch(12)

    def make() -> Any:
        return sequential((4,), layers.Embedding(10, 3), layers.Flatten(), dense(), dtype="int64")

    return fit(compiled(place, make), batches.map(lambda x, y: (vectors(x), y)))


@model("Hashing and embedding", labels(EXAMPLES * 3, 99).reshape(EXAMPLES, 3))
def hashed() -> Any:
    hashing = layers.Hashing(7)
    return sequential((3,), hashing, layers.Embedding(7, 3), layers.Flatten(), dense(), dtype="int64")


@model(
    "Rescaling and resizing of uint8 images",
    labels(EXAMPLES * 36, 255).reshape(EXAMPLES, 6, 6, 1).astype(np.uint8),
)
def resized() -> Any:
    scaled = layers.Rescaling(1 / 255), layers.Resizing(4, 4)
    return sequential((6, 6, 1), *scaled, layers.Flatten(), dense(), dtype="uint8")


@model("frozen layers (transfer learning)", three=True)
def frozen() -> Any:
    base = mlp(5)
    base.trainable = False
    return sequential((FEATURES,), base, dense())


@case("layers that are thawed between two fits")
def thawed(place: Place) -> Values:
    with place.scope():
        model = frozen()
    for trainable in (False, True):
        model.layers[0].trainable = trainable
        with place.scope():
            model.compile("sgd", cross_entropy())
        values = fit(model)
    return values


@model("LoRA")
def lora() -> Any:
    model = mlp()
    model.layers[0].enable_lora(2)
    return model


def with_policy(policy: str, run: Run) -> Run:
    def run_with_policy(place: Place) -> Values:
        keras.config.set_dtype_policy(policy)
        return run(place)

    return run_with_policy


case(
    "float64",
    with_policy(
        "float64",
        trained(lambda: sequential((FEATURES,), layers.Dense(5, "tanh"), layers.Dense(CLASSES))),
    ),
)
case("mixed_bfloat16", with_policy("mixed_bfloat16", trained(mlp)), differs=ROUNDED, within=2e-2)
case(
    "mixed_float16 with loss scaling",
    with_policy("mixed_float16", trained(mlp)),
    differs=ROUNDED,
    within=2e-2,
)
