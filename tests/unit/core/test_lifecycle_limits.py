"""Limits on time and memory, requested signals, a full disk: events in, actions out, no clock."""

from __future__ import annotations

import signal

from event_making import (
    START,
    deadline,
    emptied,
    exited,
    feed,
    lifecycle_of,
    planned,
    ready,
    running,
    started,
    stop,
    teardowns,
    the_result,
)
from job_making import JOB, changed
from test_lifecycle_restarts import at_step, attempt, progressed

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.actions import (
    Action,
    Deadline,
    Finish,
    PlanAttempt,
    SendSignal,
    SweepHost,
    TakeStacks,
    TearDown,
)
from orchestrator.core.lifecycle.lifecycle import PLAN_MARGIN_S, Lifecycle
from orchestrator.core.state import events
from orchestrator.core.state.events import StopReason, TeardownReason
from orchestrator.core.state.result import CauseKind, RunResult, TaskStack

STALL = changed(JOB, stall_timeout_s=5.0)
LATE = changed(JOB, start_timeout_s=120.0)
T = START
AT_WORK = TaskStack(how="signal", state="S", frames=("train.py:31 load_data",))
STOPPED = TaskStack(how="none", state="T", note="stopped")


def silence(mono: float, quiet_s: dict[str, float], busy: tuple[str, ...] = ()) -> events.DeadlineReached:
    return events.DeadlineReached(
        at=mono, mono=mono, deadline=Deadline.STALL_LIMIT, quiet_s=quiet_s, busy=busy
    )


def stacks(mono: float, why: str, **of: TaskStack) -> events.StacksTaken:
    taken = {f"worker:{name[1:]}": stack for name, stack in of.items()}
    return events.StacksTaken(at=mono, mono=mono, why=why, stacks=taken)


def end(lifecycle: Lifecycle, mono: float = T + 99, tasks: int = 2) -> RunResult:
    gone = [exited(index, None, 15, order=index, mono=mono) for index in range(tasks)]
    return the_result(feed(lifecycle, [*gone, emptied(mono)]))


def test_silent_task_is_blamed_with_all_stacks() -> None:
    lifecycle = running(spec=STALL)
    assert lifecycle.next_deadline() == (T + 5, Deadline.STALL_LIMIT)
    assert feed(lifecycle, [silence(T + 5, {"worker:0": 0.1, "worker:1": 5.0})]) == [
        TakeStacks(Deadline.STALL_LIMIT)
    ]
    assert lifecycle.next_deadline() is None  # until the stacks have arrived
    taken = stacks(T + 6, Deadline.STALL_LIMIT, w0=AT_WORK, w1=STOPPED)
    assert feed(lifecycle, [taken]) == [TearDown(TeardownReason.LIMIT, JOB.failure_grace_s)]
    result = end(lifecycle)
    assert (result.outcome, result.exit_code) == ("timed_out", 124)
    assert result.cause is not None and (result.cause.task, result.cause.kind) == (
        "worker:1",
        CauseKind.STOPPED,
    )
    assert result.stacks == {"worker:0": AT_WORK, "worker:1": STOPPED}
    assert [task.end for task in result.tasks] == ["stopped by orch", "stopped by orch"]


def test_output_and_progress_are_signs_of_life() -> None:
    lifecycle = running(spec=STALL)
    assert feed(lifecycle, [progressed(1, 3, T + 4), silence(T + 5, {"worker:0": 1.0})]) == []
    due = lifecycle.next_deadline()
    assert due is not None and T + 5 < due[0] <= T + 10


def test_busy_task_is_not_blamed_while_others_write() -> None:
    lifecycle = running(spec=STALL)
    quiet = {"worker:0": 0.0, "worker:1": 60.0}
    taken = {"w0": AT_WORK, "w1": AT_WORK}
    feed(lifecycle, [silence(T + 5, quiet, busy=("worker:1",))])
    assert feed(lifecycle, [stacks(T + 5.1, Deadline.STALL_LIMIT, **taken)]) == []
    due = lifecycle.next_deadline()
    assert due is not None and due[0] > T + 5.1
    feed(lifecycle, [silence(due[0], quiet)])
    assert teardowns(feed(lifecycle, [stacks(due[0], Deadline.STALL_LIMIT, **taken)]))


def test_stopped_task_is_blamed_if_any_task_is_silent() -> None:
    lifecycle = running(spec=STALL)
    # worker:1 was busy in the last sample before it was stopped, and wrote last.
    feed(lifecycle, [silence(T + 5, {"worker:1": 0.5}, busy=("worker:0", "worker:1"))])
    assert teardowns(feed(lifecycle, [stacks(T + 5.1, Deadline.STALL_LIMIT, w0=AT_WORK, w1=STOPPED)]))
    result = end(lifecycle)
    assert result.cause is not None and result.cause.task == "worker:1"


