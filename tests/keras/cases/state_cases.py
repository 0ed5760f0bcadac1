"""Cases of layers that have state: moving statistics and random seeds."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import BATCH, FEATURES, Place, Values, compiled, cross_entropy, data, dense, fit, sequential, topic
from keras import layers

case = topic("")


def normalising() -> Any:
    return sequential((FEATURES,), layers.Dense(8), layers.BatchNormalization(momentum=0.7), dense())


def momentum() -> Any:
    """Not Adam: the gradient of a bias before a normalisation is rounding noise, which Adam scales up."""
    return keras.optimizers.SGD(0.05, momentum=0.9)


def statistics(model: Any) -> Values:
    found = {}
    for layer in model._flatten_layers():
        for variable in getattr(layer, "_non_trainable_variables", []):
            if "seed" not in variable.path:
                found[variable.path.split("/")[-1]] = np.array(variable)
    return found


@case("moving_statistics")
def moving_statistics(place: Place) -> Values:
    """The statistics in on_epoch_end and after fit, with the results of the validation."""
    x, y = data()
    model = compiled(place, normalising, optimizer=momentum)
    seen: list[Any] = []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(statistics(model)["moving_mean"])
    )
    options = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    history = model.fit(x, y, epochs=2, validation_data=(x, y), callbacks=[keep], **options)
    again = model.fit(x, y, epochs=1, **options)
    return statistics(model) | {
        "seen": np.stack(seen),
        "val_loss": np.array(history.history["val_loss"]),
        "loss again": np.array(again.history["loss"]),
        "evaluated": np.array(model.evaluate(x, y, batch_size=BATCH, verbose=0)),
        "predicted": model.predict(x, batch_size=BATCH, verbose=0),
        "kernel": np.array(model.layers[0].kernel),
    }


@case("moving_statistics_by_hand")
def moving_statistics_by_hand(place: Place) -> Values:
    """The result that two workers must get, in one process: each half of a batch, then the mean."""
    x, y = data()
    with place.scope():
        model = normalising()
    loss = cross_entropy()
    optimizer = momentum()
    optimizer.build(model.trainable_variables)
    normalisation = model.layers[1]
    moving = [normalisation.moving_mean, normalisation.moving_variance]
    seen = []
    for epoch in range(3):
        for start in range(0, len(x), BATCH):
            before = [variable.numpy() for variable in moving]
            after, gradients = [], []
            for half in (slice(start, start + BATCH // 2), slice(start + BATCH // 2, start + BATCH)):
                for variable, value in zip(moving, before, strict=True):
                    variable.assign(value)
                with tf.GradientTape() as tape:
                    value = loss(y[half], model(x[half], training=True))
                gradients.append(tape.gradient(value, [v.value for v in model.trainable_variables]))
                after.append([variable.numpy() for variable in moving])
            for variable, one, other in zip(moving, *after, strict=True):
                variable.assign((one + other) / 2)
            optimizer.apply([(one + other) / 2 for one, other in zip(*gradients, strict=True)])
        if epoch < 2:
            seen.append(statistics(model)["moving_mean"])
    return statistics(model) | {"seen": np.stack(seen), "kernel": np.array(model.layers[0].kernel)}


@case("batches_one_by_one")
def batches_one_by_one(place: Place) -> Values:
    x, y = data()
    share = BATCH // place.replicas
    model = compiled(place, normalising)
    for start in range(0, len(x), BATCH):
        own = slice(start + place.rank * share, start + (place.rank + 1) * share)
        model.train_on_batch(x[own], y[own])
    return statistics(model)


@case("own_step")
def own_step(place: Place) -> Values:
    class Model(keras.Sequential):
        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                value = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(value, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {"loss": value}

    model = compiled(place, lambda: Model(normalising().layers), steps_per_execution=2)
    fit(model)
    return statistics(model)


@case("other_state")
def other_state(place: Place) -> Values:
    """A user's layer with statistics of its examples, and a layer of Keras that must not be averaged."""

    class Largest(layers.Layer):
        def build(self, shape: Any) -> None:
            self.gathered = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.gathered.assign(self.gathered + keras.ops.mean(inputs, axis=0))
            return inputs

    def make() -> Any:
        return sequential((FEATURES,), Largest(), layers.SpectralNormalization(layers.Dense(8)), dense())

    model = compiled(place, make)
    fit(model, epochs=1)
    return {"gathered": np.array(model.layers[0].gathered), "vector": np.array(model.layers[1].vector_u)}


@case("dropped")
def dropped(place: Place) -> Values:
    """The masks of two Dropout layers, with and without a seed, of three steps, as a base-3 number."""

    class Masks(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = layers.Dropout(0.5)
            self.seeded = layers.Dropout(0.5, seed=11)
            self.dense = layers.Dense(1)
            self.seen: Any = None

        def build(self, shape: Any) -> None:
            self.dense.build(shape)
            self.seen = [self.add_weight(shape=(32,), initializer="zeros", trainable=False) for _ in range(2)]

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                ones = keras.ops.ones((32,))
                masks = self.dropout(ones, training=True), self.seeded(ones, training=True)
                for seen, mask in zip(self.seen, masks, strict=True):
                    seen.assign(seen * 3 + keras.ops.cast(mask > 0, "float32"))
            return self.dense(self.dropout(inputs, training=training))

    x, y = data()
    with place.scope():
        model = Masks()
        model.build((None, FEATURES))
        model.compile("sgd", "mse")
    kernel = np.array(model.dense.kernel)
    masks: Values = {}

    class BeforeTheyAreAveraged(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            masks[f"masks {batch}"] = np.stack([np.array(seen) for seen in model.seen])

    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[BeforeTheyAreAveraged()])
    return masks | {"kernel": kernel, "trained": np.array(model.dense.kernel)}


@case("unfixed_masks")
def unfixed_masks(place: Place) -> Values:
    """A Dropout layer's mask on each worker, in the script's own step, which works without the fixes."""
    with place.scope():
        layer = layers.Dropout(0.5)

    @tf.function
    def step() -> Any:
        return place.strategy.run(lambda: layer(tf.ones((64,)), training=True))

    return {"masks": place.strategy.experimental_local_results(step())[0].numpy()}
