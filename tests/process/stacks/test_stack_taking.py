"""A real agent asks real processes what they are doing, whatever state those are in, and whatever goes wrong."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from agent_driving import SLEEPER, Driver, python, signal_and_wait, state_letter
from lasting import LASTING
from late_answers import ask_until_timely
from waiting import until, until_gone

from orchestrator.core.diagnosis.stack_text import to_task_stack
from worker.agent.stack_sources import find_py_spy
from worker.wire.messages import Exited, Stacked, Started, Stop

HANGS = """
import sys, threading

def outer():
    print("up", flush=True)
    inner()

def inner():
    threading.Event().wait()

outer()
"""
# Waits in C code while holding the interpreter lock: Python runs no signal handler then.
HOLDS_THE_LOCK = HANGS.replace(
    "    threading.Event().wait()",
    """    import ctypes
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex) or libc.pthread_mutex_lock(mutex)""",
)
BLOCKS_THE_SIGNAL = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])\n" + HANGS
LATE = ("did not answer within", "py-spy took too long")
needs_py_spy = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")


def asked(agent: Driver, *tasks: str, native: bool = False) -> dict[str, Stacked]:
    """The answers to a question, one for each of these tasks."""
    agent.forget(Stacked)
    agent.ask_stacks(*tasks, native=native)
    return {task: agent.wait_for(Stacked, task) for task in tasks}


def answers_by(agent: Driver, native: bool = False, **how: str) -> dict[str, Stacked]:
    """Return the answers that came from these sources. Tasks that were too late on a busy machine are asked again."""

    def found() -> dict[str, Stacked] | None:
        answers = asked(agent, *how, native=native)
        return None if any(is_late(answer, how[task]) for task, answer in answers.items()) else answers

    return ask_until_timely(found)


def is_late(answer: Stacked, how: str) -> bool:
    return answer.how != how and any(words in (answer.note or "") for words in LATE)


def start_hanging(agent: Driver, name: str, text: str = HANGS, fork: bool = False) -> None:
    """Start a task, and wait until it sleeps and its bootstrap has opened its file for stacks."""
    (agent.directory / f"{name}.py").write_text(text)
    agent.run_task(name, [f"{name}.py"], fork)
    # It informs the agent right after that.
    until((agent.directory / f"{name}.stacks").exists)
    agent.wait_for_line(name)
    # After its first line it still runs for a moment.
    until(lambda: state_letter(agent.pid_of(name)) == "S")


# -- tasks that hang


MANY_THREADS = HANGS.removesuffix("outer()\n") + (
    "for _ in range(120): threading.Thread(target=inner, daemon=True).start()\nouter()\n"
)
# The states of a task that hangs. R: on a busy machine it may be about to sleep again.
RESTING = ("S", "R")
HANGING = {
    "hangs": HANGS,
    "holds the lock": HOLDS_THE_LOCK,
    "ignores the signal": "import signal; signal.signal(signal.SIGURG, signal.SIG_IGN)\n" + HANGS,
    "blocks the signal": BLOCKS_THE_SIGNAL,
    "has many threads": MANY_THREADS,
    "stopped": HANGS,
}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """An agent with a task of each kind of HANGING, one below a shell, one without Python, and one that has exited."""
    with Driver(tmp_path_factory.mktemp("busy")) as agent:
        LASTING.add(agent.pid)
        for name, text in HANGING.items():
            start_hanging(agent, name, text)
        agent.start("shell", ["sh", "-c", f"{shlex.quote(python('')[0])} hangs.py; exit 3"])
        agent.wait_for_line("shell")
        (below,) = psutil.Process(agent.pid_of("shell")).children()
        until(lambda: state_letter(below.pid) == "S")
        agent.start("sleep", ["sleep", "600"])
        agent.start("exited", python("pass"))
        agent.wait_for(Exited, "exited")
        signal_and_wait(agent.pid_of("stopped"), signal.SIGSTOP, "T")
        yield agent
        LASTING.discard(agent.pid)


def places(answer: Stacked) -> list[str]:
    """The functions of the frames, the innermost first."""
    return [frame.split()[-1] for frame in to_task_stack(answer).frames]


@pytest.mark.parametrize("task", ["hangs", "holds the lock"])
def test_task_dumps_its_own_stacks(busy: Driver, task: str) -> None:
    answer = answers_by(busy, **{task: "signal"})[task]
    assert (answer.how, answer.note) == ("signal", None)
    assert answer.state in RESTING
    assert places(answer)[-3:] == ["inner", "outer", "<module>"]
    file = busy.directory / f"{task}.stacks"
    assert file.read_bytes()[answer.offset : answer.offset + answer.length].decode() == answer.text
    assert (answer.file, file.stat().st_mode & 0o777) == (str(file), 0o600)
    assert "in inner" not in busy.text(task)


def test_each_request_gets_its_own_dump(busy: Driver) -> None:
    """Also a request that arrives while another one is being answered."""
    first = answers_by(busy, hangs="signal")["hangs"]
    busy.forget(Stacked)
    for _ in range(3):
        busy.ask_stacks("hangs")
    until(lambda: busy.receive() or len(busy.all_of(Stacked)) == 3)
    assert all(
        to_task_stack(message).frames == to_task_stack(first).frames for message in busy.all_of(Stacked)
    )
    assert all(message.offset > first.offset for message in busy.all_of(Stacked))


@needs_py_spy
def test_simultaneous_native_and_python_requests(busy: Driver) -> None:
    """Each answer says which request it answers."""

    def answered() -> dict[tuple[str, bool], Stacked] | None:
        busy.forget(Stacked)
        for native in (True, False):
            busy.ask_stacks("hangs", "never", native=native)
        until(lambda: busy.receive() or len(busy.all_of(Stacked)) == 4)
        found = {(each.task, each.native): each for each in busy.all_of(Stacked)}
        return None if is_late(found["hangs", False], "signal") else found

    answers = ask_until_timely(answered)
    assert {key: answer.how for key, answer in answers.items()} == {
        ("hangs", True): "py-spy",
        ("hangs", False): "signal",
        ("never", True): "none",
        ("never", False): "none",
    }
    frames = to_task_stack(answers["hangs", True]).frames
    assert any(".so" in frame.split()[0] for frame in frames), frames


@needs_py_spy
@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("ignores the signal", "it does not handle the signal that asks for stacks"),
        ("blocks the signal", "it did not answer within"),
        ("has many threads", "its dump ends after 100 threads"),
        ("shell", "without orch's bootstrap"),
    ],
)
def test_py_spy_reads_a_task_that_does_not_answer(busy: Driver, task: str, why: str) -> None:
    answer = answers_by(busy, **{task: "py-spy"})[task]
    assert (answer.how, answer.file) == ("py-spy", None), answer
    assert answer.note is not None and why in answer.note
    assert places(answer)[-2:] == ["outer", "<module>"]


@needs_py_spy
def test_py_spy_reads_a_stopped_task_which_stays_stopped(busy: Driver) -> None:
    answers = answers_by(busy, stopped="py-spy", hangs="signal")
    assert (answers["stopped"].how, answers["stopped"].state) == ("py-spy", "T")
    assert (answers["hangs"].how, answers["hangs"].state in RESTING) == ("signal", True)
    assert to_task_stack(answers["stopped"]).frames[-1].split() == ["stopped.py:11", "<module>"]
    assert psutil.Process(busy.pid_of("stopped")).status() == psutil.STATUS_STOPPED


@needs_py_spy
def test_native_frames_on_request(busy: Driver) -> None:
    answer = answers_by(busy, native=True, **{"holds the lock": "py-spy"})["holds the lock"]
    assert answer.how == "py-spy"
    frames = to_task_stack(answer).frames
    assert any(".so" in frame.split()[0] and "pthread_mutex_lock" in frame for frame in frames), frames
    assert any(frame.startswith("holds the lock.py:") and frame.endswith(" <module>") for frame in frames), (
        frames
    )


def test_tasks_without_stacks(busy: Driver) -> None:
    answers = asked(busy, "sleep", "exited", "never")
    assert {(answer.how, answer.text) for answer in answers.values()} == {("none", "")}
    notes = {task: answer.note or "" for task, answer in answers.items()}
    assert "not a Python program" in notes["sleep"] and "1 thread" in notes["sleep"]
    assert notes["exited"] == notes["never"] == "it has not started, or it has exited"


# -- questions that go wrong are answered, and harm neither the agent nor the other questions


def test_forked_task_dumps_its_own_stacks(agent: Driver) -> None:
    agent.preload("json")
    start_hanging(agent, "a", fork=True)
    assert agent.method_of("a") == "fork"
    answer = answers_by(agent, a="signal")["a"]
    assert answer.how == "signal"
    assert [frame.split()[-1] for frame in to_task_stack(answer).frames][-2:] == ["outer", "<module>"]


def test_stopped_task_without_py_spy_gets_advice_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy is neither next to the interpreter that runs the agent nor in PATH."""
    (tmp_path / "bin").mkdir()
    interpreter = tmp_path / "bin" / "python"
    interpreter.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr("sys.executable", str(interpreter))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with Driver(tmp_path) as agent:
        start_hanging(agent, "a")
        signal_and_wait(agent.pid_of("a"), signal.SIGSTOP, "T")
        answer = asked(agent, "a")["a"]
        assert (answer.how, answer.state) == ("none", "T")
        assert "is stopped" in (answer.note or "") and 'pip install "tf-orch[stacks]"' in (answer.note or "")