def test_busy_tasks_may_all_be_silent_for_a_while() -> None:
    lifecycle = running(spec=STALL)
    both = ("worker:0", "worker:1")
    assert feed(lifecycle, [silence(T + 5, {}, busy=both)]) == [TakeStacks(Deadline.STALL_LIMIT)]
    taken = {"w0": AT_WORK, "w1": AT_WORK}
    assert feed(lifecycle, [stacks(T + 6, Deadline.STALL_LIMIT, **taken)]) == []
    assert feed(lifecycle, [silence(T + 15, {}, busy=both)]) == [TakeStacks(Deadline.STALL_LIMIT)]
    assert teardowns(feed(lifecycle, [stacks(T + 16, Deadline.STALL_LIMIT, **taken)]))


def test_stopped_task_is_blamed_while_others_are_busy() -> None:
    lifecycle = running(spec=STALL)
    feed(lifecycle, [silence(T + 5, {}, busy=("worker:0", "worker:1"))])
    assert teardowns(feed(lifecycle, [stacks(T + 6, Deadline.STALL_LIMIT, w0=AT_WORK, w1=STOPPED)]))
    result = end(lifecycle)
    assert result.cause is not None and result.cause.task == "worker:1"


def test_task_waiting_in_tensorflow_is_not_blamed_while_others_write() -> None:
    lifecycle = running(spec=STALL)
    quiet = {"worker:0": 0.5, "worker:1": 60.0}
    feed(lifecycle, [silence(T + 5, quiet)])
    waiting = TaskStack(
        how="signal", state="S", frames=("tensorflow/python/eager/execute.py:53 quick_execute",)
    )
    assert feed(lifecycle, [stacks(T + 6, Deadline.STALL_LIMIT, w0=AT_WORK, w1=waiting)]) == []
    due = lifecycle.next_deadline()
    assert due is not None and due[0] > T + 6
    # A task outside TensorFlow cannot be waiting for the other one.
    feed(lifecycle, [silence(due[0], quiet)])
    assert teardowns(feed(lifecycle, [stacks(due[0], Deadline.STALL_LIMIT, w0=waiting, w1=AT_WORK)]))
    result = end(lifecycle)
    assert result.cause is not None and result.cause.task == "worker:1"


def test_stall_limit_applies_from_ready_to_exit() -> None:
    lifecycle = lifecycle_of(STALL, T)
    feed(lifecycle, [planned(2), started(0), started(1)])
    assert lifecycle.next_deadline() is None or lifecycle.next_deadline()[1] != Deadline.STALL_LIMIT  # type: ignore[index]
    feed(lifecycle, [ready(0, T + 100), ready(1, T + 101)])
    assert lifecycle.next_deadline() == (T + 105, Deadline.STALL_LIMIT)
    feed(lifecycle, [exited(0)])
    assert lifecycle.next_deadline() == (T + 106, Deadline.STALL_LIMIT)


def test_stacks_taken_for_a_user_blame_no_task() -> None:
    lifecycle = running(spec=STALL)
    assert feed(lifecycle, [stacks(T + 1, "user", w1=STOPPED)]) == []
    assert end(lifecycle).stacks == {}


def test_failure_while_stacks_are_taken_wins() -> None:
    lifecycle = running(spec=STALL)
    feed(lifecycle, [silence(T + 5, {}), exited(1, 3)])
    assert feed(lifecycle, [stacks(T + 6, Deadline.STALL_LIMIT, w0=AT_WORK)]) == []
    result = the_result(feed(lifecycle, [exited(0, None, 15, order=1), emptied()]))
    assert (result.outcome, result.exit_code) == ("failed", 3)


def test_task_that_never_gets_ready_is_blamed() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(3), *map(started, range(3)), ready(0, T + 3), ready(2, T + 4)])
    assert (lifecycle.next_deadline() or (0.0, "")) <= (T + 123, Deadline.START_LIMIT)
    assert feed(lifecycle, [deadline(Deadline.START_LIMIT, T + 123)]) == [TakeStacks(Deadline.START_LIMIT)]
    feed(lifecycle, [stacks(T + 124, Deadline.START_LIMIT, w1=AT_WORK)])
    result = end(lifecycle, tasks=3)
    assert (result.outcome, result.exit_code) == ("timed_out", 124)
    assert result.cause is not None and result.cause.task == "worker:1"
    assert result.cause.text == (
        "not ready 2m (--start-timeout) after the first task was (starting, 2m4s; in train.py:31 load_data)"
    )


def test_start_limit_begins_with_the_first_ready_task() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1)])
    assert lifecycle.next_deadline() is None
    assert feed(lifecycle, [deadline(Deadline.START_LIMIT, T + 9999)]) == []


