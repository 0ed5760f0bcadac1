"""A real agent asks real processes what they are doing, whatever state those are in."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator

import psutil
import pytest
from agent_driving import Driver, python, signal_and_wait, state_letter
from lasting import LASTING
from late_answers import ask_until_timely
from stack_asking import (
    BLOCKS_THE_SIGNAL,
    HANGS,
    HOLDS_THE_LOCK,
    answers_by,
    asked,
    is_late,
    needs_py_spy,
    start_hanging,
)
from waiting import until

from orchestrator.core.diagnosis.stack_text import to_task_stack
from worker.wire.messages import Exited, Stacked

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
