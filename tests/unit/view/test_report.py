"""The final report: which task failed, why, and what to do."""

from __future__ import annotations

import pytest

from orchestrator.client.view.layout import without_colour
from orchestrator.client.view.report import end_lines
from orchestrator.core.state.result import Cause, CauseKind, FirstFailure, RunResult, TaskEnd, Training


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
            place="/home/me/train.py:41",
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


def test_failure_report_ends_with_cause() -> None:
    lines = end_lines(failed(), None, colour=False)
    assert lines == [
        "last lines of worker:2:",
        "  │ Traceback (most recent call last):",
        "  │ \tValueError: bad",
        "orch: digits-1 failed",
        "  other tasks    worker:1: failed because of it",
        "  other tasks    worker:0, worker:3: stopped by orch",
        "  log file       /runs/digits-1/logs/worker-2.log",
        "orch: worker:2 failed: ValueError: bad␍ shape (train.py:41)",
    ]


def test_few_lines_of_a_killed_task_are_quoted_and_no_list_of_faults() -> None:
    first = failed().first_failure
    assert first is not None
    lines = (
        *map(str, range(9)),
        "orch: Keras 3.15.1 has faults with 2 workers, fixed for this process: fit, saves",
    )
    killed = first.model_copy(update={"exit_code": None, "signal": 9, "exception": None, "lines": lines})
    shown = end_lines(failed().model_copy(update={"first_failure": killed}), None, colour=False)
    assert [line for line in shown if line.startswith("  │ ")] == [
        *(f"  │ {number}" for number in range(5, 9)),
        "  │ orch: Keras 3.15.1 has faults with 2 workers, fixed for this process",
    ]


@pytest.mark.parametrize("width", [20, 80])
def test_outcome_is_shown_with_the_longest_name(width: int) -> None:
    run_id = f"{'a' * 63}-20260101T000000Z-0000"
    lines = end_lines(failed().model_copy(update={"run_id": run_id}), width, colour=False)
    at = lines.index(f"orch: {run_id}")
    assert lines[at + 1].startswith("      failed")


def test_advice_precedes_cause() -> None:
    lines = end_lines(failed(advice="install tf_keras"), None, colour=False)
    assert lines[-2] == "  to do          install tf_keras"


def test_cause_other_than_first_failure() -> None:
    lines = end_lines(failed(cause_task="worker:1"), None, colour=False)
    assert "  first failure  worker:2: exit 1" in lines
    assert "  exception      ValueError: bad␍ shape" in lines
    assert lines[-1] == "orch: worker:1 failed: exit 1"


def test_colour_does_not_change_text() -> None:
    plain = end_lines(failed(), None, colour=False)
    coloured = end_lines(failed(), None, colour=True)
    assert [without_colour(line) for line in coloured] == plain
    assert coloured != plain


def test_timings_are_for_verbose_runs() -> None:
    timed = "orch: digits-1 failed (detected in 4ms, all ended in 620ms)"
    assert timed in end_lines(failed(), None, colour=False, verbose=True)
    assert timed not in end_lines(failed(), None, colour=False)


def test_success_tells_duration_training_and_checkpoints() -> None:
    result = failed().model_copy(update={"outcome": "succeeded", "cause": None, "first_failure": None})
    assert end_lines(result, None, colour=False) == ["orch: digits-1 succeeded"]
    trained = Training(epoch=3, epochs=3, step=8, loss=0.52512, metrics={"accuracy": 0.75, "val_loss": None})
    result = result.model_copy(update={"took_s": 21.3, "training": trained})
    assert end_lines(result, None, colour=False, checkpoints="/runs/digits-1/checkpoints") == [
        "orch: digits-1 succeeded after 21s: 3 epochs, loss 0.5251, accuracy 0.75",
        "  checkpoints    /runs/digits-1/checkpoints",
    ]


