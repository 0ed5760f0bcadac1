"""One run with --chaos on real processes. Each fault by itself is in the matrix and in unit/core/test_chaos_watch."""

from __future__ import annotations

import json
import signal

from orch_command import Orch
from waiting import until

# Reports 12 steps, awaited ones at once, as the built-in program does. Ends when all faults have been triggered.
_STEPS = """
import json, os, time
fd = int(os.environ["ORCH_PROGRESS_FD"])
awaited = os.environ.get("ORCH_PROGRESS_AT", "").split(",")
for step in range(1, 13):
    report = {"phase": "training", "epoch": 1, "epochs": 1, "step": step, "steps": 12}
    os.write(fd, json.dumps(report | {"at_once": str(step) in awaited}).encode() + b"\\n")
    time.sleep(0.05)
while not os.path.exists("all-triggered"):
    time.sleep(0.05)
"""
_CHAOS = "kill 1 at step 5; kill 0 at step 3 in attempt 2; kill 0 at ready in attempt 4"
_KILL = int(signal.SIGKILL)


def _reported_before(orch: Orch, fault: int, task: str) -> int:
    """The last step that the task had reported when the fault hit it."""
    step = 0
    for event in map(json.loads, (orch.run_dir() / "events.jsonl").read_text().splitlines()):
        if event["type"] == "signal_requested" and event["fault"] == fault:
            return step
        if event["type"] == "task_progressed" and event["task"] == task:
            step = event["progress"]["step"]
    raise AssertionError("the fault was not triggered")


def test_faults_of_several_attempts(orch: Orch) -> None:
    words = ("--chaos", _CHAOS, "--on-failure", "restart", "--", orch.script("train.py", _STEPS))
    started = orch.start("up", "-n", "2", *words)
    until(lambda: started.ended or (orch.run_dirs() and len(orch.events("signal_requested")) == 2))
    (orch.directory / "all-triggered").touch()
    done = started.finish()
    assert done.code == 0, done.err
    result = orch.result()
    assert result["attempts"] == 3
    sent = [(event["task"], event["signal"], event["fault"]) for event in orch.events("signal_requested")]
    assert sent == [("worker:1", _KILL, 0), ("worker:0", _KILL, 1)]
    assert _reported_before(orch, 0, "worker:1") >= 5
    first, second, third = result["faults"]
    for report, end in zip((first, second), result["history"], strict=True):
        assert end["cause"]["task"] == report["task"]
        assert f"sent by --chaos ({report['fault']})" in end["cause"]["text"]
        assert report["detection_s"] > 0
        assert report["teardown_s"] == end["teardown_s"]
        assert report["recovery_s"] == end["recovery_s"] > 0
    assert 0 < first["at_s"] < second["at_s"] < result["took_s"]
    assert third["at_s"] is None
    reports = [line for line in done.err.splitlines() if line.startswith("  chaos ")]
    assert "kill worker:1 at step 5: after" in reports[0] and "all ended in" in reports[0]
    assert "kill worker:0 at ready in attempt 4: not triggered" in done.err


def test_invalid_fault_starts_nothing(orch: Orch) -> None:
    done = orch("up", "-n", "2", "--chaos", "kill worker:7 at ready", "--", "sleep", "600")
    assert done.code == 2 and "--chaos: there is no worker:7 in this run" in done.err
    assert orch.run_dirs() == []
