"""Compares the lists of names with what is installed: Keras 2, Keras 3, and the modules that TensorFlow imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from orchestrator.host.installed import has_tensorflow
from orchestrator.host.shadowing import BROUGHT_ALONG, NOT_BROUGHT
from orchestrator.request.command.allowed_names import HARMLESS
from orchestrator.request.command.keras2_names import (
    METRIC,
    MISSING_ARGUMENTS,
    MISSING_ARGUMENTS_OF_METHODS,
    MISSING_ATTRIBUTES,
    MISSING_NAMES,
    MODEL,
    OPTIMIZER,
    REFUSED_NAMES,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_tensorflow(), reason="TensorFlow is not installed"),
]

_TRY = """
import json, os, sys, tempfile
import numpy as np
import tensorflow as tf
K = tf.keras
asked = json.load(sys.stdin)
os.chdir(tempfile.mkdtemp())
x, y = np.zeros((4, 3), "f"), np.zeros((4, 2), "f")

def model():
    made = K.Sequential([K.layers.Input((3,)), K.layers.Dense(2)])
    made.compile("sgd", "mse")
    return made

def train_with(method, **given):
    calls = {
        "fit": lambda: model().fit(x, y, verbose=0, **given),
        "evaluate": lambda: model().evaluate(x, y, verbose=0, **given),
        "predict": lambda: model().predict(x, verbose=0, **given),
        "train_on_batch": lambda: model().train_on_batch(x, y, **given),
        "compile": lambda: model().compile("sgd", "mse", **given),
        "apply_gradients": lambda: K.optimizers.SGD().apply_gradients(
            [(tf.constant(1.0), tf.Variable(1.0))], **given
        ),
    }
    return calls[method]()

def look(path):
    thing = K
    for part in path.split("."):
        thing = getattr(thing, part)
    return thing

MADE = {"metric": lambda: K.metrics.Mean(), "optimizer": lambda: K.optimizers.Adam(), "model": model}
VALUES = {"batch_input_shape": (2, 3), "weights": [np.zeros((2, 3), "f")], "period": 2, "lr": 0.1,
          "fused": True, "options": None, "write_grads": True, "workers": 1, "use_multiprocessing": False,
          "max_queue_size": 2, "reset_metrics": True, "sample_weight_mode": None,
          "experimental_run_tf_function": True, "experimental_aggregate_gradients": True}
