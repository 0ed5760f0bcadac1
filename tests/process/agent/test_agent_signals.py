"""Signals on request: to a task's whole group, as the supervisor orders."""

from __future__ import annotations

import signal

from agent_driving import SLEEPER, Driver, python, state_letter
from waiting import until

from orchestrator.links.agent_link import Exited

# Its child is in the task's group, and says so in the log when it hears the signal. In short sleeps: one that comes
# right before a sleep begins is heard after it.
WITH_A_CHILD = """
import os, signal, time
def heard(*_):
    os.write(1, b"parent heard\\n" if os.getpid() == leader else b"child heard\\n")
leader = os.getpid()
signal.signal(signal.SIGUSR1, heard)
print("parent up" if os.fork() else "child up", flush=True)
while True:
    time.sleep(0.1)
"""


def test_signal_reaches_the_whole_group(agent: Driver) -> None:
    agent.start("a", python(WITH_A_CHILD))
    # A child that has only just been forked forgets signals.
    agent.wait_for_line("a", "child up")
    agent.wait_for_line("a", "parent up")
    agent.link.signal("a", signal.SIGUSR1)
    agent.wait_for_line("a", "parent heard")
    agent.wait_for_line("a", "child heard")
    agent.end()


def test_signal_reaches_only_the_named_task(agent: Driver) -> None:
    for name in "ab":
        # While it starts, a task can be in any state.
        agent.start(name, python(f"print('up', flush=True); {SLEEPER}"))
        agent.wait_for_line(name)
    pids = {name: agent.pid_of(name) for name in "ab"}
    agent.link.signal("a", signal.SIGSTOP)
    until(lambda: state_letter(pids["a"]) == "T")
    assert state_letter(pids["b"]) != "T"
    agent.link.signal("a", signal.SIGCONT)
    until(lambda: state_letter(pids["a"]) == "S")
    agent.link.signal("b", signal.SIGKILL)
    assert agent.wait_for(Exited, "b").signal == signal.SIGKILL
    assert state_letter(pids["a"]) == "S"
    agent.end()


def test_signal_to_unknown_task_is_ignored(agent: Driver) -> None:
    agent.start("a", python("pass"))
    agent.wait_for(Exited, "a")
    for name in ("a", "never-there"):
        agent.link.signal(name, signal.SIGKILL)
    agent.start("b", python("print('up')"))
    assert agent.wait_for(Exited, "b").exit_code == 0
    agent.end()
