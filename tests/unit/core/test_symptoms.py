"""The symptom of a failed task: the exception, its place and whose it is, the advice, and the last lines.

The exception that the task itself wrote wins over its log. That of the user's code may be quoted in another one.
"""

from __future__ import annotations

import contextlib
import io
import sys
import traceback

import pytest

from orchestrator.core.diagnosis.symptoms import SIGNATURES, TAIL_LINES, Uncaught, read_symptom
from orchestrator.core.state.events import Symptom, SymptomKind

OWN, LOST, UNKNOWN = SymptomKind.OWN, SymptomKind.COLLATERAL, SymptomKind.UNKNOWN
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\n'
IN_TENSORFLOW = TRACEBACK.replace("t.py", "/lib/python3.11/site-packages/tensorflow/python/eager/execute.py")
ERRORS = "tensorflow.python.framework.errors_impl"
INTERNAL, INVALID = f"{ERRORS}.InternalError", f"{ERRORS}.InvalidArgumentError"
UNAVAILABLE = "class UnavailableError(Exception): pass\n"
DETECTED = ' defined at (most recent call last):\n  File "t.py", line 3\n\n'


def test_symptom_of_last_output() -> None:
    failed_graph, internal = f"{INVALID}: Graph execution error:", f"{INTERNAL}: Graph execution error:"
    mine, steps = TRACEBACK + "ValueError: x\n", "step\n" * 20
    detected = f"{TRACEBACK}{failed_graph}\n\nDetected at node MatMul{DETECTED}"
    shapes = "Incompatible shapes: [8,20] vs. [32,20]"
    rows: dict[str, tuple[SymptomKind, str | None]] = {
        "": (UNKNOWN, None),
        "epoch 3\nloss 0.1\n": (UNKNOWN, None),
        # The last line of a traceback is the exception.
        f"{TRACEBACK}my.pkg.Error\n": (OWN, "my.pkg.Error"),
        f"{TRACEBACK}__main__.f.<locals>.Bad: x\n": (OWN, "__main__.f.<locals>.Bad: x"),
        f"{TRACEBACK}{ERRORS}.UnavailableError: Socket closed\n": (
            LOST,
            f"{ERRORS}.UnavailableError: Socket closed",
        ),
        f"{TRACEBACK}{INTERNAL}: Connection reset by peer\n": (LOST, f"{INTERNAL}: Connection reset by peer"),
        # Connections and ends of file are not only those to peers.
        f"{TRACEBACK}ConnectionRefusedError: db: refused\n": (OWN, "ConnectionRefusedError: db: refused"),
        f"{TRACEBACK}EOFError: Compressed file ended\n": (OWN, "EOFError: Compressed file ended"),
        f"{TRACEBACK}BrokenPipeError: [Errno 32] Broken pipe\n": (
            OWN,
            "BrokenPipeError: [Errno 32] Broken pipe",
        ),
        TRACEBACK + "KeyError: 'x'\n\nmore output\n": (OWN, "KeyError: 'x'"),
        # The earlier exception was handled. The last one ended the task.
        f"{TRACEBACK}ConnectionResetError: peer\nretrying\n{TRACEBACK}OSError: mine\n": (
            OWN,
            "OSError: mine",
        ),
        # The task's own exception counts, although its log also names a lost peer.
        f"E: Connection reset by peer\n{mine}": (OWN, "ValueError: x"),
        "W coordination: unhealthy (stopped sending heartbeats)\n": (LOST, None),
        "The tasks have crashed: /job:worker\n": (LOST, None),
        # Output after an exception shows that it was handled. Something else ended the task.
        f"{mine}{steps}UNAVAILABLE: Socket closed\n": (LOST, None),
        # Up to five lines after the exception, of any length, can be those of the interpreter.
        mine + "}\n" * 5: (OWN, "ValueError: x"),
        mine + "}\n" * 6: (UNKNOWN, None),
        # The message of an exception can be long, and the interpreter can print more when it exits.
        mine + "  more of it\n" * 20 + "W resource_tracker: leaked\n" * 2: (OWN, "ValueError: x"),
        IN_TENSORFLOW + "ConnectionResetError: peer\n": (LOST, "ConnectionResetError: peer"),
        # The reason of a graph is on a later line.
        f"{TRACEBACK}{internal}\nAbortedError: the step was cancelled\n": (LOST, internal),
        f"{TRACEBACK}{internal}\n\nDetected at node CollectiveReduceV2{DETECTED}"
        "Collective ops is aborted by: Error reported from /job:worker/task:1\n": (LOST, internal),
        f"{detected}shapes differ\n": (OWN, failed_graph),
        f"{detected}{shapes}\n\t [[{{{{node MatMul}}}}]] [Op:f]\n": (OWN, f"{failed_graph} {shapes}"),
        "curl: (7) Connection refused\n": (UNKNOWN, None),
        "W tensorflow/core/x.cc:1] Connection reset by peer\n": (LOST, None),
        # Much output came after the message, so that it does not explain the end.
        "Socket closed\n" + "step\n" * 2000: (UNKNOWN, None),
    }
    found = {tail: read_symptom(tail) for tail in rows}
    wrong = {tail: it for tail, it in found.items() if (it.kind, it.exception) != rows[tail]}
    assert not wrong, wrong