@pytest.mark.parametrize("is_torn_down", [False, True])
def test_request_is_answered_if_its_task_exits(agent: Driver, is_torn_down: bool) -> None:
    start_hanging(agent, "a", BLOCKS_THE_SIGNAL)
    agent.ask_stacks("a")
    agent.link.send(Stop(0.0)) if is_torn_down else os.kill(agent.pid_of("a"), signal.SIGKILL)
    assert agent.wait_for(Stacked, "a").how in ("none", "py-spy")
    assert agent.wait_for(Exited, "a")
    assert agent.end().swept == 0


@needs_py_spy
def test_teardown_does_not_wait_for_py_spy(agent: Driver) -> None:
    """The killed py-spy is not counted in `swept`."""
    start_hanging(agent, "a", HOLDS_THE_LOCK)
    agent.ask_stacks("a", native=True)
    # If a py-spy exits before it is seen, the next request starts another one.
    until(lambda: agent.ask_stacks("a", native=True) and _below(agent, "py-spy"))
    empty = agent.end()
    assert empty.swept == 0
    assert agent.wait_for(Stacked, "a").task == "a"
    assert not _below(agent, "py-spy")


def _below(agent: Driver, name: str) -> list[int]:
    """The processes of this name below the agent."""
    found = []
    for child in psutil.Process(agent.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid] if child.name() == name else []
    return found


