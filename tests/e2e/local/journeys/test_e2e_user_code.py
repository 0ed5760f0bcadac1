"""An exception in code that TensorFlow or Keras called is reported with its own message and the user's line."""

from __future__ import annotations

import sys
from xml.etree import ElementTree as Xml

import pytest
from orch_command import Finished, Orch

# Raises an exception with a recorded message from a file that autograph generates.
_RAISE = """
import pathlib, sys

kind, message = sys.argv[1], pathlib.Path("message.txt").read_text()
module, _, name = kind.rpartition(".")
made = type(name, (Exception,), {"__module__": module}) if module else __builtins__.__dict__[name]
generated = "/tmp/__autograph_generated_file1a2b.py"
exec(compile("def tf__step(error): raise error", generated, "exec"))
tf__step(made(message))
"""
_FRAMES = """in user code:

    File "{lib}/site-packages/tf_keras/src/engine/training.py", line 1398, in train_function  *
        return step_function(self, iterator)
    File "{here}/train.py", line 8, in step  *
        return inner(y)
    File "{here}/train.py", line 4, in inner  *
        raise ValueError("x must be int32\\nbut it is float32")

"""
_IN_LAYERS = """in user code:

    File "{lib}/site-packages/tf_keras/src/engine/training.py", line 1398, in train_function  *
        return step_function(self, iterator)
    File "/tmp/__autograph_generated_file3c4d.py", line 15, in tf__call
        raise

    StagingError: Exception encountered when calling layer 'model' (type Model).
    {blank}
    in user code:
    {blank}
        File "{here}/train.py", line 31, in call  *
            return self.dense(self.scale(x))
        File "{lib}/site-packages/tf_keras/src/utils/traceback_utils.py", line 70, in error_handler  **
            raise e.with_traceback(filtered_tb) from None
    {blank}
        StagingError: Exception encountered when calling layer 'scale' (type Scale).
        {blank}
        in user code:
        {blank}
            File "{here}/train.py", line 22, in call  *
                raise BadInput(x.shape[-1], 5)
        {blank}
            BadInput: got 3 features, want 5
        {blank}
        {blank}
        Call arguments received by layer 'scale' (type Scale):
          • x=tf.Tensor(shape=(None, 3), dtype=float32)
    {blank}
    {blank}
    Call arguments received by layer 'model' (type Model):
      • x=tf.Tensor(shape=(None, 3), dtype=float32)
"""
_KEY_IN_LAYER = """in user code:

    File "{here}/train.py", line 31, in call  *
        return self.dense(self.scale(x))
    File "/tmp/__autograph_generated_file3c4d.py", line 15, in tf__call
        raise

    RuntimeError: Exception encountered when calling layer 'scale' (type Scale).
    {blank}
    KeyError: 'image'
    {blank}
    Call arguments received by layer 'scale' (type Scale):
      • x=tf.Tensor(shape=(None, 3), dtype=float32)
"""
_KERAS_3 = """Exception encountered when calling Scale.call().

\x1b[1mCould not automatically infer the output shape / dtype of 'scale' (of type Scale). Error encountered:

Scale wants 5 features, got 4\x1b[0m

Arguments received by Scale.call():
  • args=('<KerasTensor shape=(None, 4)>',)
"""
_CALLED_BY_A_GRAPH = """Graph execution error:

Detected at node EagerPyFunc defined at (most recent call last):
  File "{here}/train.py", line 15, in <module>

BadRecord: data.csv: line 3 is broken
Traceback (most recent call last):

  File "{lib}/site-packages/tensorflow/python/ops/script_ops.py", line 267, in __call__
    return func(device, token, args)
           ^^^^^^^^^^^^^^^^^^^^^^^^^

  File "{here}/train.py", line 9, in load
    raise BadRecord("data.csv", int(x))

BadRecord: data.csv: line 3 is broken


\t [[{{node EagerPyFunc}}]] [Op:__inference_step_6]"""
_IN_A_GRAPH = """Graph execution error:

Detected at node assert_less/Assert defined at (most recent call last):
  File "{here}/train.py", line 8, in <module>

  File "{here}/train.py", line 5, in step

assertion failed: [labels too large] [x (x:0) = ] [1 1 1]
more of it
\t [[{{node assert_less/Assert}}]] [Op:__inference_step_35]"""
_BOTH = """
import atexit, os, pathlib, time

def both(sign):
    pathlib.Path(sign + os.environ["ORCH_TASK"][-1]).touch()
    while not all(pathlib.Path(sign + index).exists() for index in "01"):
        time.sleep(0.01)

atexit.register(both, "raised")  # the second worker raises, too, before orch stops it
"""
_TENSORFLOW = (
    _BOTH
    + """
import numpy as np
import tensorflow as tf

class BadRecord(Exception):
    def __init__(self, kind, sentence):
        super().__init__(sentence)
"""
)
_FUNCTION = """
@tf.function
def step(x):
    return x * {"label": 1}["image"]  # raises

both("ready")
step(tf.ones([3]))
"""
_MAP = """
def load(x):
    raise BadRecord("data", f"record {int(x)} is broken")  # raises

data = tf.data.Dataset.range(3).map(lambda x: tf.py_function(load, [x], tf.float32))
both("ready")
for x in data:
    print(x)
"""
_LAYER = """
import tf_keras as keras

class Scale(keras.layers.Layer):
    def call(self, x):
        raise BadRecord("data", f"got {x.shape[-1]} features")  # raises

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(3), Scale()])
    model.compile("sgd", "mse")
both("ready")
model.fit(np.ones((8, 3), "float32"), np.ones((8, 1), "float32"), verbose=0)
"""
_STAGING = "tensorflow.python.autograph.impl.api.StagingError"
_KEY = "tensorflow.python.autograph.pyct.error_utils.MultilineMessageKeyError"
_ERRORS = "tensorflow.python.framework.errors_impl."


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        (
            "ValueError",
            _FRAMES + "    ValueError: x must be int32\n    but it is float32\n",
            "ValueError: x must be int32 (train.py:4)",
        ),
        (_KEY, _FRAMES + "    KeyError: 'image'\n", "KeyError: 'image' (train.py:4)"),
        (_STAGING, _FRAMES + "    BadBatch: batch of 3\n", "BadBatch: batch of 3 (train.py:4)"),
        (_STAGING, _IN_LAYERS, "BadInput: got 3 features, want 5 (train.py:22)"),
        ("RuntimeError", _KEY_IN_LAYER, "KeyError: 'image' (train.py:31)"),
        ("ValueError", _KERAS_3, "ValueError: Scale wants 5 features, got 4 (train.py:9)"),
        ("KeyError", _KERAS_3, "KeyError: 'Scale wants 5 features, got 4' (train.py:9)"),
        (_ERRORS + "UnknownError", _CALLED_BY_A_GRAPH, "BadRecord: data.csv: line 3 is broken (train.py:9)"),
        (
            _ERRORS + "InvalidArgumentError",
            _IN_A_GRAPH,
            f"{_ERRORS}InvalidArgumentError: Graph execution error:"
            " assertion failed: [labels too large] [x (x:0) = ] [1 1 1] (train.py:5)",
        ),
        (
            _ERRORS + "InvalidArgumentError",
            "{{function_node __wrapped__IteratorGetNext_device_/job:a/task:0}} Unknown image\n\t [[{{node D}}]]",
            f"{_ERRORS}InvalidArgumentError: Unknown image (train.py:9)",
        ),
        # The user's own message has these words.
        (
            "ValueError",
            "see in user code:\n\n    KeyError: 'x'",
            "ValueError: see in user code: (train.py:9)",
        ),
    ],
)
def test_recorded_message_gives_the_users_message_and_line(
    orch: Orch, kind: str, message: str, cause: str
) -> None:
    for name, text in {"{here}": str(orch.directory), "{lib}": "/venv/lib/python3.11", "{blank}": ""}.items():
        message = message.replace(name, text)
    (orch.directory / "message.txt").write_text(message)
    script = orch.script("train.py", _RAISE)
    done = orch("up", "--junit", "report.xml", "--", sys.executable, script, kind)
    _check_cause(orch, done, f"worker:0 failed: {cause}")


