"""`orch kill`: the signal reaches the process group of the task and is reported; invalid calls are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orch_command import Orch
from waiting import until

# The script and its child both print the signals that they receive.
LISTENER = """
import os, signal, sys, time
leader = os.getpid()
def report(number, frame):
    who = "leader" if os.getpid() == leader else "child"
    os.write(1, f"{who} received {signal.Signals(number).name}\\n".encode())
for number in (signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, report)
os.fork()
print("up", flush=True)
while True:
    time.sleep(0.05)  # not pause(), which would miss a signal that arrives just before it
"""


def state_letter(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_kill_is_reported_as_cause(orch: Orch) -> None:
    assert orch("up", "-d", "--wait", "ready", "-n", "2", "--", "sleep", "600").code == 0
    pid = orch.pids()[1]
    done = orch("kill", "worker:1")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"orch: sent SIGKILL to worker:1 (pid {pid} and its process group)\n"
    result = orch.result()
    assert result["exit_code"] == 137
    assert result["cause"] == {
        "task": "worker:1",
        "kind": "exited",
        "text": "SIGKILL, sent by `orch kill`",
        "tasks": [],
        "host": None,
    }
    (sent,) = orch.events("signal_requested")
    assert (sent["task"], sent["signal"], sent["by"]) == ("worker:1", 9, "user")


def test_signal_reaches_whole_process_group(orch: Orch) -> None:
    script = orch.script("listener.py", LISTENER)
    orch("up", "-d", "--name", "one", "--wait", "ready", "-n", "2", "--", script)
    log = orch.run_dir() / "logs" / "worker-1.log"
    until(lambda: log.read_text().count("up") == 2)
    for index, words in enumerate(
        (["1", "-s", "usr1"], ["worker:1", "--signal", "SIGUSR1"], ["one", "1", "-s", "10"]), start=1
    ):
        assert orch("kill", *words).code == 0
        until(lambda: log.read_text().count("leader received SIGUSR1") == index)  # noqa: B023
        until(lambda: log.read_text().count("child received SIGUSR1") == index)  # noqa: B023
    document = orch("kill", "--json", "worker:1", "-s", "HUP").document
    assert document == {
        "schema_version": 1,
        "run": orch.run_dir().name,
        "task": "worker:1",
        "signal": 1,
        "pid": orch.pids()[1],
    }
    assert "received" not in (log.parent / "worker-0.log").read_text()
    quiet = orch("kill", "-q", "chief", "-s", "HUP")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    until(lambda: "leader received SIGHUP" in (log.parent / "worker-0.log").read_text())


def test_task_is_stopped_and_resumed(orch: Orch) -> None:
    orch("up", "-d", "--wait", "ready", "-n", "2", "--", "sleep", "600")
    stopped, other = orch.pids()
    orch("kill", "0", "-s", "STOP")
    until(lambda: state_letter(stopped) == "T")
    assert state_letter(other) != "T"
    orch("kill", "0", "-s", "CONT")
    until(lambda: state_letter(stopped) != "T")
    assert {task["state"] for task in orch.status()["tasks"]} == {"running"}


def test_invalid_kill_is_refused(orch: Orch) -> None:
    assert orch("kill", "worker:0").code == 3
    script = orch.script(
        "one.py", "import os, time\nif os.environ['ORCH_TASK'] == 'worker:0': time.sleep(600)\n"
    )
    orch("up", "-d", "-n", "2", "--name", "one", "--", script)
    until(lambda: [task["state"] for task in orch.status()["tasks"]] == ["running", "succeeded"])
    refused = {
        ("kill",): (2, "[RUN] TASK"),
        ("kill", "worker:1"): (2, "worker:1 has ended (exit 0)"),
        ("kill", "worker:2"): (2, "has no task worker:2; it has worker:0, worker:1"),
        ("kill", "0", "-s", "BLA"): (2, '--signal: "BLA" is not a signal'),
        ("kill", "one", "0", "1"): (2, "one task at a time"),
        ("kill", "two", "0"): (3, "no run 'two'"),
    }
    for words, done in orch.all_within(refused):
        code, sentence = refused[words]
        assert done.code == code, words
        assert sentence in done.err, (words, done.err)
    assert orch.status()["tasks"][0]["state"] == "running"
    assert not orch.events("signal_requested")
    orch("down")
    ended = orch("kill", "0")
    assert ended.code == 3 and "has ended" in ended.err


@pytest.mark.parametrize(
    ("words", "offered"), [("orch kill -s US", {"USR1", "USR2"}), ("orch kill -s SIGK", {"SIGKILL"})]
)
def test_completion_of_signals(orch: Orch, words: str, offered: set[str]) -> None:
    env: dict[str, str | None] = {
        "_ORCH_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    assert set(orch(env=env).out.split()) == offered


def test_completion_of_live_tasks(orch: Orch) -> None:
    orch("up", "-d", "--wait", "ready", "-n", "2", "--name", "one", "--", "sleep", "600")
    env: dict[str, str | None] = {
        "_ORCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "orch kill ",
        "COMP_CWORD": "2",
    }
    assert {"one", "worker:0", "worker:1"} <= set(orch(env=env).out.split())
    assert json.loads((orch.run_dir() / "run.json").read_text())["name"] == "one"
