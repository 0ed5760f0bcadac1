"""Functions of this process that every task of a run calls: their values, their exceptions, and what cannot be sent."""

from __future__ import annotations

import decimal
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator import RunTimedOut, Session, TaskFailed, UsageError
from orchestrator.client import api
from orchestrator.client.functions import blamed
from orchestrator.core.state.result import Cause, CauseKind, FirstFailure, RunResult

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")
RATE = 0.5


class Measured:
    """A class of a test module, which no other process imports."""

    def __init__(self, task: str) -> None:
        self.task = task

    def index(self) -> int:
        return int(self.task.partition(":")[2])


class Overflown(Exception):
    def __init__(self, text: str, level: int = 0) -> None:
        super().__init__(text)
        self.level = level


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


def own_task() -> str:
    return os.environ["ORCH_TASK"]


def index() -> int:
    return Measured(own_task()).index()


def scaled(number: float, *, by: float = 1) -> tuple[str, float]:
    return own_task(), number * by * RATE


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.chdir(tmp_path)
    with Session() as session:
        yield session


def last_run() -> api.Run:
    return api.find()


def waits_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def test_values_come_back_in_task_order(session: Session) -> None:
    offset = 40

    def shifted() -> int:
        return offset + index()

    assert session.run(scaled, (3,), {"by": 2}, workers=3) == [(f"worker:{i}", 3.0) for i in range(3)]
    assert session.run(shifted, workers=2) == [40, 41]
    assert session.run(lambda: [None, index()], workers=2) == [[None, 0], [None, 1]]
    assert session.run(functools.partial(scaled, 1), workers=1, roles={"chief": {"count": 1}}) == [
        ("chief:0", 0.5),
        ("worker:0", 0.5),
    ]
    assert last_run().view.record.spec["command"]["words"] == ["scaled()"]


def test_call_without_a_session(tmp_path: Path) -> None:
    assert orchestrator.run(index, workers=2, directory=tmp_path) == [0, 1]


def test_function_finds_what_its_process_has(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "here")
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "3"])

    def surroundings() -> tuple[Any, ...]:
        # The module is not imported: of it, only what the function uses is sent.
        assert index() == 0
        mine = [name for name in sys.modules if "test_functions" in name or name == "tensorflow"]
        return os.environ["MINE"], sys.argv, sys.path, str(Path.cwd()), "ORCH_DESCRIPTORS" in os.environ, mine

    here = ("here", sys.argv, [entry or str(Path.cwd()) for entry in sys.path], str(Path.cwd()), False, [])
    assert session.run(surroundings) == [here]


def test_classes_of_this_process_stay_as_they_are(session: Session) -> None:
    method, (value,) = Measured.index, session.run(lambda: Measured(own_task()))
    assert type(value) is Measured and value.index() == 0
    assert Measured.index is method and method.__globals__ is globals()


def test_exception_is_raised_here(session: Session) -> None:
    def overflow() -> None:
        if index() == 1:
            raise Overflown("too much", level=7)
        time.sleep(600)

    with pytest.raises(Overflown, match="too much") as caught:
        session.run(overflow, workers=2)
    error = caught.value
    assert (error.level, error.task) == (7, "worker:1")  # type: ignore[attr-defined]
    assert error.__notes__ == ["raised by overflow() in worker:1"]
    failed = error.__cause__
    assert isinstance(failed, TaskFailed) and failed.result.outcome == "failed"
    (note,) = failed.__notes__
    assert note.startswith("worker:1:\nTraceback") and 'raise Overflown("too much", level=7)' in note
    # Only the function's own frames.
    assert "call_function.py" not in note


def test_exception_that_cannot_be_made_here(session: Session) -> None:
    def fail() -> None:
        raise NeedsTwo(1, 2)

    with pytest.raises(TaskFailed, match="NeedsTwo: 3") as caught:
        session.run(fail)
    assert "raise NeedsTwo(1, 2)" in caught.value.__notes__[0]
    with pytest.raises(TaskFailed, match="ZeroDivisionError") as caught:
        session.run(raise_with_lock)
    assert "raise error" in caught.value.__notes__[0]


