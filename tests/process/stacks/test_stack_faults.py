"""Questions that go wrong are answered, and harm neither the agent nor the other questions."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from agent_driving import SLEEPER, Driver, python, signal_and_wait
from stack_asking import BLOCKS_THE_SIGNAL, HOLDS_THE_LOCK, answers_by, asked, needs_py_spy, start_hanging
from waiting import until, until_gone

from orchestrator.core.diagnosis.stack_text import to_task_stack
from worker.wire.messages import Exited, Stacked, Started, Stop


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
