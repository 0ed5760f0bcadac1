"""The cause of a failure and its advice, from symptoms and process states."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from event_making import (
    COLLATERAL,
    OWN,
    UNKNOWN,
    emptied,
    exited,
    feed,
    lifecycle_of,
    planned,
    ready,
    running,
    started,
    the_result,
)
from job_making import JOB, changed

from orchestrator.core.diagnosis.symptoms import SIGNATURES, TAIL_LINES, read_symptom
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.state.events import Symptom, SymptomKind, TaskExited
from orchestrator.core.state.result import Cause, CauseKind, RunResult


def ended(*exits: TaskExited, tasks: int = 2) -> RunResult:
    lifecycle = running(tasks)
    feed(lifecycle, exits)
    return the_result(feed(lifecycle, [emptied()]))


def cause_of(*exits: TaskExited, tasks: int = 2) -> Cause:
    cause = ended(*exits, tasks=tasks).cause
    assert cause is not None
    return cause


@pytest.mark.parametrize("letter", ["T", "t"])
@pytest.mark.parametrize("symptom", [COLLATERAL, UNKNOWN, None])
def test_stopped_peer_is_the_cause(letter: str, symptom: Symptom | None) -> None:
    result = ended(exited(0, 1, symptom=symptom, peers={"worker:1": letter}))
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.kind) == ("worker:1", CauseKind.STOPPED)
    assert result.first_failure.task == "worker:0"
    assert {task.task: task.end for task in result.tasks}["worker:0"] == "failed because of it"


def test_stopped_peer_does_not_explain_an_own_exception() -> None:
    cause = cause_of(exited(0, 1, symptom=OWN, peers={"worker:1": "T"}))
    assert (cause.task, cause.kind) == ("worker:0", CauseKind.EXITED)


@pytest.mark.parametrize(("serves", "end"), [(True, "failed because of it"), (False, "failed, too")])
def test_silent_task_is_collateral_only_in_a_cluster(serves: bool, end: str) -> None:
    plan = planned(2)
    tasks = tuple(replace(task, serves=serves) for task in plan.tasks)
    lifecycle = lifecycle_of(changed(JOB, on_failure=FailurePolicy.CONTINUE))
    begun = (event for index in range(2) for event in (started(index), ready(index)))
    feed(lifecycle, [plan.model_copy(update={"tasks": tasks}), *begun])
    feed(lifecycle, [exited(0, 3, symptom=UNKNOWN), exited(1, 4, order=1, symptom=UNKNOWN)])
    result = the_result(feed(lifecycle, [emptied()]))
    assert [task.end for task in result.tasks] == ["failed", end]


def test_stopped_peer_does_not_explain_a_kill() -> None:
    cause = cause_of(exited(0, signal=signal.SIGKILL, symptom=UNKNOWN, peers={"worker:1": "T"}))
    assert (cause.task, cause.kind) == ("worker:0", CauseKind.EXITED)


@pytest.mark.parametrize("letter", "RSDZX")
def test_peer_in_another_state_is_not_the_cause(letter: str) -> None:
    assert cause_of(exited(0, 1, symptom=COLLATERAL, peers={"worker:1": letter})).task == "worker:0"


def test_task_that_left_early_is_the_cause() -> None:
    result = ended(exited(1, 0), exited(0, 1, order=1, symptom=COLLATERAL))
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.kind) == ("worker:1", CauseKind.LEFT_EARLY)
    assert result.exit_code == 1
    assert [task.end for task in result.tasks] == ["failed because of it", "left early"]


def test_first_task_that_left_early_is_named() -> None:
    cause = cause_of(exited(2, 0), exited(1, 0, order=1), exited(0, 1, order=2, symptom=COLLATERAL), tasks=3)
    assert cause.task == "worker:2"


def test_finished_task_is_not_the_cause_of_an_own_exception() -> None:
    cause = cause_of(exited(1, 0), exited(0, 1, order=1, symptom=OWN))
    assert (cause.task, cause.kind) == ("worker:0", CauseKind.EXITED)


def test_own_exception_wins_over_a_quicker_peer() -> None:
    result = ended(
        exited(0, 1, symptom=COLLATERAL, peer_symptoms={"worker:1": OWN}),
        exited(1, 1, order=1, symptom=OWN),
    )
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.first_failure.task) == ("worker:1", "worker:0")
    assert [task.end for task in result.tasks] == ["failed because of it", "failed"]


def test_exception_raised_by_a_stop_is_not_the_cause() -> None:
    interrupted = Symptom(kind=SymptomKind.OWN, exception="KeyboardInterrupt")
    first = exited(0, 1, symptom=COLLATERAL, peer_symptoms={"worker:1": interrupted})
    assert cause_of(first, exited(1, 1, order=1, symptom=interrupted)).task == "worker:0"


def test_exception_raised_during_a_stop_is_not_the_cause() -> None:
    first = exited(0, 1, symptom=COLLATERAL)
    assert cause_of(first, exited(1, 1, order=1, symptom=OWN)).task == "worker:0"


def test_first_own_exception_is_the_cause() -> None:
    assert cause_of(exited(0, 1, symptom=OWN, peer_symptoms={"worker:1": OWN})).task == "worker:0"


@pytest.mark.parametrize(
    ("code", "number", "text"),
    [
        (3, None, "exit 3"),
        (None, signal.SIGSEGV, "SIGSEGV"),
        (None, signal.SIGKILL, "SIGKILL, likely out of memory (or a kill -9)"),
        (None, 63, "signal 63"),
    ],
)
def test_cause_text(code: int | None, number: int | None, text: str) -> None:
    assert cause_of(exited(0, code, number)).text == text


TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\n'


@pytest.mark.parametrize(
    ("tail", "kind", "exception"),
    [
        ("", SymptomKind.UNKNOWN, None),
        ("epoch 3\nloss 0.1\n", SymptomKind.UNKNOWN, None),
        (TRACEBACK + "ValueError: boom\n", SymptomKind.OWN, "ValueError: boom"),
        (TRACEBACK + "my.pkg.Error\n", SymptomKind.OWN, "my.pkg.Error"),
        (TRACEBACK + "KeyError: 'x'\n\nmore output\n", SymptomKind.OWN, "KeyError: 'x'"),
        (
            TRACEBACK + "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed\n",
            SymptomKind.COLLATERAL,
            "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed",
        ),
        # An earlier one that was handled says nothing; the last one ended it.
        (
            TRACEBACK + "ConnectionResetError: peer\nretrying\n" + TRACEBACK + "OSError: mine\n",
            SymptomKind.OWN,
            "OSError: mine",
        ),
        # Its own exception, though its log speaks of peers too.
        ("E: Connection reset by peer\n" + TRACEBACK + "ValueError: x\n", SymptomKind.OWN, "ValueError: x"),
        ("W coordination: unhealthy (stopped sending heartbeats)\n", SymptomKind.COLLATERAL, None),
        ("The tasks have crashed: /job:worker\n", SymptomKind.COLLATERAL, None),
        # It went on: that one was handled, what ended it is another.
        (
            TRACEBACK + "ValueError: x\n" + "step\n" * 20 + "UNAVAILABLE: Socket closed\n",
            SymptomKind.COLLATERAL,
            None,
        ),
        (TRACEBACK + "ValueError: x\n" + "step\n" * 20, SymptomKind.UNKNOWN, None),
        # Up to five lines after it, however short, are the interpreter's.
        (TRACEBACK + "ValueError: x\n" + "}\n" * 5, SymptomKind.OWN, "ValueError: x"),
        (TRACEBACK + "ValueError: x\n" + "}\n" * 6, SymptomKind.UNKNOWN, None),
        (
            TRACEBACK
            + "tensorflow.python.framework.errors_impl.InternalError: Graph execution error:\n"
            + "AbortedError: the step was cancelled\n",
            SymptomKind.COLLATERAL,
            "tensorflow.python.framework.errors_impl.InternalError: Graph execution error:",
        ),
        # An exception's message can be long, and the interpreter can print more when it exits.
        (
            TRACEBACK + "ValueError: x\n" + "  more of it\n" * 20 + "W resource_tracker: leaked\n" * 2,
            SymptomKind.OWN,
            "ValueError: x",
        ),
        # Connections and ends of file are not only those to peers.
        (
            TRACEBACK + "ConnectionRefusedError: database: Connection refused\n",
            SymptomKind.OWN,
            "ConnectionRefusedError: database: Connection refused",
        ),
        (
            TRACEBACK + "EOFError: Compressed file ended before the end-of-stream marker was reached\n",
            SymptomKind.OWN,
            "EOFError: Compressed file ended before the end-of-stream marker was reached",
        ),
        (
            TRACEBACK + "BrokenPipeError: [Errno 32] Broken pipe\n",
            SymptomKind.OWN,
            "BrokenPipeError: [Errno 32] Broken pipe",
        ),
        (
            TRACEBACK.replace("t.py", "/lib/python3.11/site-packages/tensorflow/python/eager/execute.py")
            + "ConnectionResetError: peer\n",
            SymptomKind.COLLATERAL,
            "ConnectionResetError: peer",
        ),
        (
            TRACEBACK + "tensorflow.python.framework.errors_impl.InternalError: Connection reset by peer\n",
            SymptomKind.COLLATERAL,
            "tensorflow.python.framework.errors_impl.InternalError: Connection reset by peer",
        ),
        (
            TRACEBACK
            + "tensorflow.python.framework.errors_impl.InternalError: Graph execution error:\n\n"
            + 'Detected at node CollectiveReduceV2 defined at (most recent call last):\n  File "t.py", line 3\n\n'
            + "Collective ops is aborted by: Error reported from /job:worker/task:1\n",
            SymptomKind.COLLATERAL,
            "tensorflow.python.framework.errors_impl.InternalError: Graph execution error:",
        ),
        (
            TRACEBACK
            + "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:\n\n"
            + 'Detected at node MatMul defined at (most recent call last):\n  File "t.py", line 3\n\nshapes differ\n',
            SymptomKind.OWN,
            "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:",
        ),
        (
            TRACEBACK
            + "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:\n\n"
            + 'Detected at node MatMul defined at (most recent call last):\n  File "t.py", line 3\n\n'
            + "Incompatible shapes: [8,20] vs. [32,20]\n\t [[{{node MatMul}}]] [Op:f]\n",
            SymptomKind.OWN,
            "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:"
            " Incompatible shapes: [8,20] vs. [32,20]",
        ),
        ("curl: (7) Connection refused\n", SymptomKind.UNKNOWN, None),
        ("W tensorflow/core/x.cc:1] Connection reset by peer\n", SymptomKind.COLLATERAL, None),
        (TRACEBACK + "__main__.f.<locals>.Bad: x\n", SymptomKind.OWN, "__main__.f.<locals>.Bad: x"),
        # An hour ago is not the end.
        ("Socket closed\n" + "step\n" * 2000, SymptomKind.UNKNOWN, None),
    ],
)
def test_symptom_of_last_output(tail: str, kind: SymptomKind, exception: str | None) -> None:
    symptom = read_symptom(tail)
    assert (symptom.kind, symptom.exception) == (kind, exception)


RAISES_GROUPS = """
class UnavailableError(Exception): pass
def lost():
    try: raise UnavailableError("Socket closed")
    except UnavailableError as error: return error
