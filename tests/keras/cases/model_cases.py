"""Cases: kinds of models."""

from __future__ import annotations

from typing import Any

import keras
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

case = topic("models")
IMAGES = (8, 8, 2)
WORDS, LENGTH = 12, 5
VARIED = (
    "normalises each worker's part of the batch, as MirroredStrategy does; "
    "there the first replica's moving statistics are kept, here their mean"
)


def trained(place: Place, make: Any, x: Any = None, y: Any = None, **options: Any) -> Values:
    """Train and predict."""
    x, y = data() if x is None else (x, labels() if y is None else y)
    model = compiled(place, make, **options)
    return fit(model, x, y) | predicted(model, x)


def on_images(place: Place, *stack: Any, shape: tuple[int, ...] = IMAGES) -> Values:
    def make() -> Any:
        return sequential(shape, *[layer() for layer in stack], layers.Flatten(), dense())

    return trained(place, make, numbers(EXAMPLES, *shape))


def words() -> Any:
    return labels(EXAMPLES * LENGTH, WORDS).reshape(EXAMPLES, LENGTH)


def on_words(place: Place, *stack: Any, mask: bool = False, y: Any = None) -> Values:
    def make() -> Any:
        embedding = layers.Embedding(WORDS, 4, mask_zero=mask)
        return sequential((LENGTH,), embedding, *[layer() for layer in stack], dense(), dtype="int32")

    return trained(place, make, words(), y)


@case("linear regression", three=True)
def linear(place: Place) -> Values:
    return trained(place, lambda: sequential((FEATURES,), dense(1)), *targets(), loss="mse", metrics=["mae"])


def targets() -> tuple[Any, Any]:
    x = data()[0]
    return x, x.sum(axis=1, keepdims=True)


@case("multilayer perceptron", three=True)
def perceptron(place: Place) -> Values:
    return trained(place, mlp)


@case("residual network of dense layers")
def residual(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        x = layers.Dense(FEATURES, "gelu")(inputs)
        x = layers.Add()([x, inputs])
        return keras.Model(inputs, dense()(layers.Dense(4, "silu")(x)))

    return trained(place, make)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers.Dense(5, "relu"), layers.Dense(4, "tanh")]
        self.last = dense()

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.hidden:
            x = layer(x)
        return self.last(x) * (2.0 if training else 1.0)


@case("subclassed model")
def subclassed(place: Place) -> Values:
    return trained(place, Subclassed)


@case("two inputs")
def two_inputs(place: Place) -> Values:
    def make() -> Any:
        inputs = [keras.Input((FEATURES,)), keras.Input((FEATURES,))]
        return keras.Model(inputs, dense()(layers.Concatenate()(inputs)))

    x, y = data()
    return trained(place, make, [x, x * 2], y)


@case("inputs by name, wide and deep")
def wide_and_deep(place: Place) -> Values:
    def make() -> Any:
        inputs = {"wide": keras.Input((FEATURES,), name="wide"), "deep": keras.Input((2,), name="deep")}
        both = layers.Concatenate()([inputs["wide"], layers.Dense(4, "relu")(inputs["deep"])])
        return keras.Model(inputs, dense()(both))

    x, y = data()
    return trained(place, make, {"wide": x, "deep": x[:, :2]}, y)