def test_success_tells_restarts_of_run_and_of_single_tasks() -> None:
    ends = tuple(
        TaskEnd(task=f"worker:{index}", state="succeeded", exit_code=0, signal=None, restarts=1 + index)
        for index in range(2)
    )
    update = {"outcome": "succeeded", "cause": None, "first_failure": None, "attempts": 2, "tasks": ends}
    assert end_lines(failed().model_copy(update=update), None, colour=False) == [
        "orch: digits-1 succeeded in 2 attempts, 1 task restart"
    ]


def test_nothing_is_cut_on_a_narrow_terminal() -> None:
    long = " ".join(f"word{number}" for number in range(100))
    result = failed()
    assert result.first_failure is not None
    first = result.first_failure.model_copy(update={"exception": f"ValueError: {long}", "lines": (long,)})
    shown = end_lines(result.model_copy(update={"first_failure": first}), 80, colour=False)
    assert all(len(line) <= 80 for line in shown)
    text = " ".join(line.strip(" │") for line in shown)
    assert text.endswith("word99 (train.py:41)")
    quoted = "".join(line[4:] for line in shown if line.startswith("  │ "))
    assert quoted == long


def test_time_limit_names_no_task() -> None:
    cause = Cause(task=None, kind=CauseKind.LIMIT, text="--timeout 5m is over")
    result = failed().model_copy(update={"outcome": "timed_out", "cause": cause, "first_failure": None})
    lines = end_lines(result, None, colour=False)
    assert lines[0].startswith("orch: digits-1 timed out")
    assert lines[-1] == "orch: --timeout 5m is over"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("/runs/r/events.jsonl: No space left on device", "`orch prune`"),
        ("/runs/r/logs/index: File too large", "ulimit -f"),
        ("/runs/r/sample.json: Read-only file system", "--log-dir"),
        ("not done after 3 s (--timeout)", None),
    ],
)
def test_advice_when_orch_could_not_write(text: str, advice: str | None) -> None:
    shown = _lines(cause=Cause(task=None, kind=CauseKind.LIMIT, text=text))
    if advice is None:
        assert not any(line.startswith("  to do ") for line in shown)
    else:
        assert shown[-2].startswith("  to do ") and advice in shown[-2]


def test_reason_why_single_task_is_not_restarted() -> None:
    shown = _lines(not_restarted="worker:1: it failed before it reported a training step")
    assert shown[-1] == "  not restarted  worker:1: it failed before it reported a training step"


def _lines(**fields: object) -> list[str]:
    result = RunResult.model_validate(
        {
            "run_id": "r",
            "outcome": "failed",
            "exit_code": 125,
            "attempts": 1,
            "cause": None,
            "first_failure": None,
            "detection_s": None,
            "teardown_s": None,
            "tasks": (),
            **fields,
        }
    )
    return end_lines(result, None, colour=False)


def test_startup_lines_of_tensorflow_are_folded() -> None:
    result = failed()
    assert result.first_failure is not None
    lines = (
        "I0000 00:00:1.1 7 port.cc:153] oneDNN custom operations are on. You may see ...",
        "I0000 00:00:1.1 7 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
        "E0000 00:00:1.1 7 cuda_platform.cc:52] failed call to cuInit: INTERNAL",
        "Epoch 1/3",
        "I0000 00:00:1.1 7 grpc_server_lib.cc:467] Started server with target: grpc://127.0.0.1:34711",
        "ValueError: bad",
    )
    first = result.first_failure.model_copy(update={"lines": lines})
    shown = end_lines(result.model_copy(update={"first_failure": first}), None, colour=False)
    assert shown[1:5] == [
        "  │ TensorFlow started (3 lines; the log file has them)",
        f"  │ {lines[2]}",
        "  │ Epoch 1/3",
        "  │ ValueError: bad",
    ]


def test_hundreds_of_tasks_are_shown_as_a_range() -> None:
    ends = [
        TaskEnd(task=f"worker:{n}", state="stopped", exit_code=143, signal=None, end="stopped by orch")
        for n in range(300)
    ]
    result = failed().model_copy(update={"tasks": tuple(ends)})
    lines = end_lines(result, None, colour=False)
    assert "  other tasks    worker:0, worker:1, worker:3 to worker:299: stopped by orch" in lines
