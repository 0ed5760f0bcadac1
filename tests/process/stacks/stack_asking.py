"""Tasks that hang, and questions to an agent for their stacks."""

from __future__ import annotations

import pytest
from agent_driving import Driver, state_letter
from late_answers import ask_until_timely
from waiting import until

from worker.agent.stack_sources import find_py_spy
from worker.wire.messages import Stacked

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
