"""Runs in the background: what `orch up` prints and returns, `orch down`, and stacks that a limit recorded."""

from __future__ import annotations

import signal

from orch_command import Orch
from waiting import lives, until

_SLEEPER = ("sh", "-c", "echo here; exec sleep 600")
_HANGS = """
import threading, os, time

def load_data():
    time.sleep(600)

if os.environ["ORCH_TASK"] == "worker:1":
    load_data()
threading.Event().wait()
"""


def test_detached_run_prints_its_id_and_continues_until_it_is_stopped(orch: Orch) -> None:
    done = orch("up", "-dq", "-n", "2", "--", *_SLEEPER)
    run = orch.run_dir().name
    assert (done.code, done.lines, done.err) == (0, [run], "")
    until(lambda: orch.status()["run"]["state"] == "running")
    pids = orch.pids()
    assert orch("down").err == f"orch: {run}: stopped worker:0, worker:1; no process is left\n"
    assert not any(lives(pid) for pid in pids)
    assert orch.status()["run"]["state"] == "stopped"
    again = orch("down")
    assert again.code == 0 and "was not running" in again.err


def test_waiting_for_a_run_returns_its_exit_code(orch: Orch) -> None:
    serves = orch.script("serves.py", "import sys\nsys.exit(5)\nimport tensorflow\n")
    ready = orch("up", "--wait", "ready", "--start", "spawn", "--", serves)
    assert ready.code == 5 and "orch: worker:0 failed: exit 5" in ready.err
    assert orch("up", "--wait", "done", "--", "true").code == 0
    failed = orch("up", "--wait", "done", "--json", "--", "sh", "-c", "exit 9")
    assert failed.code == 9 and failed.document["cause"]["text"] == "exit 9"


def test_interrupted_wait_leaves_the_run(orch: Orch) -> None:
    waiting = orch.start("up", "--wait", "done", "--", *_SLEEPER)
    waiting.until_out("\n")
    waiting.signal(signal.SIGINT)
    done = waiting.finish()
    assert done.code == 130 and "keeps running" in done.err
    until(lambda: orch.status()["run"]["state"] == "running")


def test_stacks_recorded_by_a_limit_are_shown(orch: Orch) -> None:
    """After the run, the stacks of all tasks and of one task are shown."""
    done = orch.run("-q", "-n", "2", "--stall-timeout", "6s", script=_HANGS)
    assert done.code == 124, done.err
    recorded = done.result["stacks"]
    assert set(recorded) == {"worker:0", "worker:1"}
    shown = orch("stacks")
    assert shown.code == 0
    assert "has ended; these are its tasks when its time limit was reached" in shown.err
    assert "worker:1: in load_data (train.py:5)" in shown.lines
    document = {"schema_version": 1, "run": done.run.name, "live": False, "silent": []}
    assert orch("stacks", "1", "--json").document == document | {"stacks": {"worker:1": recorded["worker:1"]}}
    assert "in load_data" in orch("stacks", "--full", "1").out

    # Only the run's own file is read, whatever path the result names.
    secret = orch.directory / "id_rsa"
    secret.write_text("hunter2" * 1000)
    path = done.run / "result.json"
    path.write_text(path.read_text().replace(recorded["worker:1"]["file"], str(secret)))
    whole = orch("stacks", "--full", "1").out
    assert "in load_data" in whole and "hunter2" not in whole
