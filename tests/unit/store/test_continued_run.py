"""A run whose supervisor was on another machine is read by the clock of the one that continues it."""

from __future__ import annotations

import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from making import JOB, changed
from pydantic import BaseModel
from run_records import make_run, one_task, view_of

from orchestrator.core.state import events
from orchestrator.core.state.events import NoticeSource, Progress, StopReason
from orchestrator.core.state.result import AttemptEnd, Cause, CauseKind, LeftProcess, RunResult
from orchestrator.links.client_link import ClientLink, QueuedOrder, RefusedOrder
from orchestrator.links.control import NoticeOrder, StopOrder
from orchestrator.links.signal_inbox import NOTICE_SIGNAL, SignalInbox
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor.continuing import Earlier, read_earlier
from orchestrator.supervisor.notices import Notices
from orchestrator.supervisor.queued import Waiting

# By this the clock of the other machine is ahead.
_AHEAD_S = 5000.0
_LEFT = LeftProcess(pid=7, start_ticks=7, user="other", command="train")
_SPEC = changed(JOB, link_timeout_s=10.0, grace_s=10.0, failure_grace_s=0.5)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Restore the signal mask. A wait blocks signals until the next inbox, and later programs would inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interrupted(*more: events.Event, age_s: float = 100.0) -> RunStore:
    """A run that began `age_s` ago on another machine. Its supervisor was killed."""
    at, mono = time.time() - age_s, time.monotonic() - age_s + _AHEAD_S
    store = make_run(job="7")
    plan, *rest = one_task(mono)
    assert isinstance(plan, events.AttemptPlanned)
    (task,) = plan.tasks
    planned = plan.model_copy(update={"tasks": (replace(task, host="n2"),)})
    for event in (planned, *rest, *more):
        store.append(event.model_copy(update={"at": at, "mono": mono}))
    store.close()
    return store


def continued(store: RunStore, ahead_s: float = 0.0) -> Earlier:
    """Continue the run, on a machine whose clock is ahead of this one."""
    adopted = RunStore.adopt(store.paths.root, None)
    record = adopted.record
    earlier = read_earlier(adopted, record, _SPEC)
    clocks = [each.model_copy(update={"shift_s": each.shift_s + ahead_s}) for each in earlier.clocks]
    adopted.take_over(record.model_copy(update={"earlier_clocks": tuple(clocks)}))
    assert earlier.restart is not None
    adopted.append(earlier.restart.model_copy(update={"mono": earlier.restart.mono + ahead_s}))
    adopted.close()
    return earlier