def test_agent_serves_others_while_py_spy_runs(agent: Driver) -> None:
    start_hanging(agent, "a", BLOCKS_THE_SIGNAL)
    agent.ask_stacks("a")
    agent.start("b", python(SLEEPER))
    stacked, started = agent.wait_for(Stacked, "a"), agent.wait_for(Started, "b")
    assert agent.messages.index(started) < agent.messages.index(stacked)


def test_killed_helper_costs_its_answer_only(agent: Driver) -> None:
    """The helper has no copy of the agent's descriptors, so it keeps no port bound and no stream open."""
    agent.hold(2)
    start_hanging(agent, "a", BLOCKS_THE_SIGNAL)
    agent.ask_stacks("a")
    helper = until(lambda: _below(agent, "orch-stacks"))[0]
    until(lambda: len(_sockets(helper)) == 1 and not _sockets(helper) & _sockets(agent.pid))
    os.kill(helper, signal.SIGKILL)
    answer = agent.wait_for(Stacked, "a")
    assert (answer.how, answer.note) == ("none", "the process that reads stacks has crashed")
    assert "did not answer" in (asked(agent, "a")["a"].note or "")
    assert agent.end().swept == 0


def _sockets(pid: int) -> set[str]:
    names = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            names.add(str(each.readlink()))
    return {name for name in names if name.startswith("socket:")}


def test_killed_agent_leaves_no_helper(own_agent: Driver) -> None:
    start_hanging(own_agent, "a", BLOCKS_THE_SIGNAL)
    own_agent.ask_stacks("a")
    helper = until(lambda: _below(own_agent, "orch-stacks"))[0]
    os.kill(own_agent.pid, signal.SIGKILL)
    until_gone(helper)


def test_replaced_stacks_file_is_refused(agent: Driver) -> None:
    other = agent.directory / "other"
    other.write_text("mine")
    changes = {"link": lambda file: file.symlink_to(other), "pipe": os.mkfifo, "gone": lambda file: None}
    for name, change in changes.items():
        start_hanging(agent, name)
        file = agent.directory / f"{name}.stacks"
        file.unlink()
        change(file)
    answers = asked(agent, *changes)
    for name, answer in answers.items():
        assert answer.how != "signal" and f"{name}.stacks" in (answer.note or ""), answer
    assert other.read_text() == "mine"
