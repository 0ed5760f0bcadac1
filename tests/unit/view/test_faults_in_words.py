"""Planned faults in the final report, and signals and memory limits in the messages of a live run."""

from __future__ import annotations

import pytest

from orchestrator.client.view.messages import event_message
from orchestrator.client.view.report import end_lines, fault_text
from orchestrator.core.state.events import MemoryExceeded, SignalRequested, SignalSource
from orchestrator.core.state.result import FaultReport, RunResult

PLAN = "kill worker:1 at step 20"


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (FaultReport(fault=PLAN), f"{PLAN}: not triggered"),
        (FaultReport(fault=PLAN, task="worker:1"), f"{PLAN}: not triggered"),
        (
            FaultReport(fault=PLAN, task="worker:1", at_s=0.32),
            f"{PLAN}: after 320ms; no task ended because of it",
        ),
        (
            FaultReport(fault="kill any#7 at ready", task="worker:2", at_s=75.0, detection_s=0.004),
            "kill any#7 at ready (worker:2): after 1m15s; detected in 4ms",
        ),
        (
            FaultReport(
                fault=PLAN, task="worker:1", at_s=3, detection_s=0.01, teardown_s=0.5, recovery_s=4.5
            ),
            f"{PLAN}: after 3.0s; detected in 10ms, all ended in 500ms, training again in 4.5s",
        ),
    ],
)
def test_fault_is_one_line(report: FaultReport, text: str) -> None:
    assert fault_text(report) == text


def test_report_lists_faults_in_order() -> None:
    faults = (FaultReport(fault=PLAN, task="worker:1", at_s=1.0), FaultReport(fault="kill worker:0 at 30s"))
    ended = RunResult(
        run_id="run-1",
        outcome="succeeded",
        exit_code=0,
        attempts=1,
        cause=None,
        first_failure=None,
        detection_s=None,
        teardown_s=0.1,
        tasks=(),
        faults=faults,
    )
    lines = [line for line in end_lines(ended, None, colour=False) if line.startswith("  chaos")]
    assert lines == [f"  chaos          {fault_text(fault)}" for fault in faults]


@pytest.mark.parametrize(
    ("by", "text", "message"),
    [
        ("user", None, "worker:1 gets SIGSTOP, sent by `orch kill`"),
        ("chaos", "stop worker:1 at 3s", "worker:1 gets SIGSTOP, sent by --chaos (stop worker:1 at 3s)"),
        # The message about the memory limit has just said why.
        ("limit", None, None),
    ],
)
def test_message_names_signal_and_sender(by: SignalSource, text: str | None, message: str | None) -> None:
    event = SignalRequested(at=1.0, mono=1.0, task="worker:1", signal=19, by=by, text=text)
    assert event_message(event, None) == message


def test_message_names_exceeded_memory_limit() -> None:
    event = MemoryExceeded(
        at=1.0, mono=1.0, task="worker:1", memory_bytes=970_000_000, limit_bytes=900_000_000
    )
    assert event_message(event, None) == "worker:1 uses 970 MB, over --memory-limit 900 MB: it gets SIGKILL"
