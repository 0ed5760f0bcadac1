"""A real agent asks real processes what they are doing, whatever state those are in."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from agent_driving import SLEEPER, Driver, python, signal_and_wait, state_letter
from forking import Forking
from late_answers import ask_until_timely
from waiting import until

from orchestrator.core.diagnosis.stack_text import to_task_stack
from orchestrator.links.agent_link import Exited, Stacked, Started
from worker.agent.stack_sources import find_py_spy

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
IGNORES_THE_SIGNAL = "import signal; signal.signal(signal.SIGURG, signal.SIG_IGN)\n" + HANGS
BLOCKS_THE_SIGNAL = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])\n" + HANGS
MANY_THREADS = HANGS.removesuffix("outer()\n") + (
    "for _ in range(120): threading.Thread(target=inner, daemon=True).start()\nouter()\n"
)
LATE = ("did not answer within", "py-spy took too long")
needs_py_spy = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")


def script(agent: Driver, name: str, text: str) -> str:
    (agent.directory / name).write_text(text)
    return name


def asked(agent: Driver, *tasks: str, native: bool = False) -> dict[str, Stacked]:
    """The answers to a question, one for each of these tasks."""
    agent.messages = [message for message in agent.messages if not isinstance(message, Stacked)]
    agent.link.stacks(tasks, native)
    return {task: agent.wait_for(Stacked, task) for task in tasks}


def answers_by(agent: Driver, native: bool = False, **how: str) -> dict[str, Stacked]:
    """Return the answers that came from these sources. Tasks that were too late on a busy machine are asked again."""

    def found() -> dict[str, Stacked] | None:
        answers = asked(agent, *how, native=native)
        return None if any(is_late(answer, how[task]) for task, answer in answers.items()) else answers

    return ask_until_timely(found)


def is_late(answer: Stacked, how: str) -> bool:
    return answer.how != how and any(words in (answer.note or "") for words in LATE)


def until_listening(agent: Driver, name: str) -> None:
    """Wait until the task's bootstrap has opened the file. It informs the agent right after that."""
    until((agent.directory / f"{name}.stacks").exists)
    agent.wait_for_line(name)


def until_asleep(agent: Driver, name: str) -> None:
    """Wait until the task sleeps: after its first line it still runs for a moment."""
    until(lambda: state_letter(agent.pid_of(name)) == "S")


def start_hanging(agent: Forking, name: str, text: str = HANGS, fork: bool = False) -> None:
    agent.run_task(name, [script(agent, f"{name}.py", text)], fork)
    until_listening(agent, name)
    until_asleep(agent, name)


@pytest.mark.parametrize("text", [HANGS, HOLDS_THE_LOCK], ids=["python", "interpreter lock held"])
def test_task_dumps_its_own_stacks(agent: Forking, text: str) -> None:
    start_hanging(agent, "a", text)
    answer = answers_by(agent, a="signal")["a"]
    assert (answer.how, answer.note) == ("signal", None)
    assert answer.state in ("S", "R")  # R: it may be about to sleep again
    places = [frame.split()[-1] for frame in to_task_stack(answer).frames]
    assert places[-3:] == ["inner", "outer", "<module>"]
    whole = (agent.directory / "a.stacks").read_bytes()
    assert whole[answer.offset : answer.offset + answer.length].decode() == answer.text
    assert answer.file == str(agent.directory / "a.stacks")
    agent.end()


def test_each_request_gets_its_own_dump(agent: Forking) -> None:
    """Also a request that arrives while another one is being answered."""
    start_hanging(agent, "a")
    first = answers_by(agent, a="signal")["a"]
    for _ in range(3):
        agent.link.stacks(("a",), False)
    until(lambda: agent.receive() or sum(isinstance(message, Stacked) for message in agent.messages) == 4)
    later = [message for message in agent.messages if isinstance(message, Stacked)][1:]
    assert all(to_task_stack(message).frames == to_task_stack(first).frames for message in later)
    assert all(message.offset > first.offset for message in later)
    agent.end()


