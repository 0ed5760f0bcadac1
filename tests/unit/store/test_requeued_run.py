"""Batch jobs of Slurm that are started again: what becomes of the run that was interrupted, and when the next may
start."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from making import JOB, attempt_end, cause, changed, event, planned_task, progressed, run_result
from run_records import make_run, one_task, view_of

from orchestrator.client.requeued import fence_s, interrupted_run
from orchestrator.core.state import events
from orchestrator.core.state.events import NoticeSource, TeardownReason
from orchestrator.core.state.result import CauseKind
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor.earlier import close_earlier
from orchestrator.supervisor.notices import Notices
from worker.wire.facts import LeftProcess

_SPEC = changed(JOB, link_timeout_s=10.0, grace_s=10.0, failure_grace_s=0.5)
_AGAIN = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}


def interrupted(*more: events.Event, age_s: float = 100.0) -> RunStore:
    """A run in job 7 that began `age_s` ago. Its supervisor was killed."""
    at, mono = time.time() - age_s, time.monotonic() - age_s
    plan, *rest = one_task(mono)
    planned = plan.model_copy(update={"tasks": (planned_task(host="n2"),)})
    with closing(make_run(_SPEC.name, job="7")) as store:
        spec = _SPEC.masked().model_dump(mode="json") | {"hosts": ["n1"]}
        store.take_over(store.record.model_copy(update={"spec": spec}))
        for each in (planned, *rest, *more):
            store.append(each.model_copy(update={"at": at, "mono": mono}))
    return store


def unstarted() -> RunStore:
    store = make_run(job="7")
    store.close()
    return store


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


def test_next_start_of_a_job_finds_the_run_that_has_not_ended() -> None:
    unstarted()
    with closing(RunStore.adopt(interrupted().paths.root, None)) as ended:
        ended.write_result(run_result(run_id=ended.paths.run_id))
    assert interrupted_run(_SPEC, _AGAIN) is None
    newest = interrupted()
    view = interrupted_run(_SPEC, _AGAIN)
    assert view is not None
    assert view.paths.root == newest.paths.root
    assert interrupted_run(_SPEC, {**_AGAIN, "SLURM_RESTART_COUNT": "0"}) is None
    assert interrupted_run(_SPEC, {**_AGAIN, "SLURM_JOB_ID": "8"}) is None
    assert interrupted_run(changed(_SPEC, name="other"), _AGAIN) is None
    # A script may start several runs of one command at the same time.
    with closing(RunStore.adopt(view.paths.root, None)):
        assert interrupted_run(_SPEC, _AGAIN) is None


_EMPTY = event(events.TeardownEnded)
_LEFT = event(events.TeardownEnded, left=(LeftProcess(pid=7, start_ticks=7, user="other", command="train"),))
_LOST = event(events.HostLost, host="n2", reason="cut")
_NOTICED = event(events.NoticeGiven, source=NoticeSource.SLURM, left_s=30.0)
_ENDS_TASKS = event(events.TeardownBegan, reason=TeardownReason.NOTICE, grace_s=20.0)
_PLANNED = next(iter(one_task(0.0)))


def test_next_run_waits_for_the_hosts_that_did_not_report_their_end() -> None:
    rows: tuple[tuple[tuple[events.Event, ...], float, float], ...] = (
        ((_EMPTY,), 1.0, 0.0),
        ((_LEFT,), 1.0, 39.0),
        ((), 1.0, 39.0),
        ((), 100.0, 0.0),
        ((_LOST, _EMPTY), 1.0, 39.0),
        # The supervisor was killed after its order to start the tasks of another attempt.
        ((_EMPTY, _PLANNED), 1.0, 39.0),
    )
    for ends, age_s, delay_s in rows:
        view = view_of(interrupted(*ends, age_s=age_s).paths)
        assert fence_s(view) == pytest.approx(delay_s, abs=20 if delay_s else 0.0), (ends, age_s)
    assert fence_s(view_of(unstarted().paths)) == 0.0


def test_interrupted_run_names_the_run_that_follows_it() -> None:
    rows: tuple[tuple[tuple[events.Event, ...], str, int, str], ...] = (
        ((), "lost", 125, "Slurm ended its job;"),
        ((_NOTICED, _ENDS_TASKS, _EMPTY), "stopped", 42, "Slurm ends its job; no task said"),
        # The supervisor was killed while the tasks saved their state.
        ((_NOTICED, _ENDS_TASKS), "stopped", 42, "Slurm ends its job; no task said"),
    )
    for happened, outcome, code, why in rows:
        view = view_of(interrupted(*happened).paths)
        close_earlier(view, "digits-2")
        assert (result := view.result()) is not None
        assert (result.outcome, result.exit_code, result.attempts) == (outcome, code, 1)
        assert result.cause is not None
        assert result.cause.text.startswith(why)
        assert result.cause.text.endswith("; Slurm has started the job again: digits-2")
        view.refresh()
        assert (view.state.phase, view.is_live) == (outcome, False)


def test_batch_job_is_requeued_after_a_notice_or_the_loss_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_slurm(tmp_path, monkeypatch, "RUNNING", "Restarts=0")
    step = progressed(step=3)
    for kind, happened, worked, is_continued, is_requeued in (
        (CauseKind.HOST, (step,), True, False, True),
        (CauseKind.HOST, (), True, False, False),  # the next start would meet the same node
        (CauseKind.EXITED, (step,), True, False, False),
        (CauseKind.NOTICE, (), True, False, True),
        (CauseKind.NOTICE, (), False, False, False),
        (CauseKind.NOTICE, (), False, True, True),  # the run before has worked
    ):
        view = view_of(interrupted(*happened).paths)
        view.refresh()
        run = SimpleNamespace(state=view.state, worked=worked)
        why = cause(None, "n3 was lost", kind, host="n3")
        result = run_result("failed", cause=why, exit_code=137)
        notices = Notices(changed(_SPEC, slurm_job="7"), run, deque(), is_continued=is_continued)
        requeued = notices.requeued(result)
        assert (requeued is not None) == is_requeued, (kind, worked, is_continued)
        if requeued is not None and requeued.cause is not None:
            assert requeued.cause.text.endswith("; Slurm starts its job again")
        # After the loss of a host, the job is not requeued either if the next attempt had not begun.
        run.state = replace(view.state, history=(attempt_end(code=137, cause=why),))
        assert (notices.requeued(result) is not None) == (is_requeued and kind is CauseKind.NOTICE)
