"""The diagnosis of a restarted task uses only the output and exit of its current process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from orch_command import Orch

pytestmark = pytest.mark.timeout(300)

# Fails with an exception at first, and after its restart without one.
FAILS_SILENTLY = """
import os, time

os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "training", "epoch": 1, "steps": 9, "step": 1}\\n')
if os.environ["ORCH_TASK"] == "worker:1":
    if os.environ["ORCH_ATTEMPT"] == "1" and os.environ.get("ORCH_RESTARTS", "0") == "0":
        raise ValueError("of the first start")
    print("once more", flush=True)
    os._exit(7)
time.sleep(600)
"""
# In the first attempt worker:0 prints that it lost a peer. In the second its peer exits with 0, and it fails by itself.
LOST_A_PEER = """
import os, pathlib, sys, time

first, rank = os.environ["ORCH_ATTEMPT"] == "1", os.environ["ORCH_TASK"][-1]
events = pathlib.Path(os.environ["ORCH_RUN_DIR"], "events.jsonl")
if first and rank == "0":
    sys.exit(print("UNAVAILABLE: Socket closed", flush=True) or 42)
if first:
    time.sleep(600)
if rank == "1":
    sys.exit(0)
while sum('"task_exited"' in line and '"exit_code":0' in line for line in events.open()) == 0:
    time.sleep(0.01)
print("a wrong setting", flush=True)
os._exit(5)
"""
# Truncates its own log.
TRUNCATES_ITS_LOG = """
import os, sys

if os.environ["ORCH_ATTEMPT"] == "1":
    sys.exit(print("x" * 20000, flush=True) or 42)
os.ftruncate(1, 0)
raise ValueError("a wrong setting")
"""
# Removes its own file once both tasks have started.
REMOVES_ITSELF = """#!/bin/sh
if [ "$ORCH_TASK" = worker:1 ]; then touch there; exec sleep 600; fi
until [ -e there ]; do sleep 0.01; done
rm "$0"; exit 42
"""
# Makes a directory with the path of its next exception file.
BLOCKS_ITS_FILE = """
import os, pathlib, time

os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "training", "epoch": 1, "steps": 9, "step": 1}\\n')
if os.environ["ORCH_TASK"] == "worker:1":
    pathlib.Path(os.environ["ORCH_RUN_DIR"], "exceptions", "worker-1.json").mkdir(parents=True)
    os._exit(3)
time.sleep(600)
"""


@pytest.mark.parametrize("policy", ["restart", "restart-task"])
def test_restarted_task_is_diagnosed_by_its_own_output(orch: Orch, policy: str) -> None:
    script = orch.script("falls.py", FAILS_SILENTLY)
    options = ("-q", "-n", "2", "--on-failure", policy, "--max-restarts", "1")
    done = orch("up", *options, "--", sys.executable, script)
    assert done.code == 7, done.err
    failure = orch.result()["first_failure"]
    assert (failure["task"], failure["exit_code"], failure["exception"]) == ("worker:1", 7, None)
    assert failure["exception_file"] is None
    assert "of the first start" not in done.err
    assert failure["lines"] == ["once more"]


def test_later_failure_is_not_blamed_on_an_earlier_lost_peer(orch: Orch) -> None:
    script = orch.script("lost.py", LOST_A_PEER)
    done = orch("up", "-q", "-n", "2", "--max-restarts", "1", "--", sys.executable, script)
    assert done.code == 5, done.err
    result = orch.result()
    assert [end["exit_code"] for end in result["history"]] == [42]
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:0", "exited")
    assert result["first_failure"]["lines"] == ["a wrong setting"]


def test_truncated_log_belongs_to_the_current_process(orch: Orch) -> None:
    script = orch.script("cuts.py", TRUNCATES_ITS_LOG)
    # -I keeps the bootstrap out, so that only the log can be read.
    done = orch("up", "-q", "-n", "1", "--max-restarts", "1", "--", sys.executable, "-I", script)
    assert done.code == 1, done.err
    failure = orch.result()["first_failure"]
    assert failure["exception"] == "ValueError: a wrong setting"
    assert failure["lines"][0] == "Traceback (most recent call last):"


def test_failed_start_is_ordered_after_exits_of_earlier_attempts(orch: Orch) -> None:
    program = orch.directory / "program"
    program.write_text(REMOVES_ITSELF)
    program.chmod(0o700)
    done = orch("up", "-q", "-n", "2", "--max-restarts", "1", "--", "./program")
    assert done.code == 127, done.err
    assert sorted(event["order"] for event in orch.events("task_exited")) == [0, 1]
    assert [event["order"] for event in orch.events("task_start_failed")] == [2, 3]
    assert orch.result()["first_failure"]["task"] == "worker:0"


def test_task_whose_files_cannot_be_made_ends_the_run(orch: Orch) -> None:
    script = orch.script("in_the_way.py", BLOCKS_ITS_FILE)
    done = orch("up", "-q", "-n", "2", "--on-failure", "restart-task", "--", sys.executable, script)
    assert done.code == 125
    result = orch.result()
    place = Path("exceptions", "worker-1.json")
    assert result["cause"]["kind"] == "limit", result
    assert f"{orch.run_dir() / place}: Is a directory" in result["cause"]["text"]