@needs_py_spy
def test_simultaneous_native_and_python_requests(agent: Forking) -> None:
    """Each answer says which request it answers."""
    start_hanging(agent, "a")

    def answered() -> dict[tuple[str, bool], Stacked] | None:
        agent.messages = [message for message in agent.messages if not isinstance(message, Stacked)]
        agent.link.stacks(("a", "never"), True)
        agent.link.stacks(("a", "never"), False)
        until(lambda: agent.receive() or sum(isinstance(message, Stacked) for message in agent.messages) == 4)
        found = {(each.task, each.native): each for each in agent.messages if isinstance(each, Stacked)}
        return None if is_late(found["a", False], "signal") else found

    answers = ask_until_timely(answered)
    assert {key: answer.how for key, answer in answers.items()} == {
        ("a", True): "py-spy",
        ("a", False): "signal",
        ("never", True): "none",
        ("never", False): "none",
    }
    frames = to_task_stack(answers["a", True]).frames
    assert any(".so" in frame.split()[0] for frame in frames), frames
    agent.end()


def test_forked_task_dumps_its_own_stacks(agent: Forking) -> None:
    agent.preload("json")
    start_hanging(agent, "a", fork=True)
    assert agent.method_of("a") == "fork"
    answer = answers_by(agent, a="signal")["a"]
    assert answer.how == "signal"
    assert [frame.split()[-1] for frame in to_task_stack(answer).frames][-2:] == ["outer", "<module>"]
    agent.end()


@needs_py_spy
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (IGNORES_THE_SIGNAL, "it does not handle the signal that asks for stacks"),
        (BLOCKS_THE_SIGNAL, "it did not answer within"),
        (MANY_THREADS, "its dump ends after 100 threads"),
    ],
    ids=["taken", "blocked", "threads"],
)
def test_py_spy_reads_a_task_that_does_not_answer(agent: Forking, text: str, why: str) -> None:
    start_hanging(agent, "a", text)
    answer = answers_by(agent, a="py-spy")["a"]
    assert (answer.how, answer.file) == ("py-spy", None), answer
    assert answer.note is not None and why in answer.note
    assert [frame.split()[-1] for frame in to_task_stack(answer).frames][-2:] == ["outer", "<module>"]
    agent.end()


@needs_py_spy
def test_py_spy_reads_a_stopped_task_which_stays_stopped(agent: Forking) -> None:
    start_hanging(agent, "a")
    start_hanging(agent, "b")
    signal_and_wait(agent.pid_of("a"), signal.SIGSTOP, "T")
    answers = answers_by(agent, a="py-spy", b="signal")
    assert [(answer.how, answer.state) for answer in answers.values()] == [("py-spy", "T"), ("signal", "S")]
    assert to_task_stack(answers["a"]).frames[-1].split() == ["a.py:11", "<module>"]
    assert psutil.Process(agent.pid_of("a")).status() == psutil.STATUS_STOPPED
    agent.end()


@needs_py_spy
def test_native_frames_on_request(agent: Forking) -> None:
    start_hanging(agent, "a", HOLDS_THE_LOCK)
    answer = answers_by(agent, a="py-spy", native=True)["a"]
    assert answer.how == "py-spy"
    frames = to_task_stack(answer).frames
    assert any(".so" in frame.split()[0] and "pthread_mutex_lock" in frame for frame in frames), frames
    assert any(frame.startswith("a.py:") and frame.endswith(" <module>") for frame in frames), frames
    agent.end()


@needs_py_spy
def test_python_process_below_a_shell_is_read(agent: Forking) -> None:
    name = script(agent, "below.py", HANGS)
    agent.start("a", ["sh", "-c", f"{python('')[0]} {name}; exit 3"])
    agent.wait_for_line("a")
    (below,) = psutil.Process(agent.pid_of("a")).children()
    until(lambda: state_letter(below.pid) == "S")
    answer = answers_by(agent, a="py-spy")["a"]
    assert answer.how == "py-spy" and "without orch's bootstrap" in (answer.note or "")
    assert to_task_stack(answer).frames[-1].endswith("<module>")
    agent.end()


