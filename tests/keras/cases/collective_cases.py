"""Counts the collectives that training takes, as a traced function's operations and as calls outside of one."""

from __future__ import annotations

import collections
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import BATCH, UNEVEN, Place, Values, compiled, data, topic
from tensorflow.python.ops import gen_collective_ops

case = topic("")
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