@case("two outputs with weights of their losses", three=True)
def two_outputs(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input((FEATURES,))
        hidden = layers.Dense(5, "tanh")(inputs)
        return keras.Model(inputs, {"kind": layers.Dense(3)(hidden), "size": layers.Dense(1)(hidden)})

    x, size = targets()
    return trained(
        place,
        make,
        x,
        {"kind": labels(), "size": size},
        loss=lambda: {"kind": keras.losses.SparseCategoricalCrossentropy(True), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )


@case("shared layers (siamese)")
def siamese(place: Place) -> Values:
    def make() -> Any:
        tower = mlp(4)
        inputs = [keras.Input((FEATURES,)), keras.Input((FEATURES,))]
        distance = layers.Subtract()([tower(one) for one in inputs])
        return keras.Model(inputs, dense(1, "sigmoid")(distance))

    x, y = data()
    labels = (y > 0).astype("float32")
    return trained(place, make, [x, x[::-1].copy()], labels, loss="binary_crossentropy")


@case("model within a model")
def nested(place: Place) -> Values:
    return trained(place, lambda: sequential((FEATURES,), mlp(5), keras.layers.ReLU(), mlp2(), dense()))


def mlp2() -> Any:
    return sequential((5,), layers.Dense(4, "elu"), layers.Dense(4, "selu"))


@case("autoencoder")
def autoencoder(place: Place) -> Values:
    x, _ = data()
    return trained(place, lambda: mlp(FEATURES), x, x, loss="mse", metrics=["mae"])


@case("convolutional network", three=True)
def convolutional(place: Place) -> Values:
    return on_images(
        place,
        lambda: layers.Conv2D(4, 3, activation="relu"),
        layers.MaxPooling2D,
        lambda: layers.Conv2D(3, 2),
    )


@case("depthwise and separable convolutions")
def separable(place: Place) -> Values:
    return on_images(place, lambda: layers.DepthwiseConv2D(3), lambda: layers.SeparableConv2D(3, 3))


@case("dilated convolution, strides and padding")
def dilated(place: Place) -> Values:
    return on_images(
        place,
        lambda: layers.Conv2D(3, 3, dilation_rate=2, padding="same"),
        lambda: layers.Conv2D(3, 3, strides=2, padding="same"),
    )


@case("U-Net with transposed convolution")
def u_net(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input(IMAGES)
        wide = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
        deep = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D()(wide))
        up = layers.Conv2DTranspose(3, 2, strides=2)(deep)
        return keras.Model(inputs, layers.Conv2D(1, 1)(layers.Concatenate()([wide, up])))

    x = numbers(EXAMPLES, *IMAGES)
    return trained(place, make, x, x.mean(axis=3, keepdims=True), loss="mse", metrics=None)


def small_resnet(**norm: Any) -> Any:
    inputs = keras.Input(IMAGES)
    x = layers.BatchNormalization(**norm)(layers.Conv2D(3, 3, padding="same", use_bias=False)(inputs))
    y = layers.Conv2D(3, 3, padding="same", use_bias=False)(layers.ReLU()(x))
    y = layers.BatchNormalization(**norm)(y)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return keras.Model(inputs, dense()(x))


@case("ResNet block with BatchNormalization", differs=VARIED)
def resnet(place: Place) -> Values:
    return trained(place, small_resnet, numbers(EXAMPLES, *IMAGES))


@case("ResNet block, synchronized BatchNormalization", three=True)
def synchronized_resnet(place: Place) -> Values:
    return trained(place, lambda: small_resnet(synchronized=True), numbers(EXAMPLES, *IMAGES))


@case("convolutions over time")
def over_time(place: Place) -> Values:
    return on_images(
        place, lambda: layers.Conv1D(4, 3, padding="causal"), layers.GlobalMaxPooling1D, shape=(8, 3)
    )


@case("three-dimensional convolution")
def volumes(place: Place) -> Values:
    return on_images(
        place, lambda: layers.Conv3D(2, 2), lambda: layers.AveragePooling3D(2), shape=(4, 4, 4, 1)
    )


@case("convolutional LSTM")
def convolutional_lstm(place: Place) -> Values:
    return on_images(place, lambda: layers.ConvLSTM1D(2, 2), shape=(3, 5, 1))


@case("embeddings, mean over words", three=True)
def bag_of_words(place: Place) -> Values:
    return on_words(place, layers.GlobalAveragePooling1D)


@case("LSTM")
def lstm(place: Place) -> Values:
    return on_words(place, lambda: layers.LSTM(4))


@case("LSTM of padded texts (mask_zero)")
def masked_lstm(place: Place) -> Values:
    return on_words(place, lambda: layers.LSTM(4), mask=True)


@case("GRU, two directions")
def gru(place: Place) -> Values:
    return on_words(place, lambda: layers.Bidirectional(layers.GRU(3)))


@case("stacked recurrent cells")
def stacked(place: Place) -> Values:
    return on_words(place, lambda: layers.RNN([layers.SimpleRNNCell(4), layers.LSTMCell(3)]))


@case("a label for each word")
def tagging(place: Place) -> Values:
    return on_words(place, lambda: layers.GRU(4, return_sequences=True), y=words() % CLASSES)


@case(
    "a label for each word of padded texts",
    differs="divided by a worker's own number of words that are not padding",
)
def masked_tagging(place: Place) -> Values:
    return on_words(place, lambda: layers.GRU(4, return_sequences=True), mask=True, y=words() % CLASSES)


@case("transformer block", three=True)
def transformer(place: Place) -> Values:
    def make() -> Any:
        inputs = keras.Input((LENGTH,), dtype="int32")
        x = layers.Embedding(WORDS, 4)(inputs)
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True))
        x = layers.LayerNormalization()(x + layers.Dense(4)(layers.Dense(8, "gelu")(x)))
        return keras.Model(inputs, dense()(layers.GlobalAveragePooling1D()(x)))

    return trained(place, make, words())


