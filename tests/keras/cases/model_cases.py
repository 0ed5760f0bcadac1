"""Cases: kinds of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from case import (
    CLASSES,
    EXAMPLES,
    FEATURES,
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


def trained(make: Any, x: Any = None, y: Any = None, **options: Any) -> Run:
    """Return a case that trains and predicts."""

    def run(place: Place) -> Values:
        inputs, targets = data() if x is None else (x, labels() if y is None else y)
        model = compiled(place, make, **options)
        return fit(model, inputs, targets) | predicted(model, inputs)

    return run


def model(
    name: str, *x_and_y: Any, declare: Any = case, three: bool = False, differs: str = "", **options: Any
) -> Callable[[Any], Any]:
    """Return the decorator of a function that makes the model of a case."""

    def decorate(make: Any) -> Any:
        declare(name, trained(make, *x_and_y, **options), three=three, differs=differs)
        return make

    return decorate


def on_images(*stack: Any, shape: tuple[int, ...] = IMAGES) -> Run:
    def make() -> Any:
        return sequential(shape, *[layer() for layer in stack], layers.Flatten(), dense())

    return trained(make, numbers(EXAMPLES, *shape))


def words() -> Any:
    return labels(EXAMPLES * LENGTH, WORDS).reshape(EXAMPLES, LENGTH)


def on_words(*stack: Any, mask: bool = False, y: Any = None) -> Run:
    def make() -> Any:
        embedding = layers.Embedding(WORDS, 4, mask_zero=mask)
        return sequential((LENGTH,), embedding, *[layer() for layer in stack], dense(), dtype="int32")

    return trained(make, words(), y)


X, Y = data()
SUMS = X.sum(axis=1, keepdims=True)
PIXELS = numbers(EXAMPLES, *IMAGES)
NEXT_WORDS = (words() + 1) % WORDS
ERRORS = {"loss": "mse", "metrics": ["mae"]}

case("linear regression", trained(lambda: sequential((FEATURES,), dense(1)), X, SUMS, **ERRORS), three=True)
case("multilayer perceptron", trained(mlp), three=True)


@model("residual network of dense layers")
def residual() -> Any:
    inputs = keras.Input((FEATURES,))
    x = layers.Dense(FEATURES, "gelu")(inputs)
    x = layers.Add()([x, inputs])
    return keras.Model(inputs, dense()(layers.Dense(4, "silu")(x)))


@model("subclassed model")
class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers.Dense(5, "relu"), layers.Dense(4, "tanh")]
        self.last = dense()

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.hidden:
            x = layer(x)
        return self.last(x) * (2.0 if training else 1.0)


@model("two inputs", [X, X * 2], Y)
def two_inputs() -> Any:
    inputs = [keras.Input((FEATURES,)), keras.Input((FEATURES,))]
    return keras.Model(inputs, dense()(layers.Concatenate()(inputs)))


@model("inputs by name, wide and deep", {"wide": X, "deep": X[:, :2]}, Y)
def wide_and_deep() -> Any:
    inputs = {"wide": keras.Input((FEATURES,), name="wide"), "deep": keras.Input((2,), name="deep")}
    both = layers.Concatenate()([inputs["wide"], layers.Dense(4, "relu")(inputs["deep"])])
    return keras.Model(inputs, dense()(both))


@model(
    "two outputs with weights of their losses",
    *(X, {"kind": labels(), "size": SUMS}),
    three=True,
    loss=lambda: {"kind": keras.losses.SparseCategoricalCrossentropy(True), "size": "mse"},
    loss_weights={"kind": 1.0, "size": 0.3},
    metrics={"kind": ["accuracy"], "size": ["mae"]},
)
def two_outputs() -> Any:
    inputs = keras.Input((FEATURES,))
    hidden = layers.Dense(5, "tanh")(inputs)
    return keras.Model(inputs, {"kind": layers.Dense(3)(hidden), "size": layers.Dense(1)(hidden)})


@model("shared layers (siamese)", [X, X[::-1].copy()], (Y > 0).astype("float32"), loss="binary_crossentropy")
def siamese() -> Any:
    tower = mlp(4)
    inputs = [keras.Input((FEATURES,)), keras.Input((FEATURES,))]
    distance = layers.Subtract()([tower(one) for one in inputs])
    return keras.Model(inputs, dense(1, "sigmoid")(distance))


@model("model within a model")
def nested() -> Any:
    hidden, relu = mlp(5), layers.ReLU()
    inner = sequential((5,), layers.Dense(4, "elu"), layers.Dense(4, "selu"))
    return sequential((FEATURES,), hidden, relu, inner, dense())


case("autoencoder", trained(lambda: mlp(FEATURES), X, X, **ERRORS))
case(
    "convolutional network",
    on_images(
        lambda: layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D, lambda: layers.Conv2D(3, 2)
    ),
    three=True,
)
case(
    "depthwise and separable convolutions",
    on_images(lambda: layers.DepthwiseConv2D(3), lambda: layers.SeparableConv2D(3, 3)),
)
case(
    "dilated convolution, strides and padding",
    on_images(
        lambda: layers.Conv2D(3, 3, dilation_rate=2, padding="same"),
        lambda: layers.Conv2D(3, 3, strides=2, padding="same"),
    ),
)


@model(
    "U-Net with transposed convolution", PIXELS, PIXELS.mean(axis=3, keepdims=True), loss="mse", metrics=None
)
def u_net() -> Any:
    inputs = keras.Input(IMAGES)
    wide = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
    deep = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D()(wide))
    up = layers.Conv2DTranspose(3, 2, strides=2)(deep)
    return keras.Model(inputs, layers.Conv2D(1, 1)(layers.Concatenate()([wide, up])))


@model("ResNet block with BatchNormalization", PIXELS, differs=VARIED)
def small_resnet(**norm: Any) -> Any:
    inputs = keras.Input(IMAGES)
    x = layers.BatchNormalization(**norm)(layers.Conv2D(3, 3, padding="same", use_bias=False)(inputs))
    y = layers.Conv2D(3, 3, padding="same", use_bias=False)(layers.ReLU()(x))
    y = layers.BatchNormalization(**norm)(y)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return keras.Model(inputs, dense()(x))


case(
    "ResNet block, synchronized BatchNormalization",
    trained(lambda: small_resnet(synchronized=True), PIXELS),
    three=True,
)
case(
    "convolutions over time",
    on_images(lambda: layers.Conv1D(4, 3, padding="causal"), layers.GlobalMaxPooling1D, shape=(8, 3)),
)
case(
    "three-dimensional convolution",
    on_images(lambda: layers.Conv3D(2, 2), lambda: layers.AveragePooling3D(2), shape=(4, 4, 4, 1)),
)
case("convolutional LSTM", on_images(lambda: layers.ConvLSTM1D(2, 2), shape=(3, 5, 1)))
case("embeddings, mean over words", on_words(layers.GlobalAveragePooling1D), three=True)
case("LSTM", on_words(lambda: layers.LSTM(4)))
case("LSTM of padded texts (mask_zero)", on_words(lambda: layers.LSTM(4), mask=True))
case("GRU, two directions", on_words(lambda: layers.Bidirectional(layers.GRU(3))))
case("stacked recurrent cells", on_words(lambda: layers.RNN([layers.SimpleRNNCell(4), layers.LSTMCell(3)])))
case("a label for each word", on_words(lambda: layers.GRU(4, return_sequences=True), y=words() % CLASSES))
case(
    "a label for each word of padded texts",
    on_words(lambda: layers.GRU(4, return_sequences=True), mask=True, y=words() % CLASSES),
    differs="divided by a worker's own number of words that are not padding",
)


@model("transformer block", words(), three=True)
def transformer() -> Any:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 4)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.Dense(4)(layers.Dense(8, "gelu")(x)))
    return keras.Model(inputs, dense()(layers.GlobalAveragePooling1D()(x)))


@model("sequence to sequence with attention", [words(), words()[:, ::-1].copy()], NEXT_WORDS)
def sequence_to_sequence() -> Any:
    inputs = [keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,), dtype="int32")]
    encoder = layers.GRU(4, return_sequences=True, return_state=True)
    source, state = encoder(layers.Embedding(WORDS, 4)(inputs[0]))
    decoder = layers.GRU(4, return_sequences=True)
    target = decoder(layers.Embedding(WORDS, 4)(inputs[1]), initial_state=state)
    both = layers.Concatenate()([target, layers.AdditiveAttention()([target, source])])
    return keras.Model(inputs, layers.Dense(WORDS)(both))


@model("language model with tied weights", words(), NEXT_WORDS)
class Tied(keras.Model):
    """Uses the embedding's table for the output, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(WORDS, 4)
        self.mix = layers.Dense(4)

    def call(self, x: Any) -> Any:
        mixed = self.mix(self.embedding(x))
        return tf.matmul(mixed, tf.convert_to_tensor(self.embedding.embeddings), transpose_b=True)


@model(
    "recommender (dot product of embeddings)",
    [words()[:, :1], words()[:, 1:2]],
    SUMS,
    loss="mse",
    metrics=None,
)
def recommender() -> Any:
    inputs = [keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32")]
    vectors = [layers.Flatten()(layers.Embedding(WORDS, 3)(one)) for one in inputs]
    return keras.Model(inputs, layers.Dot(axes=1)(vectors))


@model("graph network", [numbers(EXAMPLES, 4, 3), numbers(EXAMPLES, 4, 4, seed=5)], labels())
class Graph(keras.Model):
    """Sums the neighbours of each node by the graph's adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(4, "relu"), dense()

    def call(self, inputs: Any) -> Any:
        nodes, edges = inputs
        hidden = tf.matmul(edges, self.first(nodes))
        return self.last(tf.reduce_mean(hidden, axis=1))


@model("variational autoencoder without noise", X, X, loss="mse", metrics=None)
class Variational(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread, self.decoder = layers.Dense(2), layers.Dense(2), layers.Dense(FEATURES)

    def call(self, x: Any) -> Any:
        mean, spread = self.mean(x), self.spread(x)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(mean) + tf.exp(spread) - spread - 1.0))
        return self.decoder(mean + 0.1 * spread)
