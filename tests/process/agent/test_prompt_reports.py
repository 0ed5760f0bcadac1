"""An exit is reported before other work: before earlier orders and before a disk check."""

from __future__ import annotations

import os
import signal
import time

from agent_driving import DEAF, SLEEPER, Driver, python, state_letter
from waiting import until

from orchestrator.links.agent_link import Exited, Started
from worker.agent.resource_failures import DiskChecks


def test_exit_is_reported_before_earlier_orders_are_handled(agent: Driver) -> None:
    agent.start("a", python(SLEEPER))
    victim = agent.pid_of("a")
    os.kill(agent.pid, signal.SIGSTOP)
    until(lambda: state_letter(agent.pid) == "T")
    agent.start("b", python(SLEEPER))
    os.kill(victim, signal.SIGKILL)
    until(lambda: state_letter(victim) == "Z")
    os.kill(agent.pid, signal.SIGCONT)
    agent.wait_for(Started, "b")
    exited = agent.wait_for(Exited, "a")
    assert agent.messages.index(exited) < agent.messages.index(agent.wait_for(Started, "b"))
    agent.end()


def test_exit_is_reported_between_many_starts(agent: Driver) -> None:
    agent.start("a", python(SLEEPER))
    agent.pid_of("a")
    os.kill(agent.pid, signal.SIGSTOP)
    until(lambda: state_letter(agent.pid) == "T")
    agent.link.signal("a", signal.SIGKILL)
    names = [f"many-{number}" for number in range(20)]
    for name in names:
        agent.start(name, python(SLEEPER))
    os.kill(agent.pid, signal.SIGCONT)
    last = agent.wait_for(Started, names[-1])
    assert agent.messages.index(agent.wait_for(Exited, "a")) < agent.messages.index(last)
    agent.end()


def test_agent_sleeps_while_tasks_stop(agent: Driver) -> None:
    """They may be saving: what was due to be measured is not measured, and must not keep the agent awake."""
    agent.start("a", python(DEAF), memory_limit=1 << 40)
    agent.wait_for_line("a")
    agent.link.stop(600.0)
    due = time.monotonic() + 1.0
    until(lambda: time.monotonic() > due)
    until(lambda: all(state_letter(agent.pid) == "S" for _ in range(100)))
    agent.end()


def test_disk_check_is_delayed_and_shared_by_tasks() -> None:
    tried = []

    def no_room(places: tuple[str, ...]) -> str:
        tried.append(places)
        return "full"

    checks = DiskChecks(no_room)
    checks.request(100.0, "worker:0", ("/logs", "/checkpoints"))
    checks.request(100.0, "worker:1", ("/logs", "/checkpoints"))
    assert list(checks.run_due(100.0)) == [] and tried == []
    assert checks.due > 100.0
    assert list(checks.run_due(checks.due)) == [("worker:0", "full"), ("worker:1", "full")]
    assert tried == [("/logs", "/checkpoints")]
    assert checks.due == float("inf") and list(checks.run_due(float("inf"))) == []


def test_disk_with_room_is_not_reported() -> None:
    checks = DiskChecks(lambda places: None)
    checks.request(100.0, "worker:0", ("/logs",))
    assert list(checks.run_due(float("inf"))) == []