def raised(program: str) -> BaseException:
    """Run a program as `python t.py` would, and return its exception."""
    with pytest.raises(Exception) as caught:
        exec(compile(program, "t.py", "exec"), {"__name__": "__main__"})
    error = caught.value
    return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)


def written(program: str) -> Uncaught:
    """The exception of a program as the bootstrap in a task writes it."""
    error = raised(program)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    text = "".join(traceback.format_exception(error))
    return Uncaught(type=kind, message=str(error), text=text, at="t.py:3")


def printed(program: str) -> str:
    """The text that the interpreter prints for the exception of a program."""
    error = raised(program)
    with contextlib.redirect_stderr(io.StringIO()) as output:
        sys.__excepthook__(type(error), error, error.__traceback__)
    return output.getvalue()


def test_groups_of_exceptions_as_python_prints_them() -> None:
    own, lost = (
        'class Bad(Exception): pass\nmade = Bad("mine")\n',
        f"{UNAVAILABLE}made = UnavailableError('x')\n",
    )
    group = 'raise ExceptionGroup("all", [made, ExceptionGroup("in", [made])])'
    rows = {
        f"{lost}{group}": (LOST, "ExceptionGroup: all (2 sub-exceptions)"),
        f"{own}{group}": (OWN, "ExceptionGroup: all (2 sub-exceptions)"),
        "def f():\n    class Bad(Exception): pass\n    raise Bad('mine')\nf()": (
            OWN,
            "f.<locals>.Bad: mine",
        ),
    }
    found = {program: read_symptom(f"step 1\n{printed(program)}") for program in rows}
    assert {program: (symptom.kind, symptom.exception) for program, symptom in found.items()} == rows


CHAINED = """
try:
    {}["missing"]
except KeyError as error:
    raise RuntimeError("cannot read\\nthe table") from error
"""


def test_exception_that_the_task_wrote_gives_line_and_kind() -> None:
    last_line = "the last line, without any traceback"
    mine = '[ValueError("a"), ConnectionResetError("peer gone: tensorflow")]'
    peers = '[RuntimeError("Socket closed"), RuntimeError("UNAVAILABLE: x")]'
    rows = {
        'raise ValueError("boom")': (OWN, "ValueError: boom"),
        "raise ValueError": (OWN, "ValueError"),
        CHAINED: (OWN, "RuntimeError: cannot read"),
        f'{UNAVAILABLE}raise UnavailableError("Socket closed")': (
            LOST,
            "__main__.UnavailableError: Socket closed",
        ),
        f'raise ExceptionGroup("two", {mine})': (OWN, "ExceptionGroup: two (2 sub-exceptions)"),
        f'raise ExceptionGroup("all", {peers})': (LOST, "ExceptionGroup: all (2 sub-exceptions)"),
        "import json; json.loads('{')": (OWN, "json.decoder.JSONDecodeError: Expecting property name"),
        "import nowhere.at_all": (OWN, "ModuleNotFoundError: No module named 'nowhere'"),
    }
    wrong = {}
    for program, (kind, line) in rows.items():
        symptom = read_symptom(f"{last_line}\n", written(program))
        is_right = symptom.kind is kind and (symptom.exception or "").startswith(line)
        if not is_right or symptom.lines != (last_line,):
            wrong[program] = symptom
    assert not wrong, wrong


def test_reason_of_a_failed_graph_is_on_a_later_line() -> None:
    def error(kind: str, reason: str) -> Uncaught:
        message = f"Graph execution error:\n\nDetected at node add\n{reason}"
        return Uncaught(type=f"{ERRORS}.{kind}", message=message, text=TRACEBACK)

    assert read_symptom("", error("UnknownError", "Socket closed")).kind is LOST
    invalid = error("InvalidArgumentError", "\nBad shapes\n\t [[{{node add}}]] [Op:f]")
    assert invalid.line.endswith("InvalidArgumentError: Graph execution error: Bad shapes")


def test_any_text_is_classified() -> None:
    long = ("x" * 10_000_000, "Traceback (most recent call last):\n" * 10_000, "\x1b[31m\r\n" * 1000)
    for text in ("", *long):
        symptom = read_symptom("", Uncaught(type="A", message=text, text=text))
        assert symptom.exception is not None and len(symptom.exception) <= 400


IN_KERAS = """Traceback (most recent call last):
  File "/home/u/test.py", line 41, in main
    model.fit(data)
  File "/venv/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
  File "/opt/orch/worker/bootstrap/keras_fix/trainer.py", line 101, in build
    original(self)
  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode
  File "<frozen importlib._bootstrap>", line 9, in _load
ValueError: boom
"""


