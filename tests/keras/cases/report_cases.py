"""Cases of what orch and Keras report of a training: counted steps, logs, and what a worker does otherwise."""

from __future__ import annotations

import collections
import json
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import BATCH, EXAMPLES, UNEVEN, Place, Values, compiled, data, fit, outcome, topic
from tensorflow.python.ops import gen_collective_ops

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


# -- the collectives that training takes

counted: collections.Counter[str] = collections.Counter()


def count_collectives() -> None:
    """Count collectives in `counted` from now on: `traced` ones, and those that run `at once`."""
    for name in (
        "collective_reduce_v2",
        "collective_reduce_v3",
        "collective_gather_v2",
        "collective_bcast_send",
    ):
        original = getattr(gen_collective_ops, name)

        def call(*arguments: Any, _original: Any = original, **options: Any) -> Any:
            counted["at once" if tf.executing_eagerly() else "traced"] += 1
            return _original(*arguments, **options)

        setattr(gen_collective_ops, name, call)


def in_function(function: Any) -> int:
    """The collectives in a concrete function and all it calls."""
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(node for part in definition.library.function for node in part.node_def)]
    return sum(node.op.startswith("Collective") for node in nodes)


class Steps(keras.callbacks.Callback):
    """Records the count at the end of each step, and reads the logs as a progress bar does."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert np.isfinite(logs["loss"])
        self.counts.append(sum(counted.values()))


@case("collectives")
def collectives(place: Place) -> Values:
    """The collectives of fit and evaluate with three metrics: in a traced step, and outside."""
    model = compiled(place, metrics=["accuracy", "sparse_categorical_crossentropy"])
    x, y = data(UNEVEN)
    options = {"batch_size": BATCH, "verbose": 0}
    model.fit(x, y, epochs=1, **options)  # variables are made, functions traced
    model.evaluate(x, y, **options)
    iterator = iter(endless_batches(place))
    trained = tf.function(lambda some: model.train_function(some), autograph=False)
    tested = tf.function(lambda some: model.test_function(some), autograph=False)
    count_collectives()
    steps = Steps()
    model.fit(x, y, epochs=2, callbacks=[steps], **options)
    model.evaluate(x, y, **options)
    return {
        "in a training step": in_function(trained.get_concrete_function(iterator)),
        "in a test step": in_function(tested.get_concrete_function(iterator)),
        "steps": len(steps.counts),
        "at once": counted["at once"],
    }


def endless_batches(place: Place) -> Any:
    batches = tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH)
    return place.strategy.experimental_distribute_dataset(batches)