def test_task_without_python_has_no_stacks(agent: Forking) -> None:
    agent.start("a", ["sleep", "600"])
    agent.pid_of("a")
    answer = asked(agent, "a")["a"]
    assert (answer.how, answer.text) == ("none", "")
    assert answer.note is not None and "not a Python program" in answer.note and "1 thread" in answer.note
    agent.end()


def test_stopped_task_without_py_spy_gets_advice_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy is neither next to the interpreter that runs the agent nor in PATH."""
    (tmp_path / "bin").mkdir()
    interpreter = tmp_path / "bin" / "python"
    interpreter.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr("sys.executable", str(interpreter))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with Forking(tmp_path) as agent:
        start_hanging(agent, "a")
        os.kill(agent.pid_of("a"), signal.SIGSTOP)
        until(lambda: state_letter(agent.pid_of("a")) == "T")
        answer = asked(agent, "a")["a"]
        assert (answer.how, answer.state) == ("none", "T")
        assert "is stopped" in (answer.note or "") and 'pip install "tf-orch[stacks]"' in (answer.note or "")
        agent.end()


def test_request_for_missing_tasks(agent: Forking) -> None:
    agent.start("a", python("pass"))
    agent.wait_for(Exited, "a")
    answers = asked(agent, "a", "never")
    assert {answer.how for answer in answers.values()} == {"none"}
    assert {answer.note for answer in answers.values()} == {"it has not started, or it has exited"}
    agent.end()


@pytest.mark.parametrize(
    "end",
    [
        lambda agent: os.kill(agent.pid_of("a"), signal.SIGKILL),
        lambda agent: agent.link.stop(0.0),
    ],
    ids=["killed", "torn down"],
)
def test_request_is_answered_if_its_task_exits(agent: Forking, end: Callable[[Forking], object]) -> None:
    start_hanging(agent, "a", BLOCKS_THE_SIGNAL)
    agent.link.stacks(("a",), False)
    end(agent)
    assert agent.wait_for(Stacked, "a").how in ("none", "py-spy")
    assert agent.wait_for(Exited, "a")
    assert agent.end().swept == 0


@needs_py_spy
def test_teardown_does_not_wait_for_py_spy(agent: Forking) -> None:
    """The killed py-spy is not counted in `swept`."""
    start_hanging(agent, "a", HOLDS_THE_LOCK)
    agent.link.stacks(("a",), True)
    # If a py-spy exits before it is seen, the next request starts another one.
    until(lambda: agent.link.stacks(("a",), True) and _spies(agent.pid))
    empty = agent.end()
    assert empty.swept == 0
    assert agent.wait_for(Stacked, "a").task == "a"
    assert not _spies(agent.pid)


def _spies(agent_pid: int) -> list[int]:
    found = []
    for child in psutil.Process(agent_pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid] if child.name() == "py-spy" else []
    return found


def test_agent_serves_others_while_py_spy_runs(agent: Forking) -> None:
    start_hanging(agent, "a", BLOCKS_THE_SIGNAL)
    agent.link.stacks(("a",), False)
    agent.start("b", python(SLEEPER))
    stacked, started = agent.wait_for(Stacked, "a"), agent.wait_for(Started, "b")
    assert agent.messages.index(started) < agent.messages.index(stacked)
    agent.end()


@pytest.mark.parametrize("change", ["link", "pipe", "gone"])
def test_replaced_stacks_file_is_refused(agent: Forking, change: str) -> None:
    start_hanging(agent, "a")
    file = agent.directory / "a.stacks"
    file.unlink()
    other = agent.directory / "other"
    other.write_text("mine")
    if change == "link":
        file.symlink_to(other)
    elif change == "pipe":
        os.mkfifo(file)
    answer = asked(agent, "a")["a"]
    assert answer.how != "signal" and str(file) in (answer.note or "")
    assert other.read_text() == "mine"
    agent.end()
