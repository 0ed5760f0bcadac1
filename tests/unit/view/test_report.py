"""The final report: which task failed, why, and what to do."""

from __future__ import annotations

from functools import partial
from typing import Any

from making import cause, event, exited, first_failure, run_result, task_end
from moments import report

from orchestrator.cli.selection import ended_text
from orchestrator.client.stop import Ended
from orchestrator.client.view.layout import without_colour
from orchestrator.client.view.messages import event_message
from orchestrator.client.view.report import end_lines
from orchestrator.core.state.events import Noticed, Preload, SignalRequested
from orchestrator.core.state.result import CauseKind, FaultReport, FirstFailure, HostEnd, RunResult, Training

FIRST = first_failure(
    2,
    exception="ValueError: bad\r \x1b[31mshape",
    log="/runs/digits-1/logs/worker-2.log",
    place="/home/me/train.py:41",
    lines=("Traceback (most recent call last):", "\tValueError: bad"),
)
STOPPED = {"code": 143, "end": "stopped by orch"}


def failed(task: int = 2, first: FirstFailure | None = FIRST, **fields: Any) -> RunResult:
    """A run that worker:2 failed first, because of this task."""
    tasks = (
        task_end(0, "stopped", **STOPPED),
        task_end(1, "failed", end="failed because of it"),
        task_end(2, "failed"),
        task_end(3, "stopped", **STOPPED),
    )
    defaults: dict[str, Any] = {"run_id": "digits-1", "cause": cause(task), "first_failure": first}
    result = run_result("failed", *tasks, **defaults, detection_s=0.004, teardown_s=0.62)
    return result.model_copy(update=fields)


def first(**fields: Any) -> FirstFailure:
    return FIRST.model_copy(update=fields)


def quoted(result: RunResult, width: int | None = None) -> list[str]:
    """The lines of the first failed task."""
    return [line.removeprefix("  │ ") for line in report(result, width) if line.startswith("  │ ")]


def test_failure_report_ends_with_cause() -> None:
    assert report(failed()) == [
        "last lines of worker:2:",
        "  │ Traceback (most recent call last):",
        "  │ \tValueError: bad",
        "orch: digits-1 failed",
        "  other tasks    worker:1: failed because of it",
        "  other tasks    worker:0, worker:3: stopped by orch",
        "  log file       /runs/digits-1/logs/worker-2.log",
        "orch: worker:2 failed: ValueError: bad␍ shape (train.py:41)",
    ]


def test_quoted_lines_are_few_and_those_of_interest() -> None:
    """Few of a killed task, no list of faults, and the start of TensorFlow as one."""
    fixed = "orch: Keras 3.15.1 has faults with 2 workers, fixed for this process"
    lines: tuple[str, ...] = (*map(str, range(9)), f"{fixed}: fit, saves")
    killed = failed(first=first(exit_code=None, signal=9, exception=None, lines=lines))
    assert quoted(killed) == [*map(str, range(5, 9)), fixed]
    lines = (
        "I0000 00:00:1.1 7 port.cc:153] oneDNN custom operations are on. You may see ...",
        "E0000 00:00:1.1 7 cuda_platform.cc:52] failed call to cuInit: INTERNAL",
        "Epoch 1/3",
        "I0000 00:00:1.1 7 grpc_server_lib.cc:467] Started server with target: grpc://127.0.0.1:34711",
        "ValueError: bad",
    )
    begun = "TensorFlow started (2 lines; the log file has them)"
    assert quoted(failed(first=first(lines=lines))) == [begun, lines[1], "Epoch 1/3", "ValueError: bad"]


def test_outcome_is_shown_with_the_longest_name() -> None:
    run_id = f"{'a' * 63}-20260101T000000Z-0000"
    for width in (20, 80):
        lines = report(failed(run_id=run_id), width)
        assert lines[lines.index(f"orch: {run_id}") + 1].startswith("      failed")


def test_lines_before_the_cause() -> None:
    lines = report(failed(1))
    assert "  first failure  worker:2: exit 1" in lines and "  exception      ValueError: bad␍ shape" in lines
    assert lines[-1] == "orch: worker:1 failed: exit 1"
    assert report(failed(first=first(advice="install tf_keras")))[-2] == "  to do          install tf_keras"
    reason = "worker:1: it failed before it reported a training step"
    lines = report(run_result("failed", cause=cause(0), not_restarted=reason))
    assert lines[-2:] == [f"  not restarted  {reason}", "orch: worker:0 failed: exit 1"]
    over = cause(None, "--timeout 5m is over", CauseKind.LIMIT)
    lines = report(failed(first=None, outcome="timed_out", cause=over))
    assert lines[0].startswith("orch: digits-1 timed out") and lines[-1] == "orch: --timeout 5m is over"
    full = cause(None, "/runs/r/events.jsonl: No space left on device", CauseKind.LIMIT)
    shown = report(run_result("failed", cause=full))
    assert shown[-2].startswith("  to do ") and "`orch prune`" in shown[-2]


def test_colour_does_not_change_text_and_timings_are_for_verbose_runs() -> None:
    coloured = end_lines(failed(), None, colour=True)
    assert [without_colour(line) for line in coloured] == report(failed()) != coloured
    timed = "orch: digits-1 failed (detected in 4ms, all ended in 620ms)"
    assert timed in report(failed(), verbose=True) and timed not in report(failed())