def test_task_that_gets_ready_while_stacks_are_taken_is_not_blamed() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0)])
    feed(lifecycle, [deadline(Deadline.START_LIMIT, T + 120), ready(1, T + 121)])
    assert feed(lifecycle, [stacks(T + 122, Deadline.START_LIMIT, w1=AT_WORK)]) == []
    assert lifecycle.next_deadline() is None


def test_stall_is_restarted_like_a_failure() -> None:
    lifecycle = at_step(changed(STALL, on_failure=FailurePolicy.RESTART))
    feed(lifecycle, [silence(T + 5, {}), stacks(T + 6, Deadline.STALL_LIMIT, w0=AT_WORK, w1=STOPPED)])
    actions = feed(lifecycle, [exited(0, None, 15), exited(1, None, 9, order=1), emptied(T + 7)])
    assert not any(isinstance(action, Finish) for action in actions)
    assert feed(lifecycle, [deadline(Deadline.RESTART, T + 8)]) == [PlanAttempt(2)]
    feed(lifecycle, attempt(2, T + 9))
    result = the_result(feed(lifecycle, [exited(0), exited(1, order=1), emptied()]))
    assert (result.exit_code, result.stacks) == (0, {})
    assert result.earlier_attempts[0].exit_code == 124


def test_task_over_the_memory_limit_is_killed_and_is_the_cause() -> None:
    lifecycle = running()
    over = events.MemoryExceeded(at=T, mono=T, task="worker:1", memory_bytes=3 << 30, limit_bytes=2 << 30)
    assert feed(lifecycle, [over]) == [SendSignal("worker:1", signal.SIGKILL)]
    feed(lifecycle, [exited(1, None, 9)])
    result = the_result(feed(lifecycle, [exited(0, None, 15, order=1), emptied()]))
    assert result.exit_code == 137
    assert result.cause is not None and (result.cause.task, result.cause.kind) == (
        "worker:1",
        CauseKind.LIMIT,
    )
    assert "3" in result.cause.text and "--memory-limit" in result.cause.text


def test_signal_is_sent_to_live_tasks_only() -> None:
    lifecycle = running()
    order = events.SignalRequested(at=T, mono=T, task="worker:0", signal=10, by="user")
    assert feed(lifecycle, [order]) == [SendSignal("worker:0", 10)]
    assert feed(lifecycle, [exited(0), order]) == []


def test_full_disk_ends_the_run_without_a_restart() -> None:
    lifecycle = at_step(changed(JOB, on_failure=FailurePolicy.RESTART))
    full = events.StorageFailed(at=T, mono=T, reason="/run/events.jsonl: No space left on device")
    actions: list[Action] = feed(lifecycle, [full])
    assert actions == [TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)]
    result = end(lifecycle)
    assert (result.outcome, result.exit_code, result.attempts) == ("failed", 125, 1)
    assert result.cause is not None and result.cause.kind is CauseKind.LIMIT
    assert "No space left" in result.cause.text


def test_agent_without_any_stack_is_lost() -> None:
    lifecycle = running(spec=STALL)
    feed(lifecycle, [silence(T + 5, {})])
    assert feed(lifecycle, [stacks(T + 9, Deadline.STALL_LIMIT)]) == [SweepHost()]
    result = the_result(feed(lifecycle, [emptied(T + 10)]))
    assert result.cause is not None and (result.exit_code, result.cause.kind) == (125, CauseKind.ORCH)
    assert "agent does not answer" in result.cause.text


def test_grace_period_is_shortened_when_the_client_leaves() -> None:
    lifecycle = running()
    assert feed(lifecycle, [stop(mono=T)]) == [TearDown(TeardownReason.REQUEST, JOB.grace_s)]
    assert feed(lifecycle, [stop(StopReason.CLIENT_GONE, mono=T + 1)]) == [
        TearDown(TeardownReason.REQUEST, JOB.failure_grace_s)
    ]
    assert end(lifecycle).exit_code == 130


def test_training_task_without_port_is_not_late() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0), progressed(1, 3)])
    due = lifecycle.next_deadline()
    assert due is None or due[1] != Deadline.START_LIMIT


def test_delay_before_a_task_restart_is_not_a_missed_start() -> None:
    spec = changed(LATE, on_failure=FailurePolicy.RESTART_TASK, start_timeout_s=0.5)
    lifecycle = at_step(spec)
    feed(lifecycle, [exited(1, None, 9)])
    assert lifecycle.next_deadline() == (T + 1, Deadline.TASK_RESTART)
    feed(lifecycle, [deadline(Deadline.TASK_RESTART, T + 1), started(1, T + 1)])
    assert lifecycle.next_deadline() == (T + 1.5, Deadline.START_LIMIT)


