"""Tasks that use too much memory: killed at --memory-limit or by the kernel, and reported with that cause."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from control_groups import MemoryGroup
from orch_command import Orch

EATER = """
import os, sys, time
if os.environ["ORCH_TASK"] == "worker:1":
    # The kernel may else choose orch, whose processes are in the same control group.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    kept = []
    for _ in range(40):  # bounded, in case it is killed late
        kept.append(bytearray(b"x" * (10 << 20)))
        time.sleep(0.02)
print("up", flush=True)
time.sleep(600)
"""


def test_task_over_its_limit_is_killed_and_named(orch: Orch) -> None:
    eater = orch.script("eater.py", EATER)
    done = orch("up", "-n", "3", "--memory-limit", "200MiB", "--", sys.executable, "-I", "-S", eater)
    result = orch.result()
    cause = result["cause"]
    assert (cause["task"], cause["kind"]) == ("worker:1", "limit")
    assert "over --memory-limit 200 MiB" in cause["text"]
    assert done.code == result["exit_code"] == 128 + signal.SIGKILL
    assert result["first_failure"]["signal"] == signal.SIGKILL
    assert "--memory-limit" in result["first_failure"]["advice"]
    (used, limit), *others = filter(None, (each["exit"]["over_limit"] for each in orch.events("task_exited")))
    assert used > limit == 200 << 20 and not others
    assert "over --memory-limit 200 MiB" in done.err


SHARING = """
import json, os, time
shared = b"x" * (60 << 20)
for _ in range(3):
    if os.fork() == 0:
        time.sleep(600)
def used():
    try:
        with open(os.environ["ORCH_RUN_DIR"] + "/sample.json") as file:
            return json.load(file)["tasks"]["worker:0"]["memory_bytes"]
    except (OSError, KeyError):
        return 0
while used() < 60 << 20:
    time.sleep(0.05)
print("looked at", flush=True)
if os.fork() == 0:
    own = b"y" * (150 << 20)
time.sleep(600)
"""


@pytest.mark.slow
def test_memory_of_children_counts_and_shared_memory_counts_once(orch: Orch) -> None:
    """Four processes share 60 MiB, which is below the limit. Then one child takes 150 MiB more."""
    sharing = orch.script("sharing.py", SHARING)
    done = orch("up", "--memory-limit", "120MiB", "--", sys.executable, "-I", "-S", sharing)
    assert "looked at" in done.out
    (exited,) = orch.events("task_exited")
    assert exited["exit"]["over_limit"][0] > 120 << 20
    assert done.code == 128 + signal.SIGKILL


def test_out_of_memory_kill_is_the_cause(orch: Orch, memory_group: MemoryGroup) -> None:
    eater = orch.script("eater.py", EATER)
    up = ("up", "-n", "2", "--", sys.executable, "-I", "-S", eater)
    done = orch.start(*up, before=memory_group.before).finish()
    result = orch.result()
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", "limit")
    assert "killed by the kernel: out of memory" in result["cause"]["text"]
    assert done.code == 128 + signal.SIGKILL
    assert "ran out of memory" in result["first_failure"]["advice"]


@pytest.mark.slow
def test_out_of_memory_kill_of_a_shells_child_is_the_cause(orch: Orch, memory_group: MemoryGroup) -> None:
    eater = orch.script("eater.py", EATER)
    script = f'"{sys.executable}" -I -S {eater}; exit $?'
    orch.start("up", "-n", "2", "--", "sh", "-c", script, before=memory_group.before).finish()
    result = orch.result()
    assert (result["first_failure"]["exit_code"], result["cause"]["kind"]) == (137, "limit")
    assert "killed by the kernel, out of memory" in result["cause"]["text"]


def test_kill_by_a_user_is_not_reported_as_out_of_memory(orch: Orch) -> None:
    assert orch("up", "-q", "-n", "2", "--wait", "ready", "--", "sleep", "600").code == 0
    os.kill(orch.pids()[1], signal.SIGKILL)
    assert orch("wait").code == 128 + signal.SIGKILL
    cause = orch.result()["cause"]
    assert (cause["task"], cause["kind"]) == ("worker:1", "exited")
    assert "the kernel counted no out-of-memory kill" in cause["text"]
