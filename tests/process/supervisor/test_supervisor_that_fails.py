"""After an error in the supervisor itself, the run ends, and its result has what is known. A signal ends it before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from orchestrator.client.launch import create_run
from orchestrator.host.isolation import isolated
from orchestrator.links.supervisor_link import SupervisorLink, SupervisorProcess
from orchestrator.request.settings import settings

pytestmark = pytest.mark.timeout(300)

# A supervisor that cannot plan a second attempt nor, with `no result`, make a result.
FAULTY = """
import os, sys
from orchestrator.supervisor import __main__ as supervisor_process, agent_orders, serve

take_held = agent_orders.Attempts.take_held

def fails_at_second_attempt(attempts, host, held):
    if held.number > 1:
        raise RuntimeError("a fault of its own")
    return take_held(attempts, host, held)

def fails(*_):
    raise RuntimeError("another one")

agent_orders.Attempts.take_held = fails_at_second_attempt
if sys.argv[2] == "no result":
    serve.run_result = fails
os._exit(supervisor_process.main())
"""
PREEMPTED = "import os, sys, time; sys.exit(42) if os.environ['ORCH_TASK'] == 'worker:0' else time.sleep(600)"


def start(*argv: str) -> tuple[SupervisorLink, subprocess.Popen[bytes]]:
    started: list[subprocess.Popen[bytes]] = []

    def start_process(door: int) -> subprocess.Popen[bytes]:
        words = [str(door) if word == "{}" else word for word in argv]
        started.append(
            subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=(door,), start_new_session=True)
        )
        return started[0]

    process = SupervisorProcess(start_process)
    return SupervisorLink(process.connect(), process), started[0]


@pytest.mark.parametrize("fault", ["only that", "no result"])
def test_result_after_a_supervisor_error_has_attempts_and_tasks(fault: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PREEMPTED]
    up = settings.load({"workers": 2, "command": command, "max_restarts": 3}, {}, tmp_path)
    supervisor, _ = start(sys.executable, "-c", FAULTY.replace("sys.argv[2]", repr(fault)), "{}")
    with supervisor:
        run = create_run(supervisor, up)
        assert supervisor.wait(60)
    result = json.loads((run.dir / "result.json").read_text())
    assert (result["outcome"], result["exit_code"], result["cause"]["kind"]) == ("failed", 125, "orch")
    assert "RuntimeError: a fault of its own" in result["cause"]["text"]
    assert (result["attempts"], [end["exit_code"] for end in result["history"]]) == (1, [42])
    states = [(task["task"], task["state"]) for task in result["tasks"]]
    assert states == ([] if fault == "no result" else [("worker:0", "failed"), ("worker:1", "stopped")])


def test_signal_ends_a_supervisor_that_waits_for_its_request() -> None:
    supervisor, process = start(*isolated("orchestrator.supervisor", "{}"))

    def catches(number: signal.Signals) -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return bool(int(status.partition("SigCgt:")[2].split()[0], 16) & 1 << (number - 1))

    with supervisor:
        until(lambda: catches(signal.SIGTERM))
        time.sleep(0.2)  # it reads from the connection
        process.terminate()
        assert supervisor.wait(60)
