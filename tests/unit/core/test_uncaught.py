"""The exception that the task itself wrote wins over its log."""

from __future__ import annotations

import subprocess
import sys

import pytest
from event_making import emptied, exited, feed, running, the_result

from orchestrator.core.diagnosis.symptoms import Uncaught, read_symptom
from orchestrator.core.state.events import SymptomKind

PROGRAM = """
import json, sys, traceback
try:
    {raising}
except BaseException as error:
    kind = type(error)
    name = kind.__module__ + "." + kind.__qualname__
    print(json.dumps({{"type": name, "message": str(error), "text": traceback.format_exc(), "at": "t.py:3"}}))
"""
CHAINED = """
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("cannot read\\nthe table") from error
"""
PEER = 'class UnavailableError(Exception): pass\n    raise UnavailableError("Socket closed")'
GROUP = 'raise ExceptionGroup("two", [ValueError("a"), ConnectionResetError("peer gone: tensorflow")])'
PEERS = 'raise ExceptionGroup("all", [RuntimeError("Socket closed"), RuntimeError("UNAVAILABLE: x")])'


def put_down(raising: str) -> Uncaught:
    program = PROGRAM.replace("{raising}", raising.strip()).replace("{{", "{").replace("}}", "}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return Uncaught.model_validate_json(done.stdout)


@pytest.mark.parametrize(
    ("raising", "line", "kind"),
    [
        ('raise ValueError("boom")', "ValueError: boom", SymptomKind.OWN),
        ("raise ValueError", "ValueError", SymptomKind.OWN),
        (CHAINED, "RuntimeError: cannot read", SymptomKind.OWN),
        (PEER, "__main__.UnavailableError: Socket closed", SymptomKind.COLLATERAL),
        (GROUP, "ExceptionGroup: two (2 sub-exceptions)", SymptomKind.OWN),
        (PEERS, "ExceptionGroup: all (2 sub-exceptions)", SymptomKind.COLLATERAL),
        (
            "import json; json.loads('{')",
            "json.decoder.JSONDecodeError: Expecting property name",
            SymptomKind.OWN,
        ),
        ("import nowhere.at_all", "ModuleNotFoundError: No module named 'nowhere'", SymptomKind.OWN),
    ],
)
def test_uncaught_exception_gives_line_and_kind(raising: str, line: str, kind: SymptomKind) -> None:
    symptom = read_symptom("the last words, without any traceback\n", put_down(raising))
    assert symptom.exception is not None and symptom.exception.startswith(line)
    assert symptom.kind is kind
    assert symptom.lines == ("the last words, without any traceback",)


def test_reason_on_a_later_line_counts_for_tensorflow() -> None:
    lost = Uncaught(
        type="tensorflow.python.framework.errors_impl.UnknownError",
        message="Graph execution error:\n\nDetected at node CollectiveReduceV2\nSocket closed",
        text="Traceback (most recent call last):\n  File 'x', line 1, in <module>\n",
    )
    assert read_symptom("", lost).kind is SymptomKind.COLLATERAL


def test_reason_of_a_graph_is_in_the_line() -> None:
    error = Uncaught(
        type="tensorflow.python.framework.errors_impl.InvalidArgumentError",
        message="Graph execution error:\n\nDetected at node add\n\nIncompatible shapes\n\t [[{{node add}}]] [Op:f]",
        text="",
    )
    assert error.line.endswith("InvalidArgumentError: Graph execution error: Incompatible shapes")


def test_advice_prefers_the_exception_over_the_log() -> None:
    tail = "could not find it: No module named 'tensorflow'\n"
    raised = put_down("raise ModuleNotFoundError(\"No module named 'tf_keras'\")")
    assert "tf_keras" in (read_symptom(tail, raised).advice or "")
    other = put_down('raise ValueError("boom")')
    assert "TensorFlow is missing" in (read_symptom(tail, other).advice or "")


def test_any_text_is_classified() -> None:
    for text in (
        "",
        "x" * 10_000_000,
        "Traceback (most recent call last):\n" * 10_000,
        "\x1b[31m\r\n" * 1000,
    ):
        symptom = read_symptom("", Uncaught(type="A", message=text, text=text))
        assert symptom.exception is not None and len(symptom.exception) <= 400


@pytest.mark.parametrize(("code", "says"), [(42, "PreemptionCheckpointHandler"), (143, "SIGTERM")])
def test_exit_codes_of_tensorflow_are_described(code: int, says: str) -> None:
    lifecycle = running(2)
    feed(lifecycle, [exited(0, code)])
    result = the_result(feed(lifecycle, [emptied()]))
    assert result.cause is not None and says in result.cause.text and f"exit {code}" in result.cause.text
    assert result.exit_code == code
