"""Scripts under `orch up` on two workers: strategies one after another, refused arguments, arrays of generators.

The scripts of the gate fork from one preloader, since an import of TensorFlow takes longer than most of them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from orch_command import Done, Orch

# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(600)


def succeeded(orch: Orch, script: str | Path, *words: str, then: tuple[str, ...] = ()) -> Done:
    done = orch.run("-n", "2", *words, script=script, then=then)
    assert done.code == 0, done.out + done.err
    return done


# -- a script creates a MultiWorkerMirroredStrategy for each fold: the folds train alike, and older strategies work

FOLDS = """
import numpy as np
import tensorflow as tf

x = np.random.default_rng(3).normal(size=(64, 4)).astype("float32")
add_of_each_fold = []

def create(dtype):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def add():
        one = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([], dtype))
        return strategy.run(one)

    add_of_each_fold.append(add)
    return strategy

def train(dtype):
    tf.keras.utils.set_random_seed(7)
    with create(dtype).scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(16)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    model.fit(data.with_options(options), epochs=2, verbose=0)
    return model.evaluate(data.with_options(options), verbose=0)

losses = [train("float32"), train("float64")]
create("int32")
print("found", [float(add()) for add in add_of_each_fold], losses, flush=True)
"""


def assert_equal_folds(orch: Orch, *words: str) -> None:
    done = succeeded(orch, FOLDS, *words)
    found = re.findall(r"worker:\d \| found \[2\.0, 2\.0, 2\.0\] \[(\S+), (\S+)\]", done.out)
    assert len(found) == 2, done.out
    assert len({loss for losses in found for loss in losses}) == 1, found


def test_each_fold_has_its_own_strategy(tensorflow_orch: Orch) -> None:
    assert_equal_folds(tensorflow_orch)


@pytest.mark.slow
def test_each_fold_has_its_own_strategy_with_keras_2(orch: Orch) -> None:
    assert_equal_folds(orch, "--keras", "legacy")


# -- Keras 3 refuses arguments that tf_keras accepts, on several workers, too, and the report names `--keras legacy`

FIT = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
data = tf.data.Dataset.from_tensors((np.ones((4, 2), "f"), np.ones((4, 1), "f"))).repeat()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
options = {"steps_per_epoch": 4, "verbose": 0} | dict(OPTION)
model.fit(data, **options)
print("trained", flush=True)
"""
REFUSED = {
    "steps_per_epoch=100 / 20": "TypeError: 'float' object cannot be interpreted as an integer",
    "callbacks=[tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, l: None)]": (
        "TypeError: <lambda>() got an unexpected keyword argument 'logs'"
    ),
}


@pytest.mark.parametrize("option", REFUSED)
def test_a_refused_argument_is_reported_as_keras_does(tensorflow_orch: Orch, option: str) -> None:
    done = tensorflow_orch.run("-n", "2", script=FIT.replace("OPTION", option))
    assert done.code == 1, done.out + done.err
    assert f"both workers failed: {REFUSED[option]}" in done.err.splitlines()[-1]
    assert "or run on tf_keras with --keras legacy" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("option", REFUSED)
def test_tf_keras_accepts_it(orch: Orch, option: str) -> None:
    done = succeeded(orch, FIT.replace("OPTION", option), "--keras", "legacy")
    assert done.out.count("| trained") == 2


def assert_steps_are_reported(orch: Orch, steps: str, *words: str) -> None:
    done = succeeded(orch, FIT.replace("OPTION", f"steps_per_epoch={steps}"), "-n", "1", *words)
    (task,) = orch.status(done.run.name)["tasks"]
    # Quick steps are not all reported.
    assert task["progress"]["fit"]["done"] >= 1


def test_steps_of_another_type_are_reported(tensorflow_orch: Orch) -> None:
    assert_steps_are_reported(tensorflow_orch, "np.int64(4)")


@pytest.mark.slow
def test_steps_of_another_type_are_reported_with_keras_2(orch: Orch) -> None:
    assert_steps_are_reported(orch, "2.5", "--keras", "legacy")


# -- TensorFlow never changes arrays of which the script's generators yield slices

ARRAYS = Path(__file__).with_name("own_arrays.py")


def found(orch: Orch, workers: int, *cases: str, keras: str = "3") -> dict[str, dict[str, Any]]:
    """Return what the first worker prints, by case."""
    done = succeeded(orch, ARRAYS, "-n", str(workers), "--keras", keras, then=cases)
    lines = [line.partition(" found ")[2] for line in done.lines if "worker:0 | found " in line]
    assert len(lines) == len(cases), done.out
    return {one["case"]: one for one in map(json.loads, lines)}


def changed(values: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {case: one["changed"] for case, one in values.items()}


def test_arrays_stay_as_they_are(tensorflow_orch: Orch) -> None:
    assert changed(found(tensorflow_orch, 2, "own_loop", "pipeline")) == {"own_loop": [], "pipeline": []}


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_workers_train_on_slices_like_one_process(orch: Orch, keras: str) -> None:
    together = found(orch, 2, "generator", "indexed", keras=keras)
    alone = found(orch, 1, "generator", "indexed", keras=keras)
    assert changed(together) == changed(alone) == {"generator": [], "indexed": []}
    for case, one in alone.items():
        assert together[case]["losses"] == pytest.approx(one["losses"], rel=1e-4)