FIRST = {"callbacks.ModelCheckpoint": ("x.keras",), "callbacks.TensorBoard": (".",)}
FIRST |= {f"layers.{name}": (2,) for name in ("Dense", "GRU", "LSTM", "SimpleRNN", "DepthwiseConv2D")}
FIRST |= {f"layers.{name}": (2, 3) for name in (
    "Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "SeparableConv2D", "Embedding")}
FIRST |= {"layers.Activation": ("relu",), "layers.Dropout": (0.1,), "layers.Reshape": ((2,),)}
FIRST |= {f"layers.{name}": (K.layers.GRU(2),) for name in ("Bidirectional", "TimeDistributed")}
trials = {}
for name in asked["names"]:
    trials["name " + name] = lambda name=name: look(name)
for name in asked["refused"]:
    trials["refused " + name] = lambda name=name: look(name).Adam()
for kind, names in asked["attributes"].items():
    for name in names:
        trials[f"attribute {kind} {name}"] = lambda kind=kind, name=name: getattr(MADE[kind](), name)
for name, argument in asked["arguments"]:
    trials[f"argument {name} {argument}"] = lambda name=name, argument=argument: look(name)(
        *FIRST.get(name, ()), **{argument: VALUES[argument]})
for method, argument in asked["methods"]:
    trials[f"method {method} {argument}"] = lambda method=method, argument=argument: train_with(
        method, **{argument: VALUES[argument]})
for argument in asked["taken"]:
    name, given = argument.split()
    trials["taken " + argument] = lambda name=name, given=given: look(name)(
        *FIRST.get(name, ()), **{given: VALUES[given]})
trials["path save"] = lambda: model().save("directory")
trials["path save_format"] = lambda: model().save("directory", save_format="tf")
trials["path save_weights"] = lambda: model().save_weights("w.ckpt")
trials["path save_weights h5"] = lambda: model().save_weights("w.h5")
trials["path checkpoint"] = lambda: K.callbacks.ModelCheckpoint("ckpt")
trials["path checkpoint weights"] = lambda: K.callbacks.ModelCheckpoint("c.h5", save_weights_only=True)
trials["optimizer variables"] = lambda: K.optimizers.SGD().variables()
answers = {}
for name, trial in trials.items():
    try:
        trial()
        answers[name] = True
    except Exception:
        answers[name] = False
print(json.dumps(answers))
"""
# A name that stands for each group of names with the same arguments.
_EXAMPLES = {"optimizers.": "optimizers.Adam"}
# Arguments that both take, although most layers of Keras 3 refuse them.
_TAKEN = [
    "layers.Embedding weights",
    "layers.InputLayer batch_input_shape",
    "layers.Bidirectional weights",
]


def answers(keras_2: bool) -> dict[str, bool]:
    asked: dict[str, Any] = {
        "names": sorted(MISSING_NAMES),
        "refused": sorted(REFUSED_NAMES),
        "attributes": {kind: sorted(MISSING_ATTRIBUTES[kind]) for kind in (METRIC, OPTIMIZER, MODEL)},
        "taken": _TAKEN,
        "arguments": [
            (_EXAMPLES.get(name, name), argument)
            for name, arguments in MISSING_ARGUMENTS.items()
            for argument in sorted(arguments)
        ],
        "methods": [
            (method, argument)
            for method, arguments in MISSING_ARGUMENTS_OF_METHODS.items()
            for argument in sorted(arguments)
        ],
    }
    return run(_TRY, asked, {"TF_USE_LEGACY_KERAS": "1"} if keras_2 else {})


def run(program: str, asked: object, env: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(asked),
        env={**os.environ, **env, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def test_keras_3_has_none_of_the_names() -> None:
    found = answers(keras_2=False)
    assert len(found) > 60
    assert [name for name, works in found.items() if works] == [f"taken {taken}" for taken in _TAKEN]


def test_keras_2_has_all_names() -> None:
    assert [name for name, works in answers(keras_2=True).items() if not works] == []


# IPython is an optional import. Where it is installed, it imports further modules.
_MODULES = """
import json, sys
sys.modules["IPython"] = None
before = set(sys.modules)
import tensorflow, keras
tensorflow.keras.Sequential
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_modules_that_tensorflow_imports() -> None:
    brought = set(run(_MODULES, None, {}))
    assert not brought & NOT_BROUGHT
    # The others are compiled parts, and no user has a module of such a name.
    others = {name for name in brought - BROUGHT_ALONG - sys.stdlib_module_names if name[0].isalpha()}
    assert others <= {"cython_runtime"}


_IMPORTS = """
import importlib, json, os, sys, threading
threads = threading.active_count()
changed = {}
for name in json.load(sys.stdin):
    before = dict(os.environ)
    try:
        importlib.import_module(name)
    except Exception:
        continue
    names = [key for key in {*before, *os.environ} if before.get(key) != os.environ.get(key)]
    if names or threading.active_count() != threads:
        changed[name] = names
print(json.dumps(changed))
"""


def test_harmless_modules_change_no_variable_and_start_no_thread() -> None:
    """Tries those that are installed. TensorFlow does not read the variables that some of them set."""
    changed = run(_IMPORTS, sorted(HARMLESS), {})
    assert {key for keys in changed.values() for key in keys} <= {
        "KMP_INIT_AT_FORK",
        "KMP_DUPLICATE_LIB_OK",
        "HDF5_PLUGIN_PATH",
    }, changed
