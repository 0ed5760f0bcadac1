"""Functions of this process that every task of a run calls: their values, their exceptions, and what cannot be sent."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from kept_session import kept_session
from making import cause, first_failure, run_result

import orchestrator
from orchestrator import OrchError, RunTimedOut, Session, TaskFailed, UsageError
from orchestrator.client import api, launch
from orchestrator.client.functions import blamed
from orchestrator.core.state.result import CauseKind
from orchestrator.links.client_link import ClientLink, Descriptor, Request

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")
RATE = 0.5
MIB = 1 << 20


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


def waits_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with kept_session(tmp_path_factory.mktemp("functions")) as session:
        yield session


def test_values_come_back_in_task_order(session: Session, tmp_path: Path) -> None:
    offset = 40

    def shifted() -> int:
        return offset + index()

    assert session.run(scaled, (3,), {"by": 2}, workers=3) == [(f"worker:{i}", 3.0) for i in range(3)]

    def serves() -> str:
        (tmp_path / own_task()).touch()
        while own_task() == "chief:0" and not (tmp_path / "ps:0").exists():
            time.sleep(0.01)
        if own_task() == "ps:0":
            time.sleep(600)
        return own_task()

    assert session.run(shifted, workers=2) == [40, 41]
    # The chief's end ends the run: the parameter server is stopped, and the worker if it has not returned yet.
    chief, worker, server = session.run(serves, workers=1, ps=1)
    assert (chief, server) == ("chief:0", None) and worker in ("worker:0", None)
    assert session.run(lambda: [None, index()], workers=2) == [[None, 0], [None, 1]]
    assert session.run(functools.partial(scaled, 1), workers=1, roles={"chief": {"count": 1}}) == [
        ("chief:0", 0.5),
        ("worker:0", 0.5),
    ]
    assert api.find().view.record.spec["command"]["words"] == ["scaled()"]
    assert session.run(lambda: b"x" * MIB) == [b"x" * MIB]
    # The classes of this process stay as they are.
    method, (value,) = Measured.index, session.run(lambda: Measured(own_task()))
    assert type(value) is Measured and value.index() == 0
    assert Measured.index is method and method.__globals__ is globals()


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


def raise_with_lock() -> None:
    error = ZeroDivisionError("with a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def raise_needing_two() -> None:
    raise NeedsTwo(1, 2)


SETTINGS = {"rate": 1, "locks": [threading.Lock()]}


def uses_settings() -> object:
    return SETTINGS["locks"]


LOCK = "SETTINGS['locks'][0] (used by uses_settings()) is a _thread.lock"
# The arguments of run(), and what its error says.
REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"function": uses_settings}, (LOCK,)),
    ({"function": lambda: uses_settings()}, (f"<lambda>() cannot be sent to the tasks: {LOCK}",)),
    (
        {"function": print, "args": (1, threading.Lock())},
        ("print() cannot be sent to the tasks: argument 2 is a _thread.lock",),
    ),
    ({"function": functools.partial(print, threading.Lock())}, ("print().args[0] is a _thread.lock",)),
    ({"function": threading.Thread().run}, ("self", " (used by Thread.run()) is a ")),
    ({"function": 3}, ("3 cannot be called",)),
    ({"function": print, "args": "abc"}, ("write args=('abc',)",)),
    ({"function": print, "hosts": "a:1"}, ("print() runs on this machine only",)),
    (
        {"function": print, "roles": {"ps": {"command": "sleep 9"}}, "workers": 1},
        ("ps has a command of its own",),
    ),
    ({"function": print, "no_such_option": 1}, ("no_such_option",)),
]


def test_what_cannot_be_called_is_refused_by_name() -> None:
    wrong = []
    for arguments, parts in REFUSED:
        with pytest.raises((UsageError, TypeError)) as caught:
            orchestrator.run(**arguments)
        wrong += [(arguments, str(caught.value)) for part in parts if part not in str(caught.value)]
    assert not wrong, wrong
    assert list(api.ls()) == []


def forks_and_leaves() -> str:
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


def kills_its_peer() -> None:
    pid = Path("pid")
    if index() == 1:
        Path("part").write_text(str(os.getpid()))
        Path("part").rename(pid)
        time.sleep(600)
    waits_for(pid)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    time.sleep(600)


def restarts() -> int:
    attempt = int(os.environ["ORCH_ATTEMPT"])
    if attempt == 1 and index() == 1:
        waits_for(Path("left"))
        sys.exit(42)  # asks for a restart
    if attempt == 2 and index() == 0:
        sys.exit()
    Path("left").touch()
    return attempt


def fails_in_one() -> int:
    if index() == 1:
        raise Overflown("only here")
    return 1


EARLY = "worker:0: exited before {name}() returned"
# The function, the options of its run, the error, its text, and the task that it names.
NO_VALUE: list[tuple[Callable[[], object], dict[str, Any], type[Exception], str, str | None]] = [
    (lambda: b"x" * (64 * MIB), {}, TaskFailed, "<lambda>() returned more than 64 MiB: write it", "worker:0"),
    (
        lambda: threading.Lock(),
        {},
        TaskFailed,
        "returned a value of type lock, which cannot be sent back (TypeError",
        "worker:0",
    ),
    (lambda: sys.exit(0), {}, TaskFailed, EARLY.format(name="<lambda>"), "worker:0"),
    (lambda: os._exit(0), {}, TaskFailed, EARLY.format(name="<lambda>"), "worker:0"),
    (lambda: sys.exit(3), {}, TaskFailed, "exit 3", "worker:0"),
    (lambda: time.sleep(600), {"timeout": "100ms", "grace": 0}, RunTimedOut, "", None),
    (forks_and_leaves, {}, TaskFailed, EARLY.format(name="forks_and_leaves"), "worker:0"),
    (kills_its_peer, {"workers": 2}, TaskFailed, "worker:1 failed: SIGKILL", "worker:1"),
    # The value of the first attempt is dropped.
    (
        restarts,
        {"workers": 2, "on_failure": "restart"},
        TaskFailed,
        EARLY.format(name="restarts"),
        "worker:0",
    ),
    (fails_in_one, {"workers": 2, "on_failure": "continue"}, Overflown, "only here", "worker:1"),
    # Exceptions that cannot be rebuilt here.
    (raise_needing_two, {}, TaskFailed, "NeedsTwo: 3", "worker:0"),
    (raise_with_lock, {}, TaskFailed, "ZeroDivisionError", "worker:0"),
]


def test_call_without_a_value_raises_an_error(session: Session) -> None:
    """A process that the function forks returns nothing. The session serves the next call."""
    wrong = []
    for function, options, kind, text, task in NO_VALUE:
        with pytest.raises((OrchError, Overflown)) as caught:
            session.run(function, **options)
        error = caught.value
        if not (type(error) is kind and text in str(error) and getattr(error, "task", None) == task):
            wrong.append((text, error))
    assert not wrong, wrong
    assert session.run(forks_and_fails) == ["child: 1"]


def test_exception_of_the_cause_is_preferred() -> None:
    for task, kind, tasks in (
        (1, CauseKind.EXITED, ("worker:1",)),
        (1, CauseKind.LEFT_EARLY, ("worker:1", "worker:0")),
        (None, CauseKind.LIMIT, ("worker:0",)),
    ):
        result = run_result("failed", cause=cause(task, kind=kind), first_failure=first_failure(0))
        assert blamed(result) == tasks


CELL = """
import inspect, os

