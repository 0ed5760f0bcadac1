"""--chaos on real processes: each fault is triggered at its moment and reported in the result."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from orch_command import Finished, Orch, Started
from waiting import until

import orchestrator

# Reports `LAST` steps, awaited ones at once, as the built-in program does. Ends when all faults have been triggered.
STEPS = """
import json, os, time
fd = int(os.environ["ORCH_PROGRESS_FD"])
awaited = os.environ.get("ORCH_PROGRESS_AT", "").split(",")
for step in range(1, LAST + 1):
    report = {"phase": "training", "epoch": 1, "epochs": 1, "step": step, "steps": LAST}
    os.write(fd, json.dumps(report | {"at_once": str(step) in awaited}).encode() + b"\\n")
    time.sleep(0.05)
while not os.path.exists("all-triggered"):
    time.sleep(0.05)
"""


def steps(orch: Orch, last: int) -> str:
    return orch.script("train.py", STEPS.replace("LAST", str(last)))


def finish(orch: Orch, started: Started, signals: int) -> Finished:
    """Let the tasks end when this many signals have been sent, and return how the command ended."""
    until(lambda: started.ended or (orch.run_dirs() and len(sent(orch)) >= signals))
    (orch.directory / "all-triggered").touch()
    return started.finish()


def sent(orch: Orch) -> list[tuple[str, int, int | None]]:
    return [(event["task"], event["signal"], event["fault"]) for event in orch.events("signal_requested")]


def step_reported_before(orch: Orch, fault: int, task: str) -> int:
    """The last step that the task had reported when the fault hit it."""
    lines = (orch.run_dir() / "events.jsonl").read_text().splitlines()
    step = 0
    for event in map(json.loads, lines):
        if event["type"] == "signal_requested" and event["fault"] == fault:
            return step
        if event["type"] == "task_progressed" and event["task"] == task:
            step = event["progress"]["step"]
    raise AssertionError("the fault was not triggered")


def test_kill_at_step(orch: Orch) -> None:
    done = orch("up", "-n", "2", "--chaos", "kill worker:1 at step 12", "--", steps(orch, 10_000))
    assert done.code == 137
    assert "SIGKILL, sent by --chaos (kill worker:1 at step 12)" in done.err.splitlines()[-1]
    result = orch.result()
    assert result["cause"]["task"] == result["first_failure"]["task"] == "worker:1"
    assert sent(orch) == [("worker:1", signal.SIGKILL, 0)]
    assert step_reported_before(orch, 0, "worker:1") >= 12
    (report,) = result["faults"]
    assert (report["fault"], report["task"]) == ("kill worker:1 at step 12", "worker:1")
    assert 0 < report["at_s"] < result["took_s"]
    assert 0 < report["detection_s"] < report["at_s"] + result["took_s"]
    assert report["teardown_s"] == result["teardown_s"]
    assert report["recovery_s"] is None
    (line,) = [line for line in done.err.splitlines() if line.startswith("  chaos ")]
    assert "kill worker:1 at step 12: after" in line and "all ended in" in line


def test_run_survives_short_stop(orch: Orch) -> None:
    chaos = "stop any#1 at step 3 for 300ms; kill 0 at step 999"
    done = finish(orch, orch.start("up", "-n", "2", "--chaos", chaos, "--", steps(orch, 12)), signals=2)
    assert done.code == 0, done.err
    stopped, never = orch.result()["faults"]
    assert sent(orch) == [(stopped["task"], signal.SIGSTOP, 0), (stopped["task"], signal.SIGCONT, 0)]
    assert stopped["at_s"] > 0
    assert stopped["detection_s"] is stopped["teardown_s"] is stopped["recovery_s"] is None
    assert never == {
        "fault": "kill worker:0 at step 999",
        "task": "worker:0",
        "at_s": None,
        "detection_s": None,
        "teardown_s": None,
        "recovery_s": None,
    }
    assert "kill worker:0 at step 999: not triggered" in done.err


def test_permanent_stop_is_the_cause(orch: Orch) -> None:
    # Python must start within this limit, even on a busy machine.
    words = ("--chaos", "stop worker:1 at step 3", "--stall-timeout", "12s")
    done = orch("up", "-n", "2", *words, "--", steps(orch, 10_000))
    assert done.code == 124
    result = orch.result()
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", "stopped")
    assert "sent by --chaos (stop worker:1 at step 3)" in result["cause"]["text"]
    (report,) = result["faults"]
    assert report["detection_s"] >= 11
    assert report["teardown_s"] == result["teardown_s"]


def test_faults_of_several_attempts(orch: Orch) -> None:
    chaos = "kill 1 at step 5; kill 0 at step 3 in attempt 2; kill 0 at ready in attempt 4"
    words = ("--chaos", chaos, "--on-failure", "restart")
    done = finish(orch, orch.start("up", "-n", "2", *words, "--", steps(orch, 12)), signals=2)
    assert done.code == 0, done.err
    result = orch.result()
    assert result["attempts"] == 3
    assert sent(orch) == [("worker:1", signal.SIGKILL, 0), ("worker:0", signal.SIGKILL, 1)]
    first, second, third = result["faults"]
    for report, end in zip((first, second), result["history"], strict=True):
        assert end["cause"]["task"] == report["task"]
        assert report["detection_s"] > 0
        assert report["teardown_s"] == end["teardown_s"]
        assert report["recovery_s"] == end["recovery_s"] > 0
    assert first["at_s"] < second["at_s"]
    assert third["at_s"] is None


def test_fault_of_single_restarted_task(orch: Orch) -> None:
    words = ("--chaos", "kill worker:1 at step 5", "--on-failure", "restart-task")
    done = finish(orch, orch.start("up", "-n", "2", *words, "--", steps(orch, 12)), signals=1)
    assert done.code == 0, done.err
    (report,) = orch.result()["faults"]
    assert report["detection_s"] > 0 and report["recovery_s"] > 0
    assert report["teardown_s"] is None


@pytest.mark.parametrize(
    ("chaos", "sentence"),
    [
        ("kill worker:1 at noon", '--chaos: at character 18, "noon": is not step 20'),
        ("kill worker:7 at ready", "--chaos: there is no worker:7 in this run"),
    ],
)
def test_invalid_fault_starts_nothing(orch: Orch, chaos: str, sentence: str) -> None:
    done = orch("up", "-n", "2", "--chaos", chaos, "--", "sleep", "600")
    assert done.code == 2
    assert sentence in done.err
    assert orch.run_dirs() == []


def test_chaos_from_python(orch: Orch) -> None:
    script = steps(orch, 12)
    options: dict[str, Any] = {"chaos": "kill worker:1 at step 5", "on_failure": "restart"}
    with orchestrator.Cluster(workers=2, command=[script], directory=orch.directory, **options) as run:
        until(lambda: sent(orch))
        (orch.directory / "all-triggered").touch()
        result = run.wait()
    assert result.attempts == 2
    assert [fault.task for fault in result.faults] == ["worker:1"]
