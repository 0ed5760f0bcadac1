"""`--debug`: a client of the debug adapter protocol attaches to tasks of a run, and time limits wait for it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from dap_client import DapClient
from orch_command import Orch, Started
from waiting import PATIENCE_S, until

_SCRIPT = """
import os
total = 6 * 7
print(os.environ["ORCH_TASK"], "has", total)
"""
# The line that prints.
_LAST = 4
_NOTICE = re.compile(r"orch: (\w+:\d) (?:waits|listens) for a debugger; in VS Code: (\{.*\})")
# Longer than two busy cores need to start a task.
_LIMIT_S = 6
# TensorFlow gives a worker up that has sent no heartbeat for 20 s.
_PAUSE_S = 30.0
_TENSORFLOW_STARTS_S = 180.0
_STEPS = """
import os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    def one():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([8]))
    return strategy.run(one)

for number in range(40):
    step()
    if number == 20:
        print("half", flush=True)
print("end", flush=True)
"""
_HALF = 15


@pytest.fixture
def train(orch: Orch) -> Path:
    return orch.directory / orch.script("train.py", _SCRIPT)


def ports_of(up: Started, count: int, timeout_s: float = PATIENCE_S) -> dict[str, int]:
    """Wait for the attach configurations of `count` tasks; return their ports."""

    def found() -> dict[str, int] | None:
        assert not up.ended, up.out + up.err
        known = {task: json.loads(text)["connect"]["port"] for task, text in _NOTICE.findall(up.err)}
        return known if len(known) == count else None

    return until(found, timeout_s)


@pytest.mark.parametrize(
    "start", [("--preload", "decimal"), pytest.param(("--start", "spawn"), marks=pytest.mark.slow)]
)
def test_a_paused_run_continues_beyond_its_limits_when_its_debugger_goes_away(
    orch: Orch, train: Path, start: tuple[str, ...]
) -> None:
    limit = ("--stall-timeout", str(_LIMIT_S))
    up = orch.start("up", "-n", "2", "--debug", "worker:1", *limit, *start, "--", str(train))
    port = ports_of(up, 1)["worker:1"]
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # refused, had the debugger bound all addresses
    with DapClient(port) as client:
        client.attach(train, _LAST)
        assert client.evaluate(client.stopped(), "total") == "42"
        until(lambda: "time limits are suspended" in up.err)
        status = orch.status()
        assert status["run"]["debugged"] == ["worker:1"]
        assert status["tasks"][1]["progress"]["debugger"]["state"] == "attached"
        until(lambda: orch.status()["run"]["uptime_s"] > status["run"]["uptime_s"] + _LIMIT_S + 1)
    done = up.finish()
    assert done.code == 0, done.err
    assert "worker:1 | worker:1 has 42" in done.out
    assert orch.methods() == {"fork" if "--preload" in start else "spawn"}


def test_each_task_has_a_port_and_a_stop_ends_one_that_waits(orch: Orch, train: Path) -> None:
    up = orch.start("up", "-n", "2", "--debug", "all", "--grace", "60", "--", str(train))
    ports = ports_of(up, 2)
    assert ports["worker:0"] != ports["worker:1"]
    with DapClient(ports["worker:0"]) as client:
        client.attach(train)
        client.event("terminated")
    until(lambda: [task["state"] for task in orch.status()["tasks"]] == ["succeeded", "running"])
    until(lambda: (orch.status()["tasks"][1]["progress"] or {}).get("debugger"))
    status = orch("status")
    assert "worker:1: in a debugger, so time limits are suspended" in status.out
    assert "waiting for a debugger on port" in status.out
    up.signal(signal.SIGINT)
    assert up.finish().code == 130


def test_a_task_that_does_not_wait_can_be_attached_to_later(orch: Orch) -> None:
    text = "import time\nn = 0\nwhile n < 10**9:\n    n += 1\n    time.sleep(0.01)\n"
    loop = orch.directory / orch.script("loop.py", text)
    up = orch.start("up", "-n", "1", "--debug", "worker:0", "--debug-no-wait", "--", str(loop))
    with DapClient(ports_of(up, 1)["worker:0"]) as client:
        client.attach(loop, 4)
        thread = client.stopped()
        assert client.evaluate(thread, "n < 10**9") == "True"
        client.evaluate(thread, "globals().update(n=10**9)")
        client.resume(thread)
        assert up.finish().code == 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_forked_task_that_sends_no_heartbeats_to_tensorflow_continues(orch: Orch) -> None:
    """TensorFlow's own limits wait, too."""
    steps = orch.directory / orch.script("steps.py", _STEPS)
    up = orch.start("up", "-n", "2", "--debug", "worker:1", "--stall-timeout", "10", "--", str(steps))
    with DapClient(ports_of(up, 1, _TENSORFLOW_STARTS_S)["worker:1"]) as client:
        client.attach(steps, _HALF)
        thread = client.stopped()
        pid = int(client.evaluate(thread, "os.getpid()"))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(_PAUSE_S)
        os.kill(pid, signal.SIGCONT)
        client.resume(thread)
        done = up.finish(_TENSORFLOW_STARTS_S)
    assert done.code == 0, done.out + done.err
    assert all(f"worker:{index} | end" in done.out for index in (0, 1))
    assert orch.methods() == {"fork"}
