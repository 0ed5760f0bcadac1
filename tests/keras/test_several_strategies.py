"""A script creates a MultiWorkerMirroredStrategy for each fold: all folds train alike, and older strategies work."""

from __future__ import annotations

import re

import pytest
from orch_command import Orch

# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(400)

_FOLDS = """
import numpy as np
import tensorflow as tf

x = np.random.default_rng(3).normal(size=(64, 4)).astype("float32")
add_of_each_fold = []

def train(dtype):
    tf.keras.utils.set_random_seed(7)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(16)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    model.fit(data.with_options(options), epochs=2, verbose=0)

    @tf.function
    def add():
        one = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([], dtype))
        return strategy.run(one)

    add_of_each_fold.append(add)
    return model.evaluate(data.with_options(options), verbose=0)

losses = [train(dtype) for dtype in ("float32", "float64", "int32")]
sums = [float(add()) for add in add_of_each_fold]
print("found", sums, losses, flush=True)
"""


def check(orch: Orch, *words: str) -> None:
    done = orch.start("up", "-n", "2", *words, "--", orch.script("folds.py", _FOLDS)).finish(360)
    assert done.code == 0, done.out + done.err
    found = re.findall(r"worker:\d \| found \[2\.0, 2\.0, 2\.0\] \[(\S+), (\S+), (\S+)\]", done.out)
    assert len(found) == 2, done.out
    assert len({loss for losses in found for loss in losses}) == 1, found


def test_each_fold_has_its_own_strategy(orch: Orch) -> None:
    check(orch)


@pytest.mark.slow
def test_each_fold_has_its_own_strategy_with_keras_2(orch: Orch) -> None:
    check(orch, "--keras", "legacy")
