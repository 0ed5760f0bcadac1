"""`orch notice` and SIGUSR2: the tasks are told to save their state, and the run ends with exit code 42."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from orch_command import Orch
from waiting import until

# Saves when it is told to, as PreemptionCheckpointHandler does.
SAVES = """
import pathlib, signal, sys, time


def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(42)


signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
# Sets no handler.
CLEANS_UP = """
import time

try:
    print("up", flush=True)
    time.sleep(600)
finally:
    print("cleaned up", flush=True)
"""
IGNORES = """
import signal, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def test_notice_lets_a_run_save_and_end(orch: Orch) -> None:
    command = orch.start(
        "up", "--on-failure", "restart", "--", sys.executable, orch.script("saves.py", SAVES)
    )
    command.until_out("up")
    told = orch("notice", "--in", "1m")
    assert told.code == 0, told.err
    assert "within 1m" in told.err
    ended = command.finish()
    assert ended.code == 42, ended.err
    assert (orch.directory / "saved").exists()
    assert ended.err.splitlines()[-1] == (
        "orch: its machines go in 1m (`orch notice`); 1 of 1 task said that the state is saved (exit 42)"
    )
    result = orch.result()
    assert (result["outcome"], result["cause"]["kind"], result["attempts"]) == ("stopped", "notice", 1)
    assert orch("notice").code == 3


def test_script_without_a_handler_cleans_up(orch: Orch) -> None:
    command = orch.start("up", "--max-restarts", "2", "--", orch.script("cleans_up.py", CLEANS_UP))
    command.until_out("up")
    assert orch("notice").code == 0
    ended = command.finish()
    assert (ended.code, orch.result()["attempts"]) == (42, 1), ended.err
    assert "cleaned up" in ended.out
    assert [task["exit_code"] for task in orch.result()["tasks"]] == [143]


def test_task_that_ignores_the_notice_is_killed(orch: Orch) -> None:
    command = orch.start("up", "--", sys.executable, orch.script("ignores.py", IGNORES))
    command.until_out("up")
    assert orch("notice", "--in", "1s").code == 0
    assert command.finish().code == 42
    assert [task["signal"] for task in orch.result()["tasks"]] == [signal.SIGKILL]


@pytest.mark.parametrize("who", ["orch up", "supervisor"])
def test_sigusr2_is_a_notice(orch: Orch, who: str) -> None:
    command = orch.start("up", "--notice", "5m", "--", sys.executable, orch.script("saves.py", SAVES))
    command.until_out("up")
    os.kill(command.process.pid if who == "orch up" else orch.supervisor() or 0, signal.SIGUSR2)
    ended = command.finish()
    assert ended.code == 42, ended.err
    assert "its machines go in 5m (SIGUSR2)" in ended.err


def progress(orch: Orch) -> list[dict[str, Any]]:
    """The reported progress of the newest run."""
    runs = orch.run_dirs()
    return orch.events("task_progressed", runs[-1]) if runs else []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tensorflow_saves_after_a_notice_and_continues(orch: Orch) -> None:
    shutil.copy(Path(__file__).parents[1] / "restart/loop_script.py", orch.directory)
    words = ("up", "-n", "2", "--checkpoint-dir", "kept", "--", "loop_script.py", "preemption", "waits")
    command = orch.start(*words)
    until(lambda: any(event["progress"]["step"] for event in progress(orch)), 300)
    assert orch("notice", "--in", "2m").code == 0
    ended = command.finish(300)
    assert ended.code == 42, ended.out + ended.err
    assert "2 of 2 tasks said that the state is saved" in ended.err
    (orch.directory / "kept/go").touch()
    again = orch(*words, timeout_s=600)
    assert again.code == 0, again.out + again.err
    assert max(event["progress"]["start_step"] or 0 for event in progress(orch)) > 0
