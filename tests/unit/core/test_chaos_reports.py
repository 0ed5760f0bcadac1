"""The report of each fault: which exit it caused, when it was noticed, and when training continued."""

from __future__ import annotations

import signal

import pytest
from chaos_run import START, WatchedRun, ended, result

from orchestrator.core.state import events
from orchestrator.core.state.events import Symptom, SymptomKind, TeardownReason
from orchestrator.core.state.result import CauseKind, FaultReport
from orchestrator.core.state.state import TaskPhase

KILL, TERM = signal.SIGKILL, signal.SIGTERM


def told(report: FaultReport) -> tuple[object, ...]:
    """(at, detection, teardown, recovery), to the microsecond."""
    seconds = (report.at_s, report.detection_s, report.teardown_s, report.recovery_s)
    return tuple(second if second is None else round(second, 6) for second in seconds)


def test_kill_that_ended_the_run() -> None:
    run = WatchedRun("kill worker:1 at 3s")
    run.runs()
    run.at(3.02).exits(1, signal=KILL)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:1", teardown_s=0.4)))
    assert (report.fault, report.task) == ("kill worker:1 at 3s", "worker:1")
    assert told(report) == (3.0, 0.02, 0.4, None)


def test_kill_followed_by_another_attempt() -> None:
    run = WatchedRun("kill worker:1 at 3s")
    run.runs()
    run.at(3.5).exits(1, signal=KILL)
    run.torn_down()
    end = ended("worker:1").model_copy(update={"recovery_s": 4.5})
    run.restarts(end)
    run.at(5).runs(attempt=2)
    (report,) = run.watch.reports(result(None, end))
    assert told(report) == (3.0, 0.5, 0.25, 4.5)


def test_fault_that_was_never_due() -> None:
    run = WatchedRun("kill worker:1 at step 20; kill any#3 at epoch 9")
    run.runs()
    run.trains(1, 19)
    reports = run.watch.reports(result(None))
    assert [told(report) for report in reports] == [(None, None, None, None)] * 2
    assert reports[0].task == "worker:1"
    assert reports[1].task in ("worker:0", "worker:1")


def test_stop_is_noticed_when_it_is_named() -> None:
    run = WatchedRun("stop worker:1 at 3s")
    run.runs()
    run.at(8).torn_down(TeardownReason.LIMIT)
    (report,) = run.watch.reports(result(ended("worker:1", CauseKind.STALLED)))
    assert told(report) == (3.0, 5.0, 0.25, None)


def test_unnoticed_stop() -> None:
    run = WatchedRun("stop worker:1 at 3s for 5s")
    run.runs()
    run.at(20).exits(0)
    run.exits(1)
    run.torn_down(TeardownReason.FINISHED)
    (report,) = run.watch.reports(result(None))
    assert told(report) == (3.0, None, None, None)


def test_exit_after_a_survived_stop_is_not_its_effect() -> None:
    run = WatchedRun("stop worker:1 at 3s for 5s")
    run.runs()
    run.at(20).exits(1, code=3)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:1")))
    assert told(report) == (3.0, None, None, None)


def test_stop_is_not_noticed_by_another_failure() -> None:
    run = WatchedRun("stop worker:1 at 3s for 2s")
    run.runs()
    run.at(9).exits(0, code=1)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:0")))
    assert told(report) == (3.0, None, None, None)


def test_last_of_two_stops_is_the_named_one() -> None:
    run = WatchedRun("stop worker:1 at 3s for 2s; stop worker:1 at 8s")
    run.runs()
    run.at(13).torn_down(TeardownReason.LIMIT)
    first, second = run.watch.reports(result(ended("worker:1", CauseKind.STOPPED)))
    assert told(first) == (3.0, None, None, None)
    assert told(second) == (8.0, 5.0, 0.25, None)


def test_task_that_outlives_its_signal_did_not_end_by_it() -> None:
    """TensorFlow swallows SIGTERM: what ends the task long after is something else."""
    run = WatchedRun("term worker:1 at 3s")
    run.runs()
    run.at(60).exits(1)
    run.exits(0)
    (report,) = run.watch.reports(result(None))
    assert told(report) == (3.0, None, None, None)


def test_exit_after_a_signal_is_its_effect() -> None:
    run = WatchedRun("term worker:1 at 3s")
    run.runs()
    run.at(5).exits(1, code=42)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:1")))
    assert told(report) == (3.0, 2.0, 0.25, None)


