"""--chaos against real training: a worker killed at a step, with and without a restart, and a stopped worker."""

from __future__ import annotations

import json
import signal

import pytest
from orch_command import Orch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PATIENT_S = 240.0
# 45 steps an epoch.
TRAINING = ("--", "--epochs", "2", "--seed", "7")


def position_at(orch: Orch, fault: int) -> int:
    """The step over all epochs that worker:1 had reported when the fault was triggered."""
    reached = 0
    for line in (orch.run_dir() / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["type"] == "signal_requested" and event["fault"] == fault:
            return reached
        if event["type"] == "task_progressed" and event["task"] == "worker:1":
            report = event["progress"]
            reached = 0
            if report["step"] is not None:
                reached = (report["epoch"] - 1) * report["steps"] + report["step"]
    raise AssertionError("the fault was not triggered")


def test_worker_is_killed_at_its_step(orch: Orch) -> None:
    done = orch("up", "-n", "2", "--chaos", "kill worker:1 at step 20", *TRAINING, timeout_s=PATIENT_S)
    assert done.code == 137, done.err
    result = orch.result()
    assert result["cause"]["task"] == "worker:1"
    assert result["cause"]["text"] == "SIGKILL, sent by --chaos (kill worker:1 at step 20)"
    # This step is reported immediately; on a busy machine a few later ones may be reported with it.
    assert 20 <= position_at(orch, 0) <= 25
    (report,) = result["faults"]
    assert report["detection_s"] > 0 and report["teardown_s"] == result["teardown_s"]


def test_training_resumes_in_second_attempt(orch: Orch) -> None:
    words = ("--chaos", "kill worker:1 at step 60", "--on-failure", "restart")
    done = orch("up", "-n", "2", *words, *TRAINING, timeout_s=PATIENT_S)
    assert done.code == 0, done.err
    result = orch.result()
    assert (result["attempts"], result["outcome"]) == (2, "succeeded")
    (report,), (end,) = result["faults"], result["history"]
    assert end["cause"]["task"] == report["task"] == "worker:1"
    assert end["resumed_at"] == 45
    assert report["recovery_s"] == end["recovery_s"] > 0


def test_run_survives_stop_shorter_than_tensorflow_timeout(orch: Orch) -> None:
    done = orch("up", "-n", "2", "--chaos", "stop worker:1 at step 20 for 3s", *TRAINING, timeout_s=PATIENT_S)
    assert done.code == 0, done.err
    sent = [(event["task"], event["signal"]) for event in orch.events("signal_requested")]
    assert sent == [("worker:1", signal.SIGSTOP), ("worker:1", signal.SIGCONT)]
    (report,) = orch.result()["faults"]
    assert report["at_s"] > 0 and report["detection_s"] is None


def test_stop_longer_than_tensorflow_timeout_is_the_cause_although_peer_fails(orch: Orch) -> None:
    done = orch("up", "-n", "2", "--chaos", "stop worker:1 at step 20 for 1m", *TRAINING, timeout_s=PATIENT_S)
    assert done.code not in (0, 124, 125), done.err
    result = orch.result()
    assert result["first_failure"]["task"] == "worker:0"
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", "stopped")
    assert "SIGSTOP, sent by --chaos (stop worker:1 at step 20 for 1m)" in result["cause"]["text"]
    (report,) = result["faults"]
    assert report["detection_s"] > 3
