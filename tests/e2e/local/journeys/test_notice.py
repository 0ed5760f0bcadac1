"""`orch notice` and SIGUSR2: the tasks are asked to save their state, and the run ends with exit code 42."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from orch_command import Orch
from waiting import until

# worker:0 saves after SIGTERM, as PreemptionCheckpointHandler does. worker:1 sets no handler, worker:2 ignores it.
_TASKS = """
import os, pathlib, signal, sys, time

def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(42)

task = os.environ["ORCH_TASK"]
if task != "worker:1":
    signal.signal(signal.SIGTERM, save if task == "worker:0" else signal.SIG_IGN)
try:
    print("up")
    while True:
        time.sleep(0.05)
finally:
    print("cleaned up")
"""


def test_notice_lets_tasks_save_clean_up_and_kills_those_that_ignore_it(orch: Orch) -> None:
    command = orch.start("up", "-n", "3", "--on-failure", "restart", "--", orch.script("tasks.py", _TASKS))
    command.until_out("| up", 3)
    done = orch("notice", "--in", "3s")
    assert done.code == 0 and "within 3s" in done.err, done.err
    ended = command.finish()
    assert ended.code == 42, ended.err
    assert (orch.directory / "saved").exists() and "worker:1 | cleaned up" in ended.out
    assert ended.err.splitlines()[-1] == (
        "orch: its machines go in 3s (`orch notice`); 1 of 3 tasks said that the state is saved (exit 42)"
    )
    result = orch.result()
    assert (result["outcome"], result["cause"]["kind"], result["attempts"]) == ("stopped", "notice", 1)
    assert [(task["exit_code"], task["signal"]) for task in result["tasks"]] == [
        *((42, None), (143, None)),
        (None, signal.SIGKILL),
    ]
    assert orch("notice").code == 3


def test_sigusr2_is_a_notice(orch: Orch) -> None:
    script = orch.script("tasks.py", _TASKS)
    for who in ("orch up", "supervisor"):
        command = orch.start("up", "--notice", "5m", "--", script)
        command.until_out("up")
        os.kill(command.process.pid if who == "orch up" else orch.supervisor() or 0, signal.SIGUSR2)
        ended = command.finish()
        assert ended.code == 42, ended.err
        assert "its machines go in 5m (SIGUSR2)" in ended.err, who


def _progress(orch: Orch) -> list[dict[str, Any]]:
    """The reported progress of the newest run."""
    runs = orch.run_dirs()
    return [event["progress"] for event in orch.events("task_progressed", runs[-1])] if runs else []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tensorflow_saves_after_a_notice_and_continues(orch: Orch) -> None:
    shutil.copy(Path(__file__).parents[1] / "restart/loop_script.py", orch.directory)
    words = ("up", "-n", "2", "--checkpoint-dir", "kept", "--", "loop_script.py", "preemption", "waits")
    command = orch.start(*words)
    until(lambda: any(progress["step"] for progress in _progress(orch)), 300)
    assert orch("notice", "--in", "2m").code == 0
    ended = command.finish(300)
    assert ended.code == 42, ended.out + ended.err
    assert "2 of 2 tasks said that the state is saved" in ended.err
    (orch.directory / "kept/go").touch()
    again = orch(*words, timeout_s=600)
    assert again.code == 0, again.out + again.err
    assert max(progress["start_step"] or 0 for progress in _progress(orch)) > 0