def own():
    class Bad(Exception): pass
    try: raise Bad("mine")
    except Bad as error: return error
def grouped(name):
    return {"lost": lambda: ExceptionGroup("all", [lost(), ExceptionGroup("in", [lost()])]),
            "own": lambda: ExceptionGroup("all", [lost(), ExceptionGroup("in", [own()])]),
            "local": own}[name]()
"""


@pytest.mark.parametrize(
    ("name", "kind", "exception"),
    [
        ("lost", SymptomKind.COLLATERAL, "ExceptionGroup: all (2 sub-exceptions)"),
        ("own", SymptomKind.OWN, "ExceptionGroup: all (2 sub-exceptions)"),
        ("local", SymptomKind.OWN, "own.<locals>.Bad: mine"),
    ],
)
def test_real_output_of_python(name: str, kind: SymptomKind, exception: str) -> None:
    program = f"{RAISES_GROUPS}\nraise grouped('{name}')"
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    symptom = read_symptom("step 1\n" + ended.stderr)
    assert (symptom.kind, symptom.exception) == (kind, exception), ended.stderr


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("bdb.BdbQuit", "no terminal"),
        ("ValueError: Attempt to convert a value (PerReplica:{...}) with an unsupported type", "Keras 3"),
        ("Invalid reduction dimension 0 for input with 0 dimensions", "Keras 3"),
        ("UnknownError: Could not start gRPC server", "port was taken"),
        ("OSError: [Errno 98] Address already in use", "port was taken"),
        ("ModuleNotFoundError: No module named 'tf_keras'", "pip install tf_keras"),
        ("ModuleNotFoundError: No module named 'tensorflow'", "pip install tensorflow"),
        ("AttributeError: 'Mean' object has no attribute 'reset_states'", "reset_state"),
        (
            "RuntimeError: Unable to automatically build the model. Please build it yourself.\nException encountered:\n"
            "'Exception encountered when calling GAN.call().\n\n\x1b[1mModel GAN does not have a `call()` method"
            " implemented.\x1b[0m",
            "self.built = True",
        ),
        ("ValueError: None values not supported.", "without `loss`"),
        (
            "TypeError: float() argument must be a string or a real number, not 'MirroredVariable'",
            "convert_to_numpy(optimizer.learning_rate)",
        ),
        ("INVALID_ARGUMENT: input depth must be evenly divisible by filter depth: 1 vs 3", "no example"),
        ("ValueError: Only instances of `keras.Layer` can be added to a Sequential model.", "--keras legacy"),
        ("ValueError: The filename must end in `.weights.h5`. Received: filepath=w", "--keras legacy"),
        ("ValueError: Cannot convert '14' to a shape.", "--keras legacy"),
        (
            "RuntimeError: Mixing different tf.distribute.Strategy objects: <A> is not <B>",
            "with strategy.scope():",
        ),
        ("ValueError: Unrecognized keyword arguments passed to Dense: {'weights': []}", "--keras legacy"),
        (
            "InvalidArgumentError: You must feed a value for placeholder tensor 'cond/else/_1/cond/Placeholder_1'",
            "optimizer.build",
        ),
        ("AttributeError: 'ShardedVariable' object has no attribute 'handle'", "--no-fixes"),
        (
            "ValueError: You must specify an aggregation method to update a AggregatingVariable in Replica Context",
            "--no-fixes",
        ),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "InvalidArgumentError: Could not apply FILE based sharding: the dataset only has 1 file(s)",
            "DATA or OFF",
        ),
        ("ValueError: TF_CONFIG is malformed", "orch config"),
        ("MemoryError", "fewer workers"),
    ],
)
def test_known_failure_has_advice(text: str, advice: str) -> None:
    found = read_symptom(TRACEBACK + text + "\n").advice
    assert found is not None and advice in found


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: boom",
        "ModuleNotFoundError: No module named 'tensorflow_hub'",
        "ModuleNotFoundError: No module named 'tensorflow.python.nothing'",
        "ModuleNotFoundError: No module named 'tf_keras_more'",
    ],
)
def test_unknown_failure_has_no_advice(text: str) -> None:
    assert read_symptom(f"{TRACEBACK}{text}\n").advice is None


def test_advice_is_one_line() -> None:
    assert all("\n" not in advice for _, advice in SIGNATURES)


def test_advice_reaches_the_result() -> None:
    symptom = read_symptom(TRACEBACK + "ModuleNotFoundError: No module named 'tensorflow'\n")
    first = ended(exited(0, 1, symptom=symptom)).first_failure
    assert first is not None
    assert first.advice is not None and first.exception == symptom.exception
    assert first.lines[-1].startswith("ModuleNotFoundError")


def test_last_lines_are_few_clean_and_short() -> None:
    lines = [f"line {i}" for i in range(100)] + ["10%\r20%\r\x1b[31mred\x1b[0m\x07", "x" * 10_000, "", "  "]
    symptom = read_symptom("\n".join(lines))
    assert len(symptom.lines) == TAIL_LINES
    assert symptom.lines[-2] == "red"
    assert set(symptom.lines[-1]) == {"x"} and len(symptom.lines[-1]) < 1000
    assert symptom.lines[-3] == "line 99"
