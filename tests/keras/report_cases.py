"""Trainings whose reports are compared with those of one process: counted steps, and logs."""

from __future__ import annotations

import json
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case_program import Place
from training_cases import BATCH, CLASSES, FEATURES, Values, classifier, compiled, data, fit, outcome
from training_cases import loss as trained_loss

from worker.bootstrap import cluster_facts
from worker.bootstrap.messages import PROGRESS_FD, ProgressPipe


def counted_steps(place: Place) -> Values:
    """A fit that prints nothing reports its steps; the second one continues the count."""
    reader, writer = os.pipe()
    os.environ[PROGRESS_FD] = str(writer)
    cluster_facts._STEP_INTERVAL_S = 0.0  # each step is reported
    cluster_facts.count_steps(ProgressPipe())
    model = compiled(place)
    fit(place, model, validation_data=data(), initial_epoch=1, epochs=2)
    model.fit(*data(), batch_size=BATCH, verbose=0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        reports = [json.loads(line)["fit"] for line in pipe]
    return {name: np.array([fit[name] for fit in reports]) for name in ("done", "start", "skips")}


def drawn_by_tensorflow(place: Place) -> Values:
    """Numbers of TensorFlow's own operations in a step, traced and eagerly."""

    def draw() -> list[tf.Tensor]:
        ones = tf.ones([32])
        return [tf.random.normal([32]), tf.random.uniform([32], seed=5), tf.nn.dropout(ones, 0.5)]

    traced = place.strategy.run(tf.function(draw))
    first, *_ = place.strategy.experimental_local_results(place.strategy.run(draw)[0])
    names = ("normal", "uniform with a seed", "dropout")
    return {**dict(zip(names, (part.numpy() for part in traced), strict=True)), "eagerly": first.numpy()}


def logs(place: Place, kind: Any, examples: int, **options: Any) -> Values:
    """Loss and gradients of a fit and an evaluation."""
    x, y = data(examples)
    model = compiled(place, kind, "sgd", **options)
    history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, validation_data=(x, y))
    return outcome(model, history)


class OwnStep(keras.Model):  # type: ignore[misc]
    """The training step of Keras's guide, and a step that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics} | {"last": loss}


def own_step_logs(place: Place) -> Values:
    return logs(place, OwnStep, 2 * BATCH)


def one_number(place: Place) -> Values:
    """A function that returns the mean itself, and a loss with a number for each example."""
    loss = keras.losses.sparse_categorical_crossentropy

    def mean(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(loss(y_true, y_pred, from_logits=True))

    values = logs(place, classifier, 2 * BATCH, loss=mean)
    each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    return values | {
        f"each {name}": value for name, value in logs(place, classifier, BATCH, loss=each).items()
    }


def losses_of_outputs(place: Place) -> Values:
    """Train on one uneven batch of unknown size. The workers' losses count by their examples."""
    inputs = keras.layers.Input((FEATURES,))
    x, y = data(2 * BATCH - 3)
    batches = tf.data.Dataset.from_tensor_slices((x, {"k": y, "v": y})).batch(2 * BATCH)
    with place.scope():
        outputs = {name: keras.layers.Dense(CLASSES, name=name)(inputs) for name in ("k", "v")}
        model = keras.Model(inputs, outputs)
        model.compile("sgd", {"k": trained_loss(), "v": trained_loss()}, loss_weights={"k": 1.0, "v": 0.5})
    return outcome(model, model.fit(batches, epochs=2, verbose=0, validation_data=batches))


def own_shards(place: Place) -> Values:
    """The script shards and batches by itself, and counts the examples that are used."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    examples = tf.data.Dataset.from_tensor_slices(data()).shard(2, place.rank)
    batches = examples.batch(BATCH // 2).with_options(options)
    model = compiled(place)
    used: list[int] = []

    class Counts(keras.metrics.Sum):  # type: ignore[misc]
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            super().update_state(tf.ones_like(y_true, tf.float32))

    with place.scope():
        model.compile("sgd", trained_loss(), metrics=[Counts(name="used")])
    used.append(int(model.fit(batches, verbose=0).history["used"][0]))
    used.append(int(model.fit(batches.repeat(), steps_per_epoch=4, verbose=0).history["used"][0]))
    return {"used": np.array(used)}
