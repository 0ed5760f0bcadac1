"""Cases: own training and test steps."""

from __future__ import annotations

from typing import Any

import keras
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
    data,
    fit,
    labels,
    mlp,
    numbers,
    outcome,
    topic,
)
from keras import layers

case = topic("own steps")


class OwnSteps(Plain):
    def descend(self, tape: Any, loss: Any) -> None:
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def measured(self, y: Any, y_pred: Any, loss: Any) -> dict[str, Any]:
        """Update the metrics and return their results, as Keras's guide does."""
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class GuideSteps(OwnSteps):
    """The steps of Keras's guide."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        self.descend(tape, loss)
        return self.measured(y, y_pred, loss)

    def test_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        y_pred = self(x, training=False)
        return self.measured(y, y_pred, self.compute_loss(y=y, y_pred=y_pred))


def numbers_of(found: dict[str, Any]) -> Values:
    """Return the results of metrics that belong to a group, too."""
    flat = {}
    for name, value in found.items():
        flat |= (
            {f"{name} {key}": part for key, part in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return flat


@case("train_step of Keras's guide", three=True)
def guide_step(place: Place) -> Values:
    model = compiled(place, GuideSteps)
    history = model.fit(*data(), batch_size=BATCH, epochs=2, verbose=0, shuffle=False).history
    last = {name: values[-1] for name, values in history.items()}
    return outcome(model) | numbers_of(last)


@case("test_step of Keras's guide")
def guide_test_step(place: Place) -> Values:
    model = compiled(place, GuideSteps)
    return numbers_of(model.evaluate(*data(), batch_size=BATCH, verbose=0, return_dict=True))


class Accurate(OwnSteps):
    def test_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        y_pred = self(x, training=False)
        return {"accurate": tf.reduce_mean(tf.cast(tf.argmax(y_pred, axis=-1) == y, tf.float32))}


def accurate(examples: int) -> Run:
    def run(place: Place) -> Values:
        model = compiled(place, Accurate, metrics=None)
        return model.evaluate(*data(examples), batch_size=BATCH, verbose=0, return_dict=True)

    return run


case("test_step that returns a number of its batch", accurate(EXAMPLES), three=True)
case(
    "test_step that returns a number of its batch, uneven batches",
    accurate(UNEVEN),
    differs="the mean of the workers' numbers, also where they have different numbers of examples",
)


class Penalised(OwnSteps):
    """Adds a penalty of the gradient with respect to the inputs."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y_pred = self(x, training=True)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, y_pred)
            size = tf.reduce_sum(tf.square(inner.gradient(each, x)), axis=1)
            loss = self.compute_loss(y=y, y_pred=y_pred) + tf.nn.compute_average_loss(size)
        self.descend(tape, loss)
        return {"size": tf.reduce_mean(size)}


case(
    "own train_step with a gradient penalty",
    lambda place: fit(compiled(place, Penalised, metrics=None)),
    three=True,
)


class Distilled(OwnSteps):
    """Learns from a teacher that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = layers.Dense(CLASSES, trainable=False)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        self.teacher(x)
        return self.last(x)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        soft = tf.nn.softmax(self.teacher(x))
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            distance = tf.reduce_mean(keras.losses.kl_divergence(soft, tf.nn.softmax(y_pred)))
            replicas = self.distribute_strategy.num_replicas_in_sync
            loss = self.compute_loss(y=y, y_pred=y_pred) + distance / replicas
        self.descend(tape, loss)
        self.mean.update_state(distance)
        return {"mean": self.mean.result()}


case("own train_step, distillation", lambda place: fit(compiled(place, Distilled, metrics=None)))


class Accumulated(OwnSteps):
    """Applies the gradients of two halves of the batch."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        total: list[Any] | None = None
        for xs, ys in zip(tf.split(x, 2), tf.split(y, 2), strict=True):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=ys, y_pred=self(xs, training=True)) / 2
            found = tape.gradient(loss, self.trainable_variables)
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
        self.optimizer.apply_gradients(zip(total or [], self.trainable_variables, strict=True))
        return {"halves": loss}


@case("own train_step that adds gradients of two halves")
def accumulated(place: Place) -> Values:
    values = fit(compiled(place, Accumulated, metrics=None), batch_size=12)
    return {name: value for name, value in values.items() if name.startswith("weight")}


class Gan(keras.Model):
    """Two networks and two optimizers. The noise is part of the data, so that all draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(FEATURES)
        self.critic = mlp(1)
        self.built = True

    def compile(self, rates: tuple[float, float]) -> None:
        super().compile()
        self.optimizers = [keras.optimizers.Adam(rate) for rate in rates]
        for optimizer, network in zip(self.optimizers, (self.critic, self.generator), strict=True):
            optimizer.build(network.trainable_variables)

    def call(self, x: Any) -> Any:
        return self.critic(x)

    def train_step(self, batch: Any) -> dict[str, Any]:
        real, noise = batch
        entropy = keras.losses.BinaryCrossentropy(from_logits=True, reduction=None)

        def mean(value: Any) -> Any:
            return tf.nn.compute_average_loss(value)

        with tf.GradientTape() as tape:
            scores = self.critic(real), self.critic(self.generator(noise))
            first = mean(entropy(tf.ones_like(scores[0]), scores[0]))
            critic_loss = first + mean(entropy(tf.zeros_like(scores[1]), scores[1]))
        variables = self.critic.trainable_variables
        self.optimizers[0].apply_gradients(zip(tape.gradient(critic_loss, variables), variables, strict=True))
        with tf.GradientTape() as tape:
            score = self.critic(self.generator(noise))
            generator_loss = mean(entropy(tf.ones_like(score), score))
        variables = self.generator.trainable_variables
        self.optimizers[1].apply_gradients(
            zip(tape.gradient(generator_loss, variables), variables, strict=True)
        )
        return {"score": tf.reduce_mean(score)}


@case("GAN with two optimizers", three=True)
def gan(place: Place) -> Values:
    with place.scope():
        model = Gan()
        model.compile((0.01, 0.02))
    return fit(model, data()[0], numbers(EXAMPLES, FEATURES, seed=9))


@case("own train_step with sample weights")
def weighted_step(place: Place) -> Values:
    class Weighted(OwnSteps):
        def train_step(self, batch: Any) -> dict[str, Any]:
            x, y, weights = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True), sample_weight=weights)
            self.descend(tape, loss)
            return {"loss": loss}

    batches = tf.data.Dataset.from_tensor_slices((*data(), labels() + 1.0)).batch(BATCH)
    return fit(compiled(place, Weighted, metrics=None), batches)