def test_success_tells_duration_training_restarts_and_checkpoints() -> None:
    assert report(run_result(run_id="digits-1")) == ["orch: digits-1 succeeded"]
    trained = Training(epoch=3, epochs=3, step=8, loss=0.52512, metrics={"accuracy": 0.75, "val_loss": None})
    result = run_result(run_id="digits-1", took_s=21.3, training=trained)
    assert report(result, checkpoints="/runs/digits-1/checkpoints") == [
        "orch: digits-1 succeeded after 21s: 3 epochs, loss 0.5251, accuracy 0.75",
        "  checkpoints    /runs/digits-1/checkpoints",
    ]
    ends = (task_end(index, restarts=1 + index) for index in range(2))
    result = run_result("succeeded", *ends, run_id="digits-1", attempts=2)
    assert report(result) == ["orch: digits-1 succeeded in 2 attempts, 1 task restart"]


def test_nothing_is_cut_on_a_narrow_terminal() -> None:
    long = " ".join(f"word{number}" for number in range(100))
    result = failed(first=first(exception=f"ValueError: {long}", lines=(long,)))
    shown = report(result, 80)
    assert all(len(line) <= 80 for line in shown)
    assert " ".join(line.strip(" │") for line in shown).endswith("word99 (train.py:41)")
    assert "".join(quoted(result, 80)) == long


def test_hundreds_of_tasks_are_shown_as_a_range_or_counted() -> None:
    lines = report(failed(tasks=tuple(task_end(index, "stopped", **STOPPED) for index in range(300))))
    assert "  other tasks    worker:0, worker:1, worker:3 to worker:299: stopped by orch" in lines
    for count, named in ((2, "worker:0, worker:1"), (1000, "1,000 tasks")):
        tasks = tuple(f"worker:{index}" for index in range(count))
        text = ended_text(Ended("digits-1", tasks, 0, was_live=True))
        assert text == f"digits-1: stopped {named}; no process is left"


def test_hosts_are_named() -> None:
    """The lines of a task that lost its peers say nothing about the cause."""
    boom = first_failure(0, exception="ValueError: boom", lines=("a line",))
    tasks = task_end(0, "failed", end="failed", host="a"), task_end(1, "lost", end="lost with b", host="b")
    hosts = tuple(HostEnd(host=name, address="10.0.0.1", state="joined", cores=8) for name in "ab")
    result = run_result("failed", *tasks, hosts=hosts, cause=cause(0), first_failure=boom)
    assert "  host           a" in report(result)
    assert report(result)[-1] == "orch: worker:0 failed: ValueError: boom"
    alone = result.model_copy(update={"hosts": hosts[:1]})
    assert not any(line.startswith("  host ") for line in report(alone))
    lost = cause(None, "b was lost: gone\x1b[2J; worker:1 ran on it", CauseKind.HOST)
    for first in (boom, None):
        lines = report(result.model_copy(update={"cause": lost, "first_failure": first}))
        assert lines[-1] == "orch: b was lost: gone; worker:1 ran on it"
        assert "  other tasks    worker:1: lost with b" in lines
        assert not any("a line" in line for line in lines)


def test_planned_faults_are_reported_in_order_one_line_each() -> None:
    plan, any_task = "kill worker:1 at step 20", "kill any#7 at ready"
    of_1 = partial(FaultReport, fault=plan, task="worker:1")
    of_any = FaultReport(fault=any_task, task="worker:2", at_s=75.0, detection_s=0.004)
    ended = "detected in 10ms, all ended in 500ms"
    noticed = {"detection_s": 0.01, "teardown_s": 0.5, "recovery_s": 4.5}
    rows = [
        (FaultReport(fault=plan), f"{plan}: not triggered"),
        (of_1(), f"{plan}: not triggered"),
        (of_1(at_s=0.32), f"{plan}: after 320ms; no task ended because of it"),
        (of_any, f"{any_task} (worker:2): after 1m15s; detected in 4ms"),
        (of_1(at_s=3, **noticed), f"{plan}: after 3.0s; {ended}, training again in 4.5s"),
    ]
    shown = report(run_result(faults=tuple(fault for fault, _ in rows)))
    chaos = [line for line in shown if line.startswith("  chaos")]
    assert chaos == [f"  chaos          {text}" for _, text in rows]


def test_messages_about_signals_and_memory() -> None:
    def message(**fields: Any) -> str | None:
        return event_message(event(SignalRequested, task=1, signal=19, **fields), None)

    assert message(by="user") == "worker:1 gets SIGSTOP, sent by `orch kill`"
    planned = "stop worker:1 at 3s"
    assert message(by="chaos", text=planned) == f"worker:1 gets SIGSTOP, sent by --chaos ({planned})"
    over = exited(1, signal=9, over_limit=(970_000_000, 900_000_000))
    assert event_message(over, None) == "worker:1 used 970 MB, over --memory-limit 900 MB: it got SIGKILL"
    assert event_message(exited(1, signal=9), None) is None


def test_messages_about_preloading_are_for_verbose_runs() -> None:
    preload = partial(event, Preload, modules=("tensorflow", "keras"))
    rows = {
        "preloaded tensorflow, keras in 2.1 s": preload(seconds=2.14),
        "preloaded tensorflow, keras by an earlier run": preload(seconds=0.0),
        "not preloaded: it has 3 threads": event(Preload, refused="it has 3 threads"),
        "by the way": event(Noticed, text="by the way", verbose=True),
    }
    assert [event_message(told, None, verbose=True) for told in rows.values()] == [*rows]
    told = [preload(seconds=2.14), event(Noticed, text="by the way", verbose=True), preload()]
    assert [event_message(each, None) for each in told] == [None] * 3