def test_agent_that_does_not_hold_ports_in_time_is_lost() -> None:
    lifecycle = lifecycle_of(JOB, T)
    assert lifecycle.next_deadline() == (T + PLAN_MARGIN_S, Deadline.PLAN)
    assert feed(lifecycle, [deadline(Deadline.PLAN, T + PLAN_MARGIN_S)]) == [SweepHost()]
    assert the_result(feed(lifecycle, [emptied(T + 61)])).exit_code == 125


def joins(index: int, server: str | None, mono: float, phase: str = "waiting") -> events.TaskProgressed:
    progress = events.Progress(phase=phase, server=server)
    return events.TaskProgressed(at=mono, mono=mono, task=f"worker:{index}", progress=progress)


def end_at_start_limit(lifecycle: Lifecycle, mono: float, tasks: int = 2) -> RunResult:
    assert feed(lifecycle, [deadline(Deadline.START_LIMIT, mono)]) == [TakeStacks(Deadline.START_LIMIT)]
    feed(lifecycle, [stacks(mono + 1, Deadline.START_LIMIT, w0=AT_WORK, w1=AT_WORK)])
    return end(lifecycle, tasks=tasks)


def test_tasks_that_wait_at_an_address_of_their_own_are_named_with_it() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(3), *map(started, range(3))])
    feed(lifecycle, [joins(index, "localhost:12345", T + 3 + index) for index in range(3)])
    assert lifecycle.next_deadline() == (T + 123, Deadline.START_LIMIT)
    result = end_at_start_limit(lifecycle, T + 123, tasks=3)
    assert (result.outcome, result.exit_code) == ("timed_out", 124)
    assert result.cause is not None and (result.cause.task, result.cause.kind) == (
        "worker:0",
        CauseKind.LIMIT,
    )
    assert result.cause.text == (
        "not joined after 2m (--start-timeout): it, worker:1 and worker:2 wait for the others"
        " at localhost:12345, not at its own address 127.0.0.1:20000 (its script does not use orch's TF_CONFIG)"
    )


def test_missing_task_is_named_with_the_address_at_which_another_waits_for_it() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1), joins(0, "localhost:12345", T + 3)])
    cause = end_at_start_limit(lifecycle, T + 123).cause
    assert cause is not None and cause.task == "worker:1"
    assert "; in train.py:31 load_data)" in cause.text
    assert "; worker:0 waits for it at localhost:12345, not at its own address 127.0.0.1:20000" in cause.text


def test_task_that_waits_for_one_that_has_ended_is_named_with_it() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1), exited(1, mono=T + 2)])
    feed(lifecycle, [ready(0, T + 3), joins(0, "127.0.0.1:20000", T + 3)])
    result = end_at_start_limit(lifecycle, T + 123)
    assert result.cause is not None and result.cause.text == (
        "not joined after 2m (--start-timeout): it waits for the others at 127.0.0.1:20000; worker:1 ended before"
    )


def test_stopped_task_is_named_before_those_that_wait_for_it() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0, T + 3), ready(1, T + 3)])
    feed(lifecycle, [joins(0, None, T + 3), joins(1, None, T + 3), deadline(Deadline.START_LIMIT, T + 123)])
    feed(lifecycle, [stacks(T + 124, Deadline.START_LIMIT, w0=AT_WORK, w1=STOPPED)])
    cause = end(lifecycle).cause
    assert cause is not None and (cause.task, cause.kind) == ("worker:1", CauseKind.STOPPED)


def test_start_limit_ends_when_all_have_joined_at_any_address() -> None:
    lifecycle = lifecycle_of(LATE, T)
    feed(lifecycle, [planned(2), started(0), started(1)])
    feed(lifecycle, [joins(index, "localhost:12345", T + 3) for index in (0, 1)])
    feed(lifecycle, [joins(index, "localhost:12345", T + 4, phase="training") for index in (0, 1)])
    assert lifecycle.next_deadline() is None


def test_start_limit_counts_a_server_of_a_cluster_at_another_address() -> None:
    lifecycle = lifecycle_of(LATE, T)
    serving = events.Progress(phase="serving", server="localhost:12345", cluster=2)
    report = events.TaskProgressed(at=T + 3, mono=T + 3, task="worker:0", progress=serving)
    feed(lifecycle, [planned(2), started(0), started(1), report])
    assert lifecycle.next_deadline() == (T + 123, Deadline.START_LIMIT)


def test_start_limit_does_not_count_the_wait_for_a_restart() -> None:
    spec = changed(LATE, on_failure=FailurePolicy.RESTART_TASK)
    lifecycle = lifecycle_of(spec, T)
    feed(lifecycle, [planned(2), started(0), started(1), ready(0, T + 3), ready(1, T + 3)])
    feed(lifecycle, [joins(0, None, T + 3), progressed(1, 1, T + 3), exited(1, 3, mono=T + 4)])
    assert (lifecycle.next_deadline() or (0.0, ""))[1] != Deadline.START_LIMIT