class Failed(Exception):
    pass

def look():
    return inspect.getsource(look)

def fail():
    raise Failed("in a cell")
"""


def test_function_of_a_notebook(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a cell is in no file. AutoGraph reads it as `inspect` does."""
    cell = ModuleType("__main__")
    file = str(tmp_path / "ipykernel_1/2.py")
    monkeypatch.setitem(linecache.cache, file, (len(CELL), None, CELL.splitlines(keepends=True), file))
    monkeypatch.setitem(sys.modules, "__main__", cell)
    exec(compile(CELL, file, "exec"), vars(cell))
    assert session.run(cell.look) == [CELL.split("\n\n")[2] + "\n"]
    with pytest.raises(cell.Failed, match="in a cell") as caught:
        session.run(cell.fail)
    cause = caught.value.__cause__
    assert isinstance(cause, TaskFailed) and 'raise Failed("in a cell")' in cause.__notes__[0]


def test_function_of_a_module_that_a_task_cannot_import(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pytest's --import-mode=importlib loads test modules."""
    (tmp_path / "aside.py").write_text(
        "def own():\n    return __name__, helper()\n\ndef helper():\n    return 1\n"
    )
    spec = importlib.util.spec_from_file_location("tests.aside", tmp_path / "aside.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert session.run(module.own) == [("tests.aside", 1)]
    assert cloudpickle.list_registry_pickle_by_value() == set()
    cloudpickle.register_pickle_by_value(module)
    try:
        assert session.run(module.own) == [("tests.aside", 1)]
        assert cloudpickle.list_registry_pickle_by_value() == {"tests.aside"}
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_next_run_has_nothing_of_a_call(session: Session) -> None:
    session.run(int)
    with session.up(command=["sh", "-c", "echo [$ORCH_DESCRIPTORS]; readlink /proc/$$/fd/*; true"]) as run:
        run.wait()
    none, *opened = run.log("worker:0").read_text().splitlines()
    assert none == "[]" and not [link for link in opened if "memfd" in link]


@pytest.mark.parametrize("passed", [0, 2])
def test_request_with_another_number_of_descriptors_is_not_served(passed: int, tmp_path: Path) -> None:
    spec = launch.load_request(1, ["true"], tmp_path, {}).spec
    request = Request(spec=spec, environ={}, descriptors=(Descriptor(name="all"),))
    ours, its = socket.socketpair()
    with ours, its:
        socket.send_fds(ours, [request.model_dump_json().encode() + b"\n"], [0, 0][:passed])
        link = ClientLink(its)
        assert link.read_request() is None
        link.close()
