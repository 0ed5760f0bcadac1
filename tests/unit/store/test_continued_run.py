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
from making import JOB, attempt_end, cause, changed, event, planned_task, progressed, run_result
from pydantic import BaseModel
from run_records import make_run, one_task, view_of

from orchestrator.core.state import events
from orchestrator.core.state.events import NoticeSource, StopReason
from orchestrator.core.state.result import CauseKind, RunResult
from orchestrator.links.client_link import ClientLink
from orchestrator.links.orders import NoticeOrder, QueuedOrder, RefusedOrder, StopOrder
from orchestrator.links.signal_inbox import NOTICE_SIGNAL, SignalInbox
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor.continuing import Earlier, read_earlier
from orchestrator.supervisor.notices import Notices
from orchestrator.supervisor.queued import Waiting
from worker.wire.facts import LeftProcess

# By this the clock of the other machine is ahead.
_AHEAD_S = 5000.0
_SPEC = changed(JOB, link_timeout_s=10.0, grace_s=10.0, failure_grace_s=0.5)
_REFUSED = RefusedOrder(text="too few nodes")
_NOTICE = NoticeOrder(source=NoticeSource.SIGNAL)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Restore the signal mask. A wait blocks signals until the next inbox, and later programs would inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interrupted(*more: events.Event, age_s: float = 100.0) -> RunStore:
    """A run that began `age_s` ago on another machine. Its supervisor was killed."""
    at, mono = time.time() - age_s, time.monotonic() - age_s + _AHEAD_S
    plan, *rest = one_task(mono)
    planned = plan.model_copy(update={"tasks": (planned_task(host="n2"),)})
    with closing(make_run(job="7")) as store:
        for each in (planned, *rest, *more):
            store.append(each.model_copy(update={"at": at, "mono": mono}))
    return store


def unstarted() -> RunStore:
    store = make_run(job="7")
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


_EMPTY = event(events.TeardownEnded)
_LEFT = event(events.TeardownEnded, left=(LeftProcess(pid=7, start_ticks=7, user="other", command="train"),))
_LOST = event(events.HostLost, host="n2", reason="cut")


def test_attempt_waits_for_the_hosts_that_did_not_report_their_end() -> None:
    rows: tuple[tuple[tuple[events.Event, ...], float, float], ...] = (
        ((_EMPTY,), 1.0, 0.0),
        ((_LEFT,), 1.0, 29.5),
        ((), 1.0, 29.5),
        ((), 100.0, 0.0),
        ((_LOST, _EMPTY), 1.0, 29.5),
    )
    for ends, age_s, delay_s in rows:
        restart = continued(interrupted(*ends, age_s=age_s)).restart
        assert restart is not None
        assert restart.delay_s == pytest.approx(delay_s, abs=20 if delay_s else 0.0), (ends, age_s)


def test_attempt_whose_tasks_may_have_started_is_waited_for() -> None:
    """The supervisor was killed after its order to start the tasks, before it had heard of one."""
    store = interrupted(_EMPTY, age_s=1.0)
    (plan, *_) = one_task(time.monotonic())
    with closing(RunStore.adopt(store.paths.root, None)) as adopted:
        adopted.append(plan.model_copy(update={"attempt": 2, "at": time.time()}))
    restart = continued(store).restart
    assert restart is not None
    assert restart.delay_s > 0


def test_run_that_only_waited_begins_its_first_attempt() -> None:
    with closing(RunStore.adopt(unstarted().paths.root, None)) as adopted:
        assert read_earlier(adopted, adopted.record, _SPEC).restart is None


# -- while the nodes are checked


def test_refusal_before_the_next_attempt_keeps_the_earlier_ones() -> None:
    _, result = waited(interrupted(_EMPTY), _REFUSED)
    assert (result.exit_code, result.attempts, len(result.earlier_attempts)) == (2, 1, 1)
    assert [task.task for task in result.tasks] == ["worker:0"]


def test_notice_while_the_nodes_are_checked_ends_the_wait() -> None:
    for store in (interrupted(_EMPTY), unstarted()):
        waiting, result = waited(store, _NOTICE)
        assert (result.outcome, result.exit_code, waiting.is_requeued) == ("stopped", 42, False)
        assert result.cause is not None
        assert result.cause.text == "its machines go in 2m (SIGUSR2); no task had started"
    # It has no effect on a run without machines.
    queued = QueuedOrder(job="7", reason="Resources", start="")
    assert waited(unstarted(), queued, _NOTICE, _REFUSED)[1].exit_code == 2


def test_signal_between_two_inboxes_reaches_the_next() -> None:
    """A supervisor has one inbox for the wait, and another one for the run."""
    with SignalInbox([NOTICE_SIGNAL]) as first:
        first.defer()
    signal.raise_signal(NOTICE_SIGNAL)  # only this thread: other threads of the test process do not defer it
    with SignalInbox([NOTICE_SIGNAL]) as second:
        second.wait(60.0)
        assert second.take() == [NOTICE_SIGNAL]


# The order; the job's state and its restarts by `scontrol show job` (None: a preempted job that will not start again);
# the exit code, and whether the job continues the run.
_ENDS = (
    (StopOrder(reason=StopReason.TERMINATE), "COMPLETING", 1, (42, True)),
    (RefusedOrder(text="n2: Slurm's job 7 is ending"), "COMPLETING", 1, (42, True)),
    (None, "COMPLETING", 1, (42, True)),  # the client was killed
    (None, "COMPLETING", 0, (143, False)),  # scancel
    (None, "COMPLETING", None, (42, False)),
    (StopOrder(reason=StopReason.TERMINATE), "RUNNING", 0, (143, False)),
    (StopOrder(reason=StopReason.DOWN), "COMPLETING", 1, (143, False)),
    (_REFUSED, "RUNNING", 0, (2, False)),
)


def test_end_of_the_job_while_the_nodes_are_checked_is_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Slurm starts the job again, the run has not ended: the job continues it."""
    for order, state, restarts, expected in _ENDS:
        preempted = "2026-11-23T20:17:48" if restarts is None else "None"
        pretend_slurm(tmp_path, monkeypatch, state, f"Restarts={restarts or 0}", preempted)
        waiting, result = waited(interrupted(_EMPTY), *([order] if order else []))
        assert (result.exit_code, waiting.is_requeued) == expected, (order, state, restarts)


def test_batch_job_is_requeued_after_a_notice_or_the_loss_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_slurm(tmp_path, monkeypatch, "RUNNING", "Restarts=0")
    step = progressed(step=3)
    for kind, happened, is_requeued in (
        (CauseKind.HOST, (step,), True),
        (CauseKind.HOST, (), False),  # the next start would meet the same node
        (CauseKind.EXITED, (step,), False),
        (CauseKind.NOTICE, (), True),
    ):
        view = view_of(interrupted(*happened).paths)
        view.refresh()
        run = SimpleNamespace(state=view.state, worked=True)
        why = cause(None, "n3 was lost", kind, host="n3")
        result = run_result("failed", cause=why, exit_code=137)
        notices = Notices(changed(_SPEC, slurm_job="7"), run, deque())
        requeued = notices.requeued(result)
        assert (requeued is not None) == is_requeued, kind
        if requeued is not None and requeued.cause is not None:
            text = "Slurm starts its job again, and the run continues with attempt 2"
            assert requeued.cause.text.endswith(text)
        # After the loss of a host, the job is not requeued either if the next attempt had not begun.
        run.state = replace(view.state, history=(attempt_end(code=137, cause=why),))
        assert (notices.requeued(result) is not None) == (kind is CauseKind.NOTICE)
