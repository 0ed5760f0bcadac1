"""Several tasks with one exception are one cause; a task with its own exception is not blamed on another."""

from __future__ import annotations

import pytest
from event_making import COLLATERAL, emptied, exited, feed, running, the_result

from orchestrator.client.view.report import end_lines
from orchestrator.core.diagnosis.symptoms import Uncaught, read_symptom
from orchestrator.core.state.events import Symptom, SymptomKind, TaskExited
from orchestrator.core.state.result import RunResult

PLACE = "/home/u/train.py:2"
MISSING = Symptom(
    kind=SymptomKind.OWN, exception="ModuleNotFoundError: No module named 'sklearnx'", place=PLACE
)


def own(exception: str, place: str = PLACE) -> Symptom:
    return Symptom(kind=SymptomKind.OWN, exception=exception, place=place)


def ended(*exits: TaskExited, tasks: int = 2) -> RunResult:
    lifecycle = running(tasks)
    first, *others = exits
    # The teardown begins before the others have exited.
    feed(lifecycle, [first])
    feed(lifecycle, others)
    return the_result(feed(lifecycle, [emptied()]))


def test_same_exception_of_a_task_that_was_stopped_meanwhile_is_the_same_cause() -> None:
    result = ended(exited(0, 1, symptom=MISSING), exited(1, 1, order=1, symptom=MISSING))
    assert result.cause is not None
    assert result.cause.text == (
        "both workers failed: ModuleNotFoundError: No module named 'sklearnx' (train.py:2)"
    )
    assert (result.cause.task, result.cause.tasks) == ("worker:0", ("worker:0", "worker:1"))
    assert [task.end for task in result.tasks] == ["failed", "failed"]
    report = end_lines(result, None, colour=False)
    assert not any("other tasks" in line for line in report)
    assert report[-1] == f"orch: {result.cause.text}"


def test_same_exception_is_counted() -> None:
    exits = [exited(index, 1, order=index, symptom=MISSING) for index in range(3)]
    cause = ended(*exits, exited(3, None, 15, order=3), tasks=4).cause
    assert cause is not None and cause.text.startswith("3 of 4 workers failed: ModuleNotFoundError")
    cause = ended(*exits, tasks=3).cause
    assert cause is not None and cause.text.startswith("all 3 workers failed: ModuleNotFoundError")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ValueError: <Data at 0x7f01ab>", "ValueError: <Data at 0x7f99cd>"),
        ("ValueError: no extension: filepath=model.", "ValueError: no extension: filepath=worker_1/model."),
        ("OSError: [Errno 2] No such file: '/data/0.csv'", "OSError: [Errno 2] No such file: '/data/1.csv'"),
    ],
)
def test_addresses_numbers_and_paths_in_messages_may_differ(first: str, second: str) -> None:
    result = ended(exited(0, 1, symptom=own(first)), exited(1, 1, order=1, symptom=own(second)))
    assert result.cause is not None and len(result.cause.tasks) == 2
    assert result.cause.text == f"both workers failed: {first} (train.py:2)"


@pytest.mark.parametrize(
    "other", [own("ModuleNotFoundError: No module named 'x'"), own(MISSING.exception or "", "/u/data.py:9")]
)
def test_different_exception_or_place_is_another_failure(other: Symptom) -> None:
    result = ended(exited(0, 1, symptom=MISSING), exited(1, 1, order=1, symptom=other))
    assert result.cause is not None and result.cause.tasks == ()
    assert result.tasks[1].end == f"failed while orch stopped it: {other.exception}"


def test_exceptions_of_a_stop_are_not_failures() -> None:
    interrupted = own("KeyboardInterrupt")
    result = ended(exited(0, 1, symptom=MISSING), exited(1, None, 15, order=1, symptom=interrupted))
    assert result.tasks[1].end == "stopped by orch"
    result = ended(exited(0, 1, symptom=MISSING), exited(1, 1, order=1, symptom=COLLATERAL))
    assert result.tasks[1].end == "failed because of it"


TRACEBACK = """Traceback (most recent call last):
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


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (TRACEBACK, "/home/u/test.py:41"),
        ('Traceback (most recent call last):\n  File "/a/lib/python3.11/b.py", line 3, in f\nE: x\n', None),
        ('  File "/home/u/train.py", line 3\n    x = (\n        ^\nSyntaxError: bad\n', "/home/u/train.py:3"),
        (TRACEBACK + "\nDuring handling of the above exception ...\n\n" + TRACEBACK.replace("41", "7"), ":7"),
    ],
)
def test_place_is_the_innermost_line_of_the_user(text: str, place: str | None) -> None:
    symptom = read_symptom(text, Uncaught(type="ValueError", message="boom", text=text))
    assert (symptom.place or "").endswith(place or "/a/lib/python3.11/b.py:3")
