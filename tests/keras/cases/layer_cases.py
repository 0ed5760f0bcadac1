"""Cases: layers that keep a state or draw numbers, and dtype policies."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import (
    CLASSES,
    EXAMPLES,
    FEATURES,
    Place,
    Values,
    compiled,
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
DRAWN = "each worker draws other random numbers; under MirroredStrategy all replicas draw the same"
ROUNDED = "the parts of a batch are rounded to 8 or 11 bits separately"


def between(place: Place, *stack: Any) -> Values:
    """Train with layers between two dense ones."""

    def make() -> Any:
        return sequential((FEATURES,), layers.Dense(6), *[layer() for layer in stack], dense())

    return trained(place, make)


@case("LayerNormalization")
def layer_norm(place: Place) -> Values:
    return between(place, layers.LayerNormalization, layers.ReLU)


@case("GroupNormalization, RMSNormalization, UnitNormalization")
def other_norms(place: Place) -> Values:
    return between(
        place, lambda: layers.GroupNormalization(2), layers.RMSNormalization, layers.UnitNormalization
    )


@case("BatchNormalization", three=True, differs=VARIED)
def batch_norm(place: Place) -> Values:
    return between(place, layers.BatchNormalization)


@case("BatchNormalization that is frozen")
def frozen_norm(place: Place) -> Values:
    return between(place, lambda: layers.BatchNormalization(trainable=False))


@case("SpectralNormalization")
def spectral(place: Place) -> Values:
    return between(place, lambda: layers.SpectralNormalization(layers.Dense(5)))


@case("PReLU, maxout by Maximum")
def prelu(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        parts = [layers.PReLU()(layers.Dense(4)(inputs)) for _ in range(2)]
        return keras.Model(inputs, dense()(layers.Maximum()(parts)))

    return trained(place, make)


@case("EinsumDense")
def einsum(place: Place) -> Values:
    return between(place, lambda: layers.EinsumDense("ab,bc->ac", 5, bias_axes="c"))


@case("Dropout", differs=DRAWN)
def dropout(place: Place) -> Values:
    return between(place, lambda: layers.Dropout(0.5))


@case("GaussianNoise", differs=DRAWN)
def noise(place: Place) -> Values:
    return between(place, lambda: layers.GaussianNoise(0.5))


@case("Dropout that is off in evaluate and predict")
def dropout_at_rest(place: Place) -> Values:
    model = compiled(place, lambda: sequential((FEATURES,), layers.Dropout(0.5), dense()))
    x, y = data()
    loss, accuracy = model.evaluate(x, y, batch_size=12, verbose=0)
    return predicted(model, x) | {"loss": loss, "accuracy": accuracy}


@case("augmentation by RandomFlip", differs=DRAWN)
def flips(place: Place) -> Values:
    def make() -> Any:
        return sequential((4, 4, 1), layers.RandomFlip(), layers.Flatten(), dense())

    return trained(place, make, numbers(EXAMPLES, 4, 4, 1))


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


@case("own layer with add_loss and a running mean", three=True)
def own_layer(place: Place) -> Values:
    return between(place, Noted)


@case("ActivityRegularization", three=True)
def activity(place: Place) -> Values:
    return between(place, lambda: layers.ActivityRegularization(l1=0.01, l2=0.02))


@case("regularisers of kernel and bias", three=True)
def regularisers(place: Place) -> Values:
    return trained(place, lambda: mlp(kernel_regularizer="l2", bias_regularizer="l1"))


@case("orthogonal regulariser")
def orthogonal(place: Place) -> Values:
    return trained(place, lambda: mlp(kernel_regularizer=keras.regularizers.OrthogonalRegularizer()))


@case("constraints of weights")
def constraints(place: Place) -> Values:
    return trained(place, lambda: mlp(kernel_constraint=keras.constraints.MaxNorm(0.7)))


@case("Normalization that was adapted")
def adapted(place: Place) -> Values:
    def make() -> Any:
        norm = layers.Normalization()
        norm.adapt(data()[0])
        return sequential((FEATURES,), norm, dense())

    return trained(place, make)


@case("Discretization and CategoryEncoding")
def discretised(place: Place) -> Values:
    def make() -> Any:
        kinds = layers.CategoryEncoding(3, output_mode="count")
        return sequential((FEATURES,), layers.Discretization([-0.5, 0.5]), kinds, dense())

    return trained(place, make)


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


@case("Hashing and embedding")
def hashed(place: Place) -> Values:
    def make() -> Any:
        hashing = layers.Hashing(7)
        return sequential((3,), hashing, layers.Embedding(7, 3), layers.Flatten(), dense(), dtype="int64")

    return trained(place, make, labels(EXAMPLES * 3, 99).reshape(EXAMPLES, 3))


@case("Rescaling and resizing of uint8 images")
def resized(place: Place) -> Values:
    def make() -> Any:
        return sequential(
            (6, 6, 1),
            layers.Rescaling(1 / 255),
            layers.Resizing(4, 4),
            layers.Flatten(),
            dense(),
            dtype="uint8",
        )

    return trained(place, make, labels(EXAMPLES * 36, 255).reshape(EXAMPLES, 6, 6, 1).astype(np.uint8))


@case("frozen layers (transfer learning)", three=True)
def frozen(place: Place) -> Values:
    def make() -> Any:
        base = mlp(5)
        base.trainable = False
        return sequential((FEATURES,), base, dense())

    return trained(place, make)


@case("layers that are thawed between two fits")
def thawed(place: Place) -> Values:
    with place.scope():
        base = mlp(5)
        base.trainable = False
        model = sequential((FEATURES,), base, dense())
    for trainable in (False, True):
        base.trainable = trainable
        with place.scope():
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        values = fit(model)
    return values


@case("LoRA")
def lora(place: Place) -> Values:
    def make() -> Any:
        model = mlp()
        model.layers[0].enable_lora(2)
        return model

    return trained(place, make)


@case("float64")
def float64(place: Place) -> Values:
    keras.config.set_dtype_policy("float64")
    return trained(place, lambda: sequential((FEATURES,), layers.Dense(5, "tanh"), layers.Dense(CLASSES)))


@case("mixed_bfloat16", differs=ROUNDED, within=2e-2)
def bfloat16(place: Place) -> Values:
    keras.config.set_dtype_policy("mixed_bfloat16")
    return trained(place, mlp)


@case("mixed_float16 with loss scaling", differs=ROUNDED, within=2e-2)
def float16(place: Place) -> Values:
    keras.config.set_dtype_policy("mixed_float16")
    return trained(place, mlp)
