"""Without --stall-timeout, a task that is silent and idle is reported and not ended: events in, actions out."""

from __future__ import annotations

from event_making import START, deadline, feed, lifecycle_of, planned, ready, running, started, teardowns
from job_making import JOB, changed
from test_lifecycle_limits import AT_WORK, STOPPED, stacks
from test_lifecycle_restarts import progressed

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Deadline, TakeStacks
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events
from orchestrator.core.state.result import TaskStack

WATCHED = changed(JOB, silence_notice_s=300.0)
T = START
QUIET = {"worker:0": 0.5, "worker:1": 400.0}
IN_TENSORFLOW = TaskStack(
    how="signal", state="S", frames=("tensorflow/python/eager/execute.py:53 quick_execute", "train.py:9 main")
)


def silence(mono: float, quiet_s: dict[str, float], busy: tuple[str, ...] = ()) -> events.DeadlineReached:
    return events.DeadlineReached(at=mono, mono=mono, deadline=Deadline.SILENCE, quiet_s=quiet_s, busy=busy)


def report(lifecycle: Lifecycle, mono: float, quiet_s: dict[str, float], **of: TaskStack) -> tuple[str, ...]:
    """Let the deadline pass, and return all notices so far."""
    assert feed(lifecycle, [silence(mono, quiet_s)]) == [TakeStacks(Deadline.SILENCE)]
    assert teardowns(feed(lifecycle, [stacks(mono + 1, Deadline.SILENCE, **of)])) == []
    return lifecycle.state.notices


def test_silent_and_idle_task_is_reported_with_its_place_and_not_ended() -> None:
    lifecycle = running(spec=WATCHED)
    assert lifecycle.next_deadline() == (T + 300, Deadline.SILENCE)
    assert report(lifecycle, T + 400, QUIET, w0=IN_TENSORFLOW, w1=AT_WORK) == (
        "worker:1 has been silent and idle for 6m40s: in load_data (train.py:31)",
    )


def test_silence_is_reported_once_until_the_task_writes_again() -> None:
    lifecycle = running(spec=WATCHED)
    report(lifecycle, T + 400, QUIET, w0=IN_TENSORFLOW, w1=AT_WORK)
    assert feed(lifecycle, [silence(T + 700, {"worker:0": 0.5, "worker:1": 700.0})]) == []
    assert feed(lifecycle, [silence(T + 1000, {"worker:0": 0.5, "worker:1": 2.0})]) == []
    assert len(report(lifecycle, T + 1400, QUIET, w0=IN_TENSORFLOW, w1=AT_WORK)) == 2


def test_output_progress_and_work_are_not_silence() -> None:
    lifecycle = running(spec=WATCHED)
    assert feed(lifecycle, [silence(T + 300, {"worker:0": 1.0, "worker:1": 1.0})]) == []
    assert feed(lifecycle, [silence(T + 700, {}, busy=("worker:0", "worker:1"))]) == []
    assert (
        feed(lifecycle, [progressed(0, 1, T + 990), progressed(1, 1, T + 990), silence(T + 1000, {})]) == []
    )
    assert lifecycle.state.notices == ()


def test_task_that_waits_in_tensorflow_for_a_task_with_output_is_not_reported() -> None:
    lifecycle = running(spec=WATCHED)
    assert report(lifecycle, T + 400, QUIET, w0=AT_WORK, w1=IN_TENSORFLOW) == ()


def test_blocking_task_is_named_if_all_are_silent() -> None:
    lifecycle = running(spec=WATCHED)
    (notice,) = report(lifecycle, T + 300, {}, w0=IN_TENSORFLOW, w1=AT_WORK)
    assert (
        notice.startswith("worker:1 has been silent and idle for 5m: in ")
        and "while the other one waits in TensorFlow" in notice
    )


def test_stopped_task_is_reported_as_stopped() -> None:
    (notice,) = report(running(spec=WATCHED), T + 300, {}, w0=IN_TENSORFLOW, w1=STOPPED)
    assert notice == "worker:1 has been silent and idle for 5m: stopped by SIGSTOP"


def test_task_that_hangs_before_it_is_ready_is_reported() -> None:
    lifecycle = lifecycle_of(WATCHED, T)
    feed(lifecycle, [planned(1), started(0)])
    assert report(lifecycle, T + 300, {}, w0=AT_WORK)


def test_silence_is_not_watched_with_a_stall_limit() -> None:
    lifecycle = running(spec=changed(WATCHED, stall_timeout_s=900.0))
    assert lifecycle.next_deadline() == (T + 900, Deadline.STALL_LIMIT)
    assert feed(lifecycle, [deadline(Deadline.SILENCE, T + 300), ready(0)]) == []


def test_limit_is_five_minutes() -> None:
    assert JobSpec.model_fields["silence_notice_s"].default == 300.0
