"""What an earlier process said, or how it ended, is not told of the one that was started after it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from orch_command import Orch

pytestmark = pytest.mark.timeout(300)

# Falls with an exception at first; when it has been started again, without a word.
FALLS_SILENT = """
import os, time

os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "training", "epoch": 1, "steps": 9, "step": 1}\\n')
if os.environ["ORCH_TASK"] == "worker:1":
    if os.environ["ORCH_ATTEMPT"] == "1" and os.environ.get("ORCH_RESTARTS", "0") == "0":
        raise ValueError("of the first start")
    print("once more", flush=True)
    os._exit(7)
time.sleep(600)
"""
# In the first attempt worker:0 says that it lost a peer. In the second its peer is done, and it fails by itself.
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
# Cuts its own log, which had been long.
CUTS_ITS_LOG = """
import os, sys

if os.environ["ORCH_ATTEMPT"] == "1":
    sys.exit(print("x" * 20000, flush=True) or 42)
os.ftruncate(1, 0)
raise ValueError("a wrong setting")
"""
# Takes itself away when both have been started.
GOES_AWAY = """#!/bin/sh
if [ "$ORCH_TASK" = worker:1 ]; then touch there; exec sleep 600; fi
until [ -e there ]; do sleep 0.01; done
rm "$0"; exit 42
"""
# Puts a directory where its next exception would stand.
IN_THE_WAY = """
import os, pathlib, time

os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "training", "epoch": 1, "steps": 9, "step": 1}\\n')
if os.environ["ORCH_TASK"] == "worker:1":
    pathlib.Path(os.environ["ORCH_RUN_DIR"], "exceptions", "worker-1.json").mkdir(parents=True)
    os._exit(3)
time.sleep(600)
"""


@pytest.mark.parametrize("policy", ["restart", "restart-task"])
def test_its_last_words_are_its_own(orch: Orch, policy: str) -> None:
    script = orch.script("falls.py", FALLS_SILENT)
    options = ("-q", "-n", "2", "--on-failure", policy, "--max-restarts", "1")
    done = orch("up", *options, "--", sys.executable, script)
    assert done.code == 7, done.err
    failure = orch.result()["first_failure"]
    assert (failure["task"], failure["exit_code"], failure["exception"]) == ("worker:1", 7, None)
    assert failure["exception_file"] is None
    assert "of the first start" not in done.err
    assert failure["lines"] == ["once more"]


def test_who_lost_a_peer_once_is_not_excused_for_ever(orch: Orch) -> None:
    script = orch.script("lost.py", LOST_A_PEER)
    done = orch("up", "-q", "-n", "2", "--max-restarts", "1", "--", sys.executable, script)
    assert done.code == 5, done.err
    result = orch.result()
    assert [end["exit_code"] for end in result["history"]] == [42]
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:0", "exited")
    assert result["first_failure"]["lines"] == ["a wrong setting"]


def test_of_a_log_that_it_has_cut_all_is_its_own(orch: Orch) -> None:
    script = orch.script("cuts.py", CUTS_ITS_LOG)
    # Without the bootstrap, so that there is the log alone to go by.
    done = orch("up", "-q", "-n", "1", "--max-restarts", "1", "--", sys.executable, "-I", script)
    assert done.code == 1, done.err
    failure = orch.result()["first_failure"]
    assert failure["exception"] == "ValueError: a wrong setting"
    assert failure["lines"][0] == "Traceback (most recent call last):"


def test_a_start_that_failed_comes_after_the_exits_of_earlier_attempts(orch: Orch) -> None:
    program = orch.directory / "program"
    program.write_text(GOES_AWAY)
    program.chmod(0o700)
    done = orch("up", "-q", "-n", "2", "--max-restarts", "1", "--", "./program")
    assert done.code == 127, done.err
    assert sorted(event["order"] for event in orch.events("task_exited")) == [0, 1]
    assert [event["order"] for event in orch.events("task_start_failed")] == [2, 3]
    assert orch.result()["first_failure"]["task"] == "worker:0"


def test_a_task_that_cannot_be_started_again_for_its_files_ends_the_run(orch: Orch) -> None:
    script = orch.script("in_the_way.py", IN_THE_WAY)
    done = orch("up", "-q", "-n", "2", "--on-failure", "restart-task", "--", sys.executable, script)
    assert done.code == 125
    result = orch.result()
    place = Path("exceptions", "worker-1.json")
    assert result["cause"]["kind"] == "limit", result
    assert f"{orch.run_dir() / place}: Is a directory" in result["cause"]["text"]
