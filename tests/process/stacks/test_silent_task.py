"""A task that is silent, and one that is stopped, in a real run."""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import until

from orchestrator import Cluster

SCRIPT = """
import os, time
def load_data():
    time.sleep(600)
if os.environ["ORCH_TASK"] == "worker:1":
    load_data()
while True:
    print("step", flush=True)
    time.sleep(0.2)
"""


def test_silent_and_stopped_task(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state_dir))
    (tmp_path / "train.py").write_text(SCRIPT)
    cluster = Cluster(workers=2, command=[sys.executable, "train.py"], directory=tmp_path)
    request = cluster._request
    # The default is five minutes. A task needs less than this to start on a busy machine.
    cluster._request = replace(request, spec=request.spec.model_copy(update={"silence_notice_s": 3.0}))
    with cluster as run:

        def noticed() -> str | None:
            run.view.refresh()
            return next((text for text in run.view.state.notices if text.startswith("worker:1")), None)

        notice = until(noticed)
        assert re.fullmatch(
            r"worker:1 has been silent and idle for \d+s: in load_data \(train\.py:4\)", notice
        )
        pid = run.status().tasks[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        until(lambda: run.status().tasks[1].paused)
        task = run.status().tasks[1]
        assert (task.state, task.stop_signal) == ("running", "SIGSTOP")
        os.kill(pid, signal.SIGCONT)
        until(lambda: not run.status().tasks[1].paused)