def test_place_is_the_innermost_line_of_the_user() -> None:
    library = "/a/lib/python3.11/b.py"
    syntax = '  File "/home/u/train.py", line 3\n    x = (\n        ^\nSyntaxError: bad\n'
    handled = IN_KERAS + "\nDuring handling of the above exception ...\n\n" + IN_KERAS.replace("41", "7")
    rows = {
        IN_KERAS: "/home/u/test.py:41",
        TRACEBACK.replace("t.py", library) + "E: x\n": f"{library}:3",
        syntax: "/home/u/train.py:3",
        handled: "/home/u/test.py:7",
    }
    wrote = {text: Uncaught(type="ValueError", message="boom", text=text) for text in rows}
    assert {text: read_symptom(text, uncaught).place for text, uncaught in wrote.items()} == rows


ADVICE = {
    "bdb.BdbQuit": "no terminal",
    "ValueError: Attempt to convert a value (PerReplica:{...}) with an unsupported type": "Keras 3",
    "Invalid reduction dimension 0 for input with 0 dimensions": "Keras 3",
    "UnknownError: Could not start gRPC server": "port was taken",
    "OSError: [Errno 98] Address already in use": "port was taken",
    "ModuleNotFoundError: No module named 'tf_keras'": "pip install tf_keras",
    "ModuleNotFoundError: No module named 'tensorflow'": "pip install tensorflow",
    "AttributeError: 'Mean' object has no attribute 'reset_states'": "reset_state",
    "RuntimeError: Unable to automatically build the model. Please build it yourself.\nException encountered:\n"
    "'Exception encountered when calling GAN.call().\n\n\x1b[1mModel GAN does not have a `call()` method"
    " implemented.\x1b[0m": "self.built = True",
    "ValueError: None values not supported.": "without `loss`",
    "TypeError: float() argument must be a string or a real number, not 'MirroredVariable'": "convert_to_numpy(",
    "INVALID_ARGUMENT: input depth must be evenly divisible by filter depth: 1 vs 3": "no example",
    "ValueError: Only instances of `keras.Layer` can be added to a Sequential model.": "--keras legacy",
    "ValueError: The filename must end in `.weights.h5`. Received: filepath=w": "--keras legacy",
    "ValueError: Cannot convert '14' to a shape.": "--keras legacy",
    "ValueError: Unrecognized keyword arguments passed to Dense: {'weights': []}": "--keras legacy",
    "RuntimeError: Mixing different tf.distribute.Strategy objects: <A> is not <B>": "with strategy.scope():",
    "You must feed a value for placeholder tensor 'cond/else/_1/cond/Placeholder_1'": "optimizer.build",
    "AttributeError: 'ShardedVariable' object has no attribute 'handle'": "--no-fixes",
    "You must specify an aggregation method to update a AggregatingVariable in Replica Context": "--no-fixes",
    "OSError: [Errno 28] No space left on device": "disk is full",
    "InvalidArgumentError: Could not apply FILE based sharding: the dataset only has 1 file(s)": "DATA or OFF",
    "ValueError: TF_CONFIG is malformed": "orch config",
    "MemoryError": "fewer workers",
}


def test_known_failures_have_advice_and_others_none() -> None:
    missing = "ModuleNotFoundError: No module named"
    others = ("tensorflow_hub", "tensorflow.python.nothing", "tf_keras_more")
    unknown = ["ValueError: boom", *(f"{missing} '{name}'" for name in others)]
    found = {text: read_symptom(f"{TRACEBACK}{text}\n").advice for text in [*ADVICE, *unknown]}
    wrong = {text: advice for text, advice in found.items() if ADVICE.get(text, "") not in (advice or "")}
    assert not wrong and not any(found[text] for text in unknown), (wrong, found)
    assert all("\n" not in advice for _, advice in SIGNATURES)


def test_advice_prefers_the_exception_over_the_log() -> None:
    def advice(error: str) -> str:
        tail = "could not find it: No module named 'tensorflow'\n"
        return read_symptom(tail, written(f"raise {error}")).advice or ""

    assert "tf_keras" in advice("ModuleNotFoundError(\"No module named 'tf_keras'\")")
    assert "TensorFlow is missing" in advice('ValueError("boom")')


def test_last_lines_are_few_clean_and_short() -> None:
    lines = [f"line {i}" for i in range(100)] + ["10%\r20%\r\x1b[31mred\x1b[0m\x07", "x" * 10_000, "", "  "]
    symptom: Symptom = read_symptom("\n".join(lines))
    assert len(symptom.lines) == TAIL_LINES
    assert symptom.lines[-3:-1] == ("line 99", "red")
    assert set(symptom.lines[-1]) == {"x"} and len(symptom.lines[-1]) < 1000


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

    StagingError: Exception encountered when calling layer 'model' (type Model).
    {blank}
    in user code:
    {blank}
        File "{here}/train.py", line 31, in call  *
            return self.dense(self.scale(x))
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
_UNKNOWN = f"{ERRORS}.UnknownError"
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
    (INVALID, _IN_A_GRAPH, f"{INVALID}: Graph execution error: {_ASSERTION}", 5),
    (INVALID, _IMAGE, f"{INVALID}: Unknown image", 9),
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
        expected = exception, f"/here/train.py:{line}", OWN
        if (found.exception, found.place, found.kind) != expected:
            wrong.append((expected, found))
    assert not wrong
