"""Cases of what orch and Keras report of a training: counted steps, logs, and what a worker does otherwise."""

from __future__ import annotations

import json
import os
from typing import Any

import keras
import tensorflow as tf
from case import BATCH, EXAMPLES, UNEVEN, Place, Values, compiled, data, fit, outcome, topic

from worker.bootstrap import cluster_facts
from worker.bootstrap.messages import PROGRESS_FD, ProgressPipe

case = topic("")


@case("counted_steps")
def counted_steps(place: Place) -> Values:
    """A fit of arrays that prints nothing reports its steps; the second one continues the count."""
    reader, writer = os.pipe()
    os.environ[PROGRESS_FD] = str(writer)
    cluster_facts._STEP_INTERVAL_S = 0.0  # each step is reported
    cluster_facts.count_steps(ProgressPipe())
    model = compiled(place)
    values = fit(model, *data(UNEVEN), validation_data=data(), initial_epoch=1, epochs=2)
    model.fit(*data(), batch_size=BATCH, verbose=0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        reports = [json.loads(line)["fit"] for line in pipe]
    return values | {name: [fit[name] for fit in reports] for name in ("done", "start", "skips")}


@case("progress_of_the_chief")
def progress_of_the_chief(place: Place) -> Values:
    """A progress bar on one worker reads the logs of each step; the other reads none."""
    return fit(compiled(place), verbose=1 if place.rank == 0 else 0)


@case("drawn_by_tensorflow")
def drawn_by_tensorflow(place: Place) -> Values:
    """Numbers of TensorFlow's own operations in a step, traced and eagerly."""

    def draw() -> list[tf.Tensor]:
        ones = tf.ones([32])
        return [tf.random.normal([32]), tf.random.uniform([32], seed=5), tf.nn.dropout(ones, 0.5)]

    traced = place.strategy.run(tf.function(draw))
    first, *_ = place.strategy.experimental_local_results(place.strategy.run(draw)[0])
    names = ("normal", "uniform with a seed", "dropout")
    return {**dict(zip(names, (part.numpy() for part in traced), strict=True)), "eagerly": first.numpy()}


@case("explained")
def explained(place: Place) -> Values:
    """A loss of one number, and data that the script shards and batches by itself. Returns the examples used."""

    def mean(y_true: Any, y_pred: Any) -> Any:
        each = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return tf.reduce_mean(each)

    fit(compiled(place, loss=lambda: mean))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    examples = tf.data.Dataset.from_tensor_slices(data()).shard(2, place.rank)
    batches = examples.batch(BATCH // 2).with_options(options)

    class Counts(keras.metrics.Sum):
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            super().update_state(tf.ones_like(y_true, tf.float32))

    model = compiled(place, metrics=lambda: [Counts(name="used")])
    steps = EXAMPLES // BATCH
    histories = model.fit(batches, verbose=0), model.fit(batches.repeat(), steps_per_epoch=steps, verbose=0)
    return {"used": [int(history.history["used"][0]) for history in histories]}


def refusal(train: Any) -> str:
    try:
        train()
    except ValueError as error:
        return str(error)
    return ""


@case("refused")
def refused(place: Place) -> Values:
    """Trainings that are impossible with several workers: with XLA, and with epochs of different lengths."""
    model = compiled(place)
    x, y = data(BATCH * (2 + place.rank))
    lengths = refusal(lambda: model.fit(x, y, batch_size=BATCH, verbose=0))
    # All workers have that many batches.
    history = model.fit(x, y, batch_size=BATCH, steps_per_epoch=2, verbose=0)
    xla = refusal(lambda: fit(compiled(place, jit_compile=True)))
    return outcome(model, xla=xla, lengths=lengths, loss=history.history["loss"])