def raise_with_lock() -> None:
    error = ZeroDivisionError("with a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


SETTINGS = {"rate": 1, "locks": [threading.Lock()]}


def uses_settings() -> object:
    return SETTINGS["locks"]


@pytest.mark.parametrize(
    ("function", "args", "named"),
    ids=["global", "called", "argument", "partial", "method"],
    argvalues=[
        (uses_settings, (), r"SETTINGS\['locks'\]\[0\] \(used by uses_settings\(\)\) is a _thread\.lock"),
        (
            lambda: uses_settings(),
            (),
            r"<lambda>\(\) cannot be sent to the tasks: SETTINGS\['locks'\]\[0\] \(used by uses_settings\(\)\)",
        ),
        (
            print,
            (1, threading.Lock()),
            r"print\(\) cannot be sent to the tasks: argument 2 is a _thread\.lock",
        ),
        (functools.partial(print, threading.Lock()), (), r"print\(\)\.args\[0\] is a _thread\.lock"),
        (threading.Thread().run, (), r"self.* \(used by Thread\.run\(\)\) is a "),
    ],
)
def test_what_cannot_be_pickled_is_named(
    function: Callable[..., object], args: tuple[object, ...], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        orchestrator.run(function, args)
    assert list(api.ls()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    ids=["not callable", "text", "hosts", "role", "option"],
    argvalues=[
        ({"function": 3}, "3 cannot be called"),
        ({"function": print, "args": "abc"}, r"write args=\('abc',\)"),
        ({"function": print, "hosts": "a:1"}, r"print\(\) runs on this machine only"),
        (
            {"function": print, "roles": {"ps": {"command": "sleep 9"}}, "workers": 1},
            "ps has a command of its own",
        ),
        ({"function": print, "no_such_option": 1}, "no_such_option"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises((UsageError, TypeError), match=reason):
        orchestrator.run(**arguments)
    assert list(api.ls()) == []


@pytest.mark.parametrize(
    ("function", "text"),
    ids=["large", "lock", "exit", "_exit", "exit 3"],
    argvalues=[
        (lambda: b"x" * (64 << 20), r"<lambda>\(\) returned more than 64 MiB: write it to a file"),
        (lambda: threading.Lock(), r"returned a value of type lock, which cannot be sent back \(TypeError"),
        (lambda: sys.exit(0), r"worker:0: exited before <lambda>\(\) returned"),
        (lambda: os._exit(0), r"worker:0: exited before <lambda>\(\) returned"),
        (lambda: sys.exit(3), "exit 3"),
    ],
)
def test_no_value(session: Session, function: Callable[[], object], text: str) -> None:
    with pytest.raises(TaskFailed, match=text) as caught:
        session.run(function)
    assert caught.value.task == "worker:0"
    # The session serves the next call.
    assert session.run(lambda: b"x" * (1 << 20)) == [b"x" * (1 << 20)]


def test_function_that_never_returns(session: Session) -> None:
    with pytest.raises(RunTimedOut):
        session.run(lambda: time.sleep(600), timeout="1s", grace=0)


def test_process_forked_by_the_function_returns_nothing(session: Session) -> None:
    def forks() -> str:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
        return "child"

    def forks_and_fails() -> str:
        child = os.fork()
        if child:
            return f"child: {os.waitpid(child, 0)[1] >> 8}"
        raise ValueError("in the child")

    with pytest.raises(TaskFailed, match="exited before"):
        session.run(forks)
    assert session.run(forks_and_fails) == ["child: 1"]


def test_function_that_kills_its_peer(session: Session, tmp_path: Path) -> None:
    def kills() -> None:
        if index() == 1:
            (tmp_path / "part").write_text(str(os.getpid()))
            (tmp_path / "part").rename(tmp_path / "pid")
            time.sleep(600)
        waits_for(tmp_path / "pid")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(TaskFailed, match="worker:1 failed: SIGKILL") as caught:
        session.run(kills, workers=2)
    assert caught.value.task == "worker:1"


@pytest.mark.parametrize(
    ("cause", "kind", "tasks"),
    [
        ("worker:1", CauseKind.EXITED, ("worker:1",)),
        ("worker:1", CauseKind.LEFT_EARLY, ("worker:1", "worker:0")),
        (None, CauseKind.LIMIT, ("worker:0",)),
    ],
)
def test_exception_of_the_cause_is_preferred(
    cause: str | None, kind: CauseKind, tasks: tuple[str, ...]
) -> None:
    first = FirstFailure(task="worker:0", exit_code=1, signal=None, exception=None, log="", advice=None)
    result = RunResult(
        run_id="r",
        outcome="failed",
        exit_code=1,
        attempts=1,
        cause=Cause(task=cause, kind=kind, text=""),
        first_failure=first,
        detection_s=None,
        teardown_s=None,
        tasks=(),
    )
    assert blamed(result) == tasks


def test_value_of_an_earlier_attempt_is_dropped(session: Session, tmp_path: Path) -> None:
    def restarts() -> int:
        attempt = int(os.environ["ORCH_ATTEMPT"])
        if attempt == 1 and index() == 1:
            waits_for(tmp_path / "left")
            sys.exit(42)  # asks for a restart
        if attempt == 2 and index() == 0:
            sys.exit()
        (tmp_path / "left").touch()
        return attempt

    with pytest.raises(TaskFailed, match="worker:0: exited before"):
        session.run(restarts, workers=2, on_failure="restart")


def test_failed_task_of_a_run_that_continues(session: Session) -> None:
    def fails() -> int:
        if index() == 1:
            raise Overflown("only here")
        return 1

    with pytest.raises(Overflown) as caught:
        session.run(fails, workers=2, on_failure="continue")
    assert caught.value.task == "worker:1"  # type: ignore[attr-defined]


def test_stopped_parameter_server_has_no_value(session: Session) -> None:
    def serves() -> str:
        if own_task().startswith("ps"):
            time.sleep(600)
        return own_task()

    chief, _, server = session.run(serves, workers=1, ps=1)
    assert (chief, server) == ("chief:0", None)


def test_kept_preloader_serves_the_next_call(session: Session) -> None:
    def exact() -> str:
        return str(decimal.Decimal("0.1") * 3)

    for _ in range(2):
        assert session.run(exact, preload="decimal", workers=2) == ["0.3", "0.3"]
        state = last_run().view
        state.refresh()
        assert {task.method for task in state.state.tasks.values()} == {"fork"}
