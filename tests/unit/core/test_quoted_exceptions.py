"""The exception of the user's code that TensorFlow or Keras quotes in the message of another one, and its line."""

from __future__ import annotations

from orchestrator.core.diagnosis.symptoms import Uncaught, read_symptom
from orchestrator.core.state.events import SymptomKind

# Recorded messages. They were raised in a file that autograph generated.
_TEXT = """Traceback (most recent call last):
  File "{here}/train.py", line 9, in <module>
    tf__step(make())
  File "/tmp/__autograph_generated_file1a2b.py", line 1, in tf__step
    def tf__step(error): raise error
{name}: {message}
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
        Call arguments received by layer 'scale' (type Scale):
          • x=tf.Tensor(shape=(None, 3), dtype=float32)
    {blank}
    Call arguments received by layer 'model' (type Model):
      • x=tf.Tensor(shape=(None, 3), dtype=float32)
"""
_KEY_IN_LAYER = """in user code:

    File "{here}/train.py", line 31, in call  *
        return self.dense(self.scale(x))

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
_STAGING = "tensorflow.python.autograph.impl.api.StagingError"
_KEY = "tensorflow.python.autograph.pyct.error_utils.MultilineMessageKeyError"
_UNKNOWN = "tensorflow.python.framework.errors_impl.UnknownError"
_INVALID = "tensorflow.python.framework.errors_impl.InvalidArgumentError"
_ASSERTION = "assertion failed: [labels too large] [x (x:0) = ] [1 1 1]"
_IMAGE = "{{function_node __wrapped__IteratorGetNext_device_/job:a/task:0}} Unknown image\n\t [[{{node D}}]]"
# The type and the message of an exception, the exception that is reported, and the line of train.py.
_QUOTED = [
    ("ValueError", f"{_FRAMES}    ValueError: x must be\n    int32\n", "ValueError: x must be", 4),
    (_KEY, f"{_FRAMES}    KeyError: 'image'\n", "KeyError: 'image'", 4),
    (_STAGING, f"{_FRAMES}    BadBatch: batch of 3\n", "BadBatch: batch of 3", 4),
    # It would be that of a lost peer if TensorFlow's own code had raised it.
    (_STAGING, f"{_FRAMES}    ConnectionError: refused\n", "ConnectionError: refused", 4),
    (_STAGING, _IN_LAYERS, "BadInput: got 3 features, want 5", 22),
    ("RuntimeError", _KEY_IN_LAYER, "KeyError: 'image'", 31),
    ("ValueError", _KERAS_3, "ValueError: Scale wants 5 features, got 4", 9),
    ("KeyError", _KERAS_3, "KeyError: 'Scale wants 5 features, got 4'", 9),
    (_UNKNOWN, _CALLED_BY_A_GRAPH, "BadRecord: data.csv: line 3 is broken", 9),
    (_INVALID, _IN_A_GRAPH, f"{_INVALID}: Graph execution error: {_ASSERTION}", 5),
    (_INVALID, _IMAGE, f"{_INVALID}: Unknown image", 9),
    # The user's own message has these words.
    ("ValueError", "see in user code:\n\n    KeyError: 'x'", "ValueError: see in user code:", 9),
]


def test_message_gives_the_users_exception_and_line() -> None:
    wrong = []
    for name, message, exception, line in _QUOTED:
        for key, text in {"{here}": "/here", "{lib}": "/venv/lib/python3.11", "{blank}": ""}.items():
            message = message.replace(key, text)
        # The text of a KeyError is the repr() of its message.
        message = repr(message) if name == "KeyError" else message
        kind = name if "." in name else f"builtins.{name}"
        text = _TEXT.format(here="/here", name=name, message=message)
        found = read_symptom("", Uncaught(type=kind, message=message, text=text))
        expected = exception, f"/here/train.py:{line}", SymptomKind.OWN
        if (found.exception, found.place, found.kind) != expected:
            wrong.append((expected, found))
    assert not wrong
