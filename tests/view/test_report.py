"""The last thing on the screen: who, what, and what to do."""

from __future__ import annotations

from orchestrator.result import Cause, CauseKind, FirstFailure, RunResult, TaskEnd
from orchestrator.view.palette import without_colour
from orchestrator.view.report import end_lines


def failed(cause_task: str = "worker:2", advice: str | None = None) -> RunResult:
    return RunResult(
        run_id="digits-1",
        outcome="failed",
        exit_code=1,
        attempts=1,
        cause=Cause(task=cause_task, kind=CauseKind.EXITED, text="exit 1"),
        first_failure=FirstFailure(
            task="worker:2",
            exit_code=1,
            signal=None,
            exception="ValueError: bad\r \x1b[31mshape",
            log="/runs/digits-1/logs/worker-2.log",
            advice=advice,
            lines=("Traceback (most recent call last):", "\tValueError: bad"),
        ),
        detection_s=0.004,
        teardown_s=0.62,
        tasks=(
            TaskEnd(task="worker:0", state="stopped", exit_code=None, signal=15, end="stopped by orch"),
            TaskEnd(task="worker:1", state="failed", exit_code=1, signal=None, end="failed because of it"),
            TaskEnd(task="worker:2", state="failed", exit_code=1, signal=None),
            TaskEnd(task="worker:3", state="stopped", exit_code=None, signal=15, end="stopped by orch"),
        ),
    )


def test_a_failure_tells_everything_and_the_cause_last() -> None:
    lines = end_lines(failed(), None, colour=False)
    assert lines == [
        "last lines of worker:2:",
        "  │ Traceback (most recent call last):",
        "  │ \tValueError: bad",
        "orch: digits-1 failed (noticed in 4ms, all gone in 620ms)",
        "  peers     worker:1: failed because of it",
        "  peers     worker:0, worker:3: stopped by orch",
        "  log       /runs/digits-1/logs/worker-2.log",
        "  exception ValueError: bad␍ shape",
        "  cause     worker:2: exit 1 (the first to fail)",
    ]


def test_advice_comes_after_the_cause() -> None:
    lines = end_lines(failed(advice="install tf_keras"), None, colour=False)
    assert lines[-1] == "  to do     install tf_keras"


def test_a_cause_that_is_not_the_first_failure() -> None:
    lines = end_lines(failed(cause_task="worker:1"), None, colour=False)
    assert "  first     worker:2 was the first to end badly: exit 1" in lines
    assert lines[-1] == "  cause     worker:1: exit 1"


def test_colour_changes_no_text() -> None:
    plain = end_lines(failed(), None, colour=False)
    coloured = end_lines(failed(), None, colour=True)
    assert [without_colour(line) for line in coloured] == plain
    assert coloured != plain


def test_an_end_without_failure_is_short() -> None:
    result = failed().model_copy(update={"outcome": "succeeded", "cause": None, "first_failure": None})
    assert end_lines(result, None, colour=False) == [
        "orch: digits-1 succeeded (noticed in 4ms, all gone in 620ms)"
    ]


def test_a_time_limit_has_no_culprit() -> None:
    cause = Cause(task=None, kind=CauseKind.LIMIT, text="--timeout 5m is over")
    result = failed().model_copy(update={"outcome": "timed_out", "cause": cause, "first_failure": None})
    lines = end_lines(result, None, colour=False)
    assert lines[0].startswith("orch: digits-1 timed out")
    assert lines[-1] == "  cause     --timeout 5m is over"