def pretend_slurm(
    directory: Path, monkeypatch: pytest.MonkeyPatch, state: str, restarts: str, preempted: str = "None"
) -> None:
    """Programs that answer like Slurm's about job 7, on whose node this process runs."""
    job = (
        f"JobId=7 JobState={state} Reason=None Requeue=1 {restarts} BatchFlag=1 Reboot=0"
        f" PreemptTime={preempted} SuspendTime=None"
    )
    for name, text in (("squeue", state), ("scontrol", job)):
        (directory / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")


def waited(store: RunStore, *orders: BaseModel) -> tuple[Waiting, RunResult]:
    """Let the run wait for its nodes, with a client that sends these orders and exits."""
    adopted = RunStore.adopt(store.paths.root, None)
    earlier = read_earlier(adopted, adopted.record, _SPEC)
    ours, theirs = socket.socketpair()
    with ours, closing(adopted):
        with theirs:
            theirs.sendall(b"".join(order.model_dump_json().encode() + b"\n" for order in orders))
        waiting = Waiting(_SPEC, adopted, ClientLink(ours), None, earlier)
        result = waiting.wait()
    assert isinstance(result, RunResult)
    return waiting, result


def test_earlier_times_are_converted() -> None:
    store = interrupted()
    earlier = continued(store)
    view = view_of(store.paths)
    view.refresh()
    for state in (earlier.state, view.state):
        task = state.tasks["worker:0"]
        assert task.started_mono == pytest.approx(time.monotonic() - 100, abs=30)
    assert view.state.history[0].attempt == 1


def test_times_are_converted_again_by_the_next_supervisor() -> None:
    store = interrupted()
    continued(store, 2 * _AHEAD_S)
    clocks = continued(store).clocks
    assert [clock.shift_s for clock in clocks] == pytest.approx([-_AHEAD_S, -2 * _AHEAD_S], abs=30)
    first, *_, last = view_of(store.paths).refresh()
    assert first.mono == pytest.approx(time.monotonic() - 100, abs=30)
    assert last.mono == pytest.approx(time.monotonic(), abs=30)


@pytest.mark.parametrize(
    ("ends", "age_s", "delay_s"),
    [
        ((events.TeardownEnded(at=0, mono=0),), 1.0, 0.0),
        ((events.TeardownEnded(at=0, mono=0, left=(_LEFT,)),), 1.0, 29.5),
        ((), 1.0, 29.5),
        ((), 100.0, 0.0),
        (
            (events.HostLost(at=0, mono=0, host="n2", reason="cut"), events.TeardownEnded(at=0, mono=0)),
            1.0,
            29.5,
        ),
    ],
)
def test_attempt_waits_for_the_hosts_that_did_not_report_their_end(
    ends: tuple[events.Event, ...], age_s: float, delay_s: float
) -> None:
    restart = continued(interrupted(*ends, age_s=age_s)).restart
    assert restart is not None
    assert restart.delay_s == pytest.approx(delay_s, abs=20 if delay_s else 0.0)


def test_attempt_whose_tasks_may_have_started_is_waited_for() -> None:
    """The supervisor was killed after its order to start the tasks, before it had heard of one."""
    store = interrupted(events.TeardownEnded(at=0, mono=0), age_s=1.0)
    (plan, *_) = one_task(time.monotonic())
    adopted = RunStore.adopt(store.paths.root, None)
    adopted.append(plan.model_copy(update={"attempt": 2, "at": time.time()}))
    adopted.close()
    restart = continued(store).restart
    assert restart is not None
    assert restart.delay_s > 0


def test_refusal_before_the_next_attempt_keeps_the_earlier_ones() -> None:
    store = interrupted(events.TeardownEnded(at=0, mono=0))
    _, result = waited(store, RefusedOrder(text="too few nodes"))
    assert (result.exit_code, result.attempts, len(result.earlier_attempts)) == (2, 1, 1)
    assert [task.task for task in result.tasks] == ["worker:0"]


@pytest.mark.parametrize("has_trained", [True, False])
def test_notice_while_the_nodes_are_checked_ends_the_wait(has_trained: bool) -> None:
    store = interrupted(events.TeardownEnded(at=0, mono=0)) if has_trained else make_run(job="7")
    store.close()
    waiting, result = waited(store, NoticeOrder(source=NoticeSource.SIGNAL))
    assert (result.outcome, result.exit_code, waiting.is_requeued) == ("stopped", 42, False)
    assert result.cause is not None
    assert result.cause.text == "its machines go in 2m (SIGUSR2); no task had started"


def test_signal_between_two_inboxes_reaches_the_next() -> None:
    """A supervisor has one inbox for the wait, and another one for the run."""
    with SignalInbox([NOTICE_SIGNAL]) as first:
        first.defer()
    signal.raise_signal(NOTICE_SIGNAL)  # only this thread: other threads of the test process do not defer it
    with SignalInbox([NOTICE_SIGNAL]) as second:
        second.wait(60.0)
        assert second.take() == [NOTICE_SIGNAL]


def test_notice_to_a_run_without_machines_has_no_effect() -> None:
    store = make_run(job="7")
    store.close()
    queued = QueuedOrder(job="7", reason="Resources", start="")
    notice = NoticeOrder(source=NoticeSource.SIGNAL)
    assert waited(store, queued, notice, RefusedOrder(text="too few nodes"))[1].exit_code == 2


# `restarts`: those that `scontrol show job` reports; None for a preempted job that will not start again.
@pytest.mark.parametrize(
    ("order", "state", "restarts", "expected"),
    [
        (StopOrder(reason=StopReason.TERMINATE), "COMPLETING", 1, (42, True)),
        (RefusedOrder(text="n2: Slurm's job 7 is ending"), "COMPLETING", 1, (42, True)),
        (None, "COMPLETING", 1, (42, True)),  # the client was killed
        (None, "COMPLETING", 0, (143, False)),  # scancel
        (None, "COMPLETING", None, (42, False)),
        (StopOrder(reason=StopReason.TERMINATE), "RUNNING", 0, (143, False)),
        (StopOrder(reason=StopReason.DOWN), "COMPLETING", 1, (143, False)),
        (RefusedOrder(text="too few nodes"), "RUNNING", 0, (2, False)),
    ],
)
def test_end_of_the_job_while_the_nodes_are_checked_is_a_notice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: StopOrder | RefusedOrder | None,
    state: str,
    restarts: int | None,
    expected: tuple[int, bool],
) -> None:
    """If Slurm starts the job again, the run has not ended: the job continues it."""
    preempted = "2026-11-23T20:17:48" if restarts is None else "None"
    pretend_slurm(tmp_path, monkeypatch, state, f"Restarts={restarts or 0}", preempted)
    waiting, result = waited(interrupted(events.TeardownEnded(at=0, mono=0)), *([order] if order else []))
    assert (result.exit_code, waiting.is_requeued) == expected