@case("sequence to sequence with attention")
def sequence_to_sequence(place: Place) -> Values:
    def make() -> Any:
        inputs = [keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,), dtype="int32")]
        source, state = layers.GRU(4, return_sequences=True, return_state=True)(
            layers.Embedding(WORDS, 4)(inputs[0])
        )
        target = layers.GRU(4, return_sequences=True)(
            layers.Embedding(WORDS, 4)(inputs[1]), initial_state=state
        )
        both = layers.Concatenate()([target, layers.AdditiveAttention()([target, source])])
        return keras.Model(inputs, layers.Dense(WORDS)(both))

    x = words()
    return trained(place, make, [x, x[:, ::-1].copy()], (x + 1) % WORDS)


class Tied(keras.Model):
    """Uses the embedding's table for the output, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(WORDS, 4)
        self.mix = layers.Dense(4)

    def call(self, x: Any) -> Any:
        mixed = self.mix(self.embedding(x))
        return tf.matmul(mixed, tf.convert_to_tensor(self.embedding.embeddings), transpose_b=True)


@case("language model with tied weights")
def tied(place: Place) -> Values:
    x = words()
    return trained(place, Tied, x, (x + 1) % WORDS)


@case("recommender (dot product of embeddings)")
def recommender(place: Place) -> Values:
    def make() -> Any:
        inputs = [keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32")]
        vectors = [layers.Flatten()(layers.Embedding(WORDS, 3)(one)) for one in inputs]
        return keras.Model(inputs, layers.Dot(axes=1)(vectors))

    x = words()
    return trained(place, make, [x[:, :1], x[:, 1:2]], targets()[1], loss="mse", metrics=None)


class Graph(keras.Model):
    """Sums the neighbours of each node by the graph's adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(4, "relu"), dense()

    def call(self, inputs: Any) -> Any:
        nodes, edges = inputs
        hidden = tf.matmul(edges, self.first(nodes))
        return self.last(tf.reduce_mean(hidden, axis=1))


@case("graph network")
def graph(place: Place) -> Values:
    return trained(place, Graph, [numbers(EXAMPLES, 4, 3), numbers(EXAMPLES, 4, 4, seed=5)], labels())


@case("variational autoencoder without noise")
def variational(place: Place) -> Values:
    x, _ = data()
    return trained(place, Variational, x, x, loss="mse", metrics=None)


class Variational(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread, self.decoder = layers.Dense(2), layers.Dense(2), layers.Dense(FEATURES)

    def call(self, x: Any) -> Any:
        mean, spread = self.mean(x), self.spread(x)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(mean) + tf.exp(spread) - spread - 1.0))
        return self.decoder(mean + 0.1 * spread)
