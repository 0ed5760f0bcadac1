"""The symptom of a failed task: the exception, its place and whose it is, the advice, and the last lines.

The exception that the task itself wrote wins over its log.
"""

from __future__ import annotations

import contextlib
import io
import sys
import traceback

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
    try:
        exec(compile(program, "t.py", "exec"), {"__name__": "__main__"})
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return error
    raise AssertionError("the program succeeded")


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
    "TypeError: float() argument must be a string or a real number, not 'MirroredVariable'": (
        "convert_to_numpy(optimizer.learning_rate)"
    ),
    "INVALID_ARGUMENT: input depth must be evenly divisible by filter depth: 1 vs 3": "no example",
    "ValueError: Only instances of `keras.Layer` can be added to a Sequential model.": "--keras legacy",
    "ValueError: The filename must end in `.weights.h5`. Received: filepath=w": "--keras legacy",
    "ValueError: Cannot convert '14' to a shape.": "--keras legacy",
    "ValueError: Unrecognized keyword arguments passed to Dense: {'weights': []}": "--keras legacy",
    "RuntimeError: Mixing different tf.distribute.Strategy objects: <A> is not <B>": "with strategy.scope():",
    "InvalidArgumentError: You must feed a value for placeholder tensor 'cond/else/_1/cond/Placeholder_1'": (
        "optimizer.build"
    ),
    "AttributeError: 'ShardedVariable' object has no attribute 'handle'": "--no-fixes",
    "ValueError: You must specify an aggregation method to update a AggregatingVariable in Replica Context": (
        "--no-fixes"
    ),
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
