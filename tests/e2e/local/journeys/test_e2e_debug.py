"""`--debug`: a client of the debug adapter protocol attaches to tasks of a run, and time limits wait for it."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from dap_client import DapClient
from orch_command import Orch, Started
from waiting import until

_SCRIPT = """
import os
total = 6 * 7
print(os.environ["ORCH_TASK"], "has", total)
"""
# The line that prints.
_LAST = 4
_NOTICE = re.compile(r"orch: (\w+:\d) (?:waits|listens) for a debugger; in VS Code: (\{.*\})")


@pytest.fixture
def train(orch: Orch) -> Path:
    return orch.directory / orch.script("train.py", _SCRIPT)


def configurations(up: Started, count: int) -> dict[str, dict[str, Any]]:
    """Wait for as many attach configurations; by task."""

    def found() -> dict[str, dict[str, Any]] | None:
        assert not up.ended, up.out + up.err
        known = {task: json.loads(text) for task, text in _NOTICE.findall(up.err)}
        return known if len(known) == count else None

    return until(found)


def port_of(up: Started, task: str) -> int:
    port: int = configurations(up, 1)[task]["connect"]["port"]
    return port


def debuggers(orch: Orch) -> list[dict[str, Any] | None]:
    return [(task["progress"] or {}).get("debugger") for task in orch.status()["tasks"]]


@pytest.mark.parametrize(
    "start", [("--preload", "decimal"), pytest.param(("--start", "spawn"), marks=pytest.mark.slow)]
)
def test_a_run_that_was_paused_beyond_its_limits_goes_on_to_the_end(
    orch: Orch, train: Path, start: tuple[str, ...]
) -> None:
    # Longer than two busy cores need to start a task.
    limit_s = 6
    limit = ("--stall-timeout", str(limit_s))
    up = orch.start("up", "-n", "2", "--debug", "worker:1", *limit, *start, "--", str(train))
    with DapClient(port_of(up, "worker:1")) as client:
        client.attach(train, _LAST)
        thread = client.stopped()
        assert client.evaluate(thread, "total") == "42"
        until(lambda: "time limits are suspended" in up.err)
        status = orch.status()
        assert status["run"]["debugged"] == ["worker:1"]
        until(lambda: orch.status()["run"]["uptime_s"] > 2 * limit_s)
        assert status["tasks"][1]["progress"]["debugger"]["state"] == "attached"
        client.resume(thread)
        done = up.finish()
    assert done.code == 0, done.err
    assert "worker:1 | worker:1 has 42" in done.out
    methods = {event["method"] for event in orch.events("task_started")}
    assert methods == {"fork" if "--preload" in start else "spawn"}


def test_debug_all_gives_each_task_a_port(orch: Orch, train: Path) -> None:
    up = orch.start("up", "-n", "2", "--debug", "all", "--", str(train))
    found = configurations(up, 2)
    ports = {task: each["connect"]["port"] for task, each in found.items()}
    assert len(set(ports.values())) == 2
    for port in ports.values():
        with DapClient(port) as client:
            client.attach(train)
            client.event("terminated")
            client.disconnect()
    assert up.finish().code == 0


def test_a_task_that_does_not_wait_can_be_attached_to_later(orch: Orch) -> None:
    text = "import time\nn = 0\nwhile n < 10**9:\n    n += 1\n    time.sleep(0.01)\n"
    loop = orch.directory / orch.script("loop.py", text)
    up = orch.start("up", "-n", "1", "--debug", "worker:0", "--debug-no-wait", "--", str(loop))
    with DapClient(port_of(up, "worker:0")) as client:
        client.attach(loop, 4)
        thread = client.stopped()
        assert client.evaluate(thread, "n < 10**9") == "True"
        client.evaluate(thread, "globals().update(n=10**9)")
        client.resume(thread)
        assert up.finish().code == 0


def test_a_task_goes_on_when_its_debugger_goes_away(orch: Orch, train: Path) -> None:
    up = orch.start("up", "-n", "1", "--debug", "worker:0", "--", str(train))
    with DapClient(port_of(up, "worker:0")) as client:
        client.attach(train, _LAST)
        client.stopped()
    assert up.finish().code == 0 and "worker:0 has 42" in up.out


def test_a_stop_ends_a_task_that_waits_for_its_debugger(orch: Orch, train: Path) -> None:
    up = orch.start("up", "-n", "1", "--debug", "worker:0", "--grace", "60", "--", str(train))
    port_of(up, "worker:0")
    until(lambda: debuggers(orch)[0] is not None)
    status = orch("status")
    assert "worker:0: in a debugger, so time limits are suspended" in status.out
    assert "waiting for a debugger on port" in status.out
    up.signal(signal.SIGINT)
    assert up.finish().code == 130


def test_a_debugger_listens_on_the_loopback_only(orch: Orch, train: Path) -> None:
    up = orch.start("up", "-n", "1", "--debug", "worker:0", "--", str(train))
    port = port_of(up, "worker:0")
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # refused, had it bound all addresses
    orch("down")
    up.finish()


_REFUSED = {
    ("--debug", "worker:9", "--", "train.py"): "--debug: there is no worker:9 in this run",
    ("--debug", "frobnicator", "--", "train.py"): "--debug: 'frobnicator' is not a task",
    ("--debug", "all", "--", "true"): "--debug: worker:0 runs true, which is not a Python program",
    ("--debug", "0", "--", "python3", "-I", "train.py"): "which is not a Python program that orch can bring",
    ("--debug-no-wait", "--", "train.py"): "--debug-no-wait needs --debug",
    ("--debug", "0", "--network", "private", "--", "train.py"): "--debug: with --network private",
    ("--debug", "0", "--hosts", "a:2", "--", "train.py"): "cannot be reached with --hosts",
}


@pytest.mark.usefixtures("train")
def test_what_cannot_be_debugged_is_refused(orch: Orch) -> None:
    for words, done in orch.all_within(("up", "-n", "2", *words) for words in _REFUSED):
        assert (done.code, done.out) == (2, ""), words
        assert _REFUSED[words[3:]] in done.err and "Traceback" not in done.err, (words, done.err)
    assert orch.run_dirs() == []


def test_an_interpreter_without_debugpy_is_refused(orch: Orch, train: Path) -> None:
    done = orch("up", "--debug", "0", "--", "/usr/bin/python3", str(train))
    assert done.code == 2
    assert "has no module debugpy; /usr/bin/python3 -m pip install debugpy" in done.err