def test_connection_error_of_user_code_is_not_taken_for_a_lost_peer(orch: Orch) -> None:
    """A lost peer would not be the cause of both failures."""
    message = _FRAMES.replace("{here}", str(orch.directory)) + "    ConnectionError: Connection refused\n"
    (orch.directory / "message.txt").write_text(message)
    script = orch.script("train.py", _BOTH + "both('ready')" + _RAISE)
    done = orch("up", "-n", "2", "--junit", "report.xml", "--", sys.executable, script, _STAGING)
    _check_cause(orch, done, "both workers failed: ConnectionError: Connection refused (train.py:4)")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("keras", "body", "cause"),
    [
        pytest.param("3", _FUNCTION, "KeyError: 'image'", id="function"),
        pytest.param("3", _MAP, "BadRecord: record 0 is broken", id="map", marks=pytest.mark.slow),
        pytest.param("legacy", _LAYER, "BadRecord: got 3 features", id="layer", marks=pytest.mark.slow),
    ],
)
def test_equal_failures_in_tensorflow_are_one(orch: Orch, keras: str, body: str, cause: str) -> None:
    text = _TENSORFLOW + body
    line = text[: text.index("# raises")].count("\n") + 1
    script = orch.script("train.py", text)
    done = orch("up", "-n", "2", "--keras", keras, "--junit", "report.xml", "--", script)
    _check_cause(orch, done, f"both workers failed: {cause} (train.py:{line})")


def _check_cause(orch: Orch, done: Finished, cause: str) -> None:
    """Check that the cause is the same wherever it is shown."""
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"orch: {cause}", done.err
    run = next(
        case
        for case in Xml.parse(orch.directory / "report.xml").iter("testcase")
        if case.get("name") == "run"
    )
    assert [failure.get("message") for failure in run] == [cause]
    assert f"**Cause:** `{cause}`" in orch("report", "--markdown").out
    result = orch.result()
    said, _, place = cause.partition("failed: ")[2].rpartition(" (")
    assert result["first_failure"]["exception"] == said
    assert result["first_failure"]["place"] == f"{orch.directory}/{place.removesuffix(')')}"