_STEP = events.TaskProgressed(at=0, mono=0, task="worker:0", progress=Progress(phase="training", step=3))


@pytest.mark.parametrize(
    ("kind", "happened", "is_requeued"),
    [
        (CauseKind.HOST, (_STEP,), True),
        (CauseKind.HOST, (), False),  # the next start would meet the same node
        (CauseKind.EXITED, (_STEP,), False),
        (CauseKind.NOTICE, (), True),
    ],
)
def test_batch_job_is_requeued_after_a_notice_or_the_loss_of_a_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: CauseKind,
    happened: tuple[events.Event, ...],
    is_requeued: bool,
) -> None:
    pretend_slurm(tmp_path, monkeypatch, "RUNNING", "Restarts=0")
    view = view_of(interrupted(*happened).paths)
    view.refresh()
    run = SimpleNamespace(state=view.state, worked=True)
    result = _result(kind)
    notices = Notices(changed(_SPEC, slurm_job="7"), run, deque())
    requeued = notices.requeued(result)
    assert (requeued is not None) == is_requeued
    if requeued is not None and requeued.cause is not None:
        assert requeued.cause.text.endswith(
            "Slurm starts its job again, and the run continues with attempt 2"
        )
    # After the loss of a host, the job is not requeued either if the next attempt had not begun.
    ended = AttemptEnd(attempt=1, cause=result.cause, first_failure=None, exit_code=137)
    run.state = replace(view.state, history=(ended,))
    assert (notices.requeued(result) is not None) == (kind is CauseKind.NOTICE)


def _result(kind: CauseKind) -> RunResult:
    return RunResult(
        run_id="run",
        outcome="failed",
        exit_code=137,
        attempts=1,
        cause=Cause(task=None, kind=kind, text="n3 was lost", host="n3"),
        first_failure=None,
        detection_s=None,
        teardown_s=None,
        tasks=(),
    )


def test_run_that_only_waited_begins_its_first_attempt() -> None:
    store = make_run(job="7")
    store.close()
    adopted = RunStore.adopt(store.paths.root, None)
    assert read_earlier(adopted, adopted.record, _SPEC).restart is None
    adopted.close()