def test_exit_belongs_to_the_signal_it_died_of() -> None:
    run = WatchedRun("term worker:1 at 3s; kill worker:1 at 4s; signal USR1 worker:1 at 5s")
    run.runs()
    run.at(5.5).exits(1, signal=KILL)
    run.torn_down()
    reports = run.watch.reports(result(ended("worker:1")))
    assert [report.detection_s for report in reports] == [None, 1.5, None]


def test_signal_from_outside_is_not_a_fault() -> None:
    run = WatchedRun("term worker:1 at 3s")
    run.runs()
    run.at(4).exits(1, signal=KILL)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:1")))
    assert told(report) == (3.0, None, None, None)


def test_task_ended_by_orch_is_not_ended_by_the_fault() -> None:
    run = WatchedRun("term worker:1 at 3s")
    run.runs()
    run.at(4).torn_down(TeardownReason.REQUEST)
    run.exits(1, signal=TERM)
    assert run.state.tasks["worker:1"].phase is TaskPhase.STOPPED
    (report,) = run.watch.reports(result(None))
    assert told(report) == (3.0, None, None, None)


@pytest.mark.parametrize("other_failure_at", [3.11, 50.0])
@pytest.mark.parametrize("cause", ["worker:0", "worker:1"])
def test_run_that_continued_without_the_killed_task(cause: str, other_failure_at: float) -> None:
    """--on-failure continue: however it ended at last, that end was not the fault's."""
    run = WatchedRun("kill worker:1 at 3s", workers=3)
    run.runs()
    run.at(3.1).exits(1, signal=KILL)
    run.at(other_failure_at).exits(0, code=3)
    run.torn_down()
    (report,) = run.watch.reports(result(ended(cause)))
    assert told(report) == (3.0, 0.1, None, None)


def test_teardown_that_begins_late_still_belongs_to_the_failure() -> None:
    run = WatchedRun("kill worker:1 at 3s")
    run.runs()
    run.at(3.1).exits(1, signal=KILL)
    run.torn_down(after_s=60.0)
    (report,) = run.watch.reports(result(ended("worker:1", teardown_s=0.4)))
    assert told(report) == (3.0, 0.1, 0.4, None)


def test_fault_noticed_while_the_teardown_is_decided_belongs_to_it() -> None:
    """A peer can exit first, although the cause is the killed task."""
    run = WatchedRun("kill worker:1 at 3s")
    run.runs()
    run.at(3.1).exits(0, code=1)
    run.watch.decide_teardown(1, run.mono)
    run.at(3.2).exits(1, signal=KILL)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:1", teardown_s=0.4)))
    assert told(report) == (3.0, 0.2, 0.4, None)


@pytest.mark.parametrize("steps", [True, False])
def test_task_restarted_alone(steps: bool) -> None:
    run = WatchedRun("kill worker:1 at 3s")
    run.runs()
    if steps:
        run.trains(1, 5)
    run.at(3.2).exits(1, signal=KILL)
    planned = events.TaskRestartPlanned(
        at=run.mono, mono=run.mono, task="worker:1", delay_s=1.0, text="SIGKILL"
    )
    run.happens(planned)
    run.at(4.2).started(1)
    run.at(5.2).ready(1)
    run.at(6.2).trains(1, 2)
    (report,) = run.watch.reports(result(None))
    assert told(report) == (3.0, 0.2, None, 3.0 if steps else 2.0)


def test_times_count_from_the_start_of_the_run() -> None:
    run = WatchedRun("kill worker:1 at 2s in attempt 2")
    run.runs()
    run.at(10).exits(0, code=1)
    run.torn_down()
    end = ended("worker:0")
    run.restarts(end)
    run.at(12).runs(attempt=2)
    run.at(14.1).exits(1, signal=KILL)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:1", attempt=2), end))
    assert told(report) == (14.0, 0.1, 0.25, None)


def test_own_exception_is_still_the_noticed_exit() -> None:
    run = WatchedRun("int worker:1 at 3s")
    run.runs()
    symptom = Symptom(kind=SymptomKind.OWN, exception="KeyboardInterrupt")
    run.at(3.7).exits(1, code=1, symptom=symptom)
    run.torn_down()
    (report,) = run.watch.reports(result(ended("worker:1")))
    assert told(report)[:2] == (3.0, 0.7)
    assert run.mono == START + 3.7
