"""A forked task has its own exit, variables and identity, not those of the preloader."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from agent_driving import Driver
from waiting import until, until_gone

HELD_UP = """
import os, pathlib, time
forks = 0
def hold_up():
    global forks
    forks += 1
    if forks == 2:  # the task; the first was the process between
        pathlib.Path("forked").write_text(str(os.getpid()))
        while not pathlib.Path("go").exists():
            time.sleep(0.005)
os.register_at_fork(after_in_child=hold_up)
"""
LEFT_OPEN = """
import os
class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        os.write(1, b"freed\\n")
def write(text):
    log.write(text)
log = open("log.csv", "w")
write("step,loss")
cycle = Cycle()
import json
"""
IDENTITY = """
import hashlib, logging, multiprocessing, os, threading, time
print(hashlib.sha256(bytes(multiprocessing.current_process().authkey)).hexdigest())
assert threading.main_thread().native_id == os.getpid()
# Both in seconds until now; the process's is taken later, and so only longer when this one is held up in between.
started = time.time() - logging._startTime / (1e9 if isinstance(logging._startTime, int) else 1)
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
began = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
assert started < began + 1, (started, began)
"""


def library(directory: Path, **modules: str) -> dict[str, str]:
    """Create a directory of modules. Return the variable that makes them importable."""
    place = directory / "library"
    place.mkdir()
    for name, text in modules.items():
        (place / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(place)}


def test_task_whose_agent_is_killed_during_the_fork_never_starts(own_agent: Driver, tmp_path: Path) -> None:
    own_agent.preload("held_up", env=library(tmp_path, held_up=HELD_UP))
    own_agent.run_task("a", ["-c", "open('began', 'w')"], fork=True)
    forked = int(until(lambda: (tmp_path / "forked").exists() and (tmp_path / "forked").read_text()))
    os.kill(own_agent.pid, signal.SIGKILL)
    until_gone(own_agent.pid)
    (tmp_path / "go").write_text("")
    try:
        until_gone(forked)
    except AssertionError:
        os.kill(forked, signal.SIGKILL)  # its parent is gone
        raise
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize("fork", [True, False])
def test_what_a_script_leaves_open_is_written(fork: bool, agent: Driver, tmp_path: Path) -> None:
    agent.preload()
    agent.run_task("a", ["-c", LEFT_OPEN], fork)
    assert agent.ending("a").text == "freed\n"
    assert agent.method_of("a") == ("fork" if fork else "spawn")
    assert (tmp_path / "log.csv").read_text() == "step,loss"


def test_forked_siblings_have_different_secrets_and_identities(agent: Driver) -> None:
    agent.preload("multiprocessing", "logging")
    for name in "ab":
        agent.run_task(name, ["-c", IDENTITY], fork=True)
    endings = [agent.ending(name) for name in "ab"]
    assert [agent.method_of(name) for name in "ab"] == ["fork", "fork"], agent.refusals()
    assert [ending.exit_code for ending in endings] == [0, 0], endings
    assert endings[0].text != endings[1].text


def test_what_a_preloaded_module_has_printed_is_not_printed_by_tasks(agent: Driver, tmp_path: Path) -> None:
    env = library(tmp_path, talks="print('talking', end='')") | {"PYTHONUNBUFFERED": ""}
    agent.preload("talks", env=env)
    agent.run_task("a", ["-c", "print('first'); import talks"], fork=True)
    assert agent.ending("a").text == "first\n"
    assert agent.method_of("a") == "fork"
    assert (tmp_path / "preloader.log").read_text() == "talking"
