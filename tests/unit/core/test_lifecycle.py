"""Starts, exits, stops, notices and teardowns of a run of workers, on a virtual clock."""

from __future__ import annotations

import itertools
import signal

import pytest
from making import COLLATERAL, JOB, OWN, START, job
from story import Story, other_ends

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.lifecycle.actions import (
    Deadline,
    PlanAttempt,
    SendSignal,
    StartTasks,
    SweepHost,
    TearDown,
)
from orchestrator.core.lifecycle.lifecycle import PLAN_MARGIN_S, TEARDOWN_MARGIN_S
from orchestrator.core.state import events
from orchestrator.core.state.events import NoticeSource, StopReason, TeardownReason
from orchestrator.core.state.state import RunPhase, TaskPhase
from orchestrator.core.text.durations import MAX_DURATION_S
from orchestrator.engines.slurm import parse_time_left

KILL = signal.SIGKILL
STOPPED = "stopped by orch"
LOST = "lost with the agent"
SAVED = "stopped by orch, its state saved (exit 42)"
ORCH = "failed 125: orch"
FAILURE = TearDown(TeardownReason.FAILURE, JOB.failure_grace_s)
RESTART = job(on_failure=FailurePolicy.RESTART, max_restarts=3)


def running(workers: int = 2, **fields: object) -> Story:
    return Story(job(workers=workers, **fields)).ready().fresh()


def test_run_starts_and_succeeds() -> None:
    story = Story(JOB).plans()
    assert story.ordered() == [StartTasks(("worker:0", "worker:1"))]
    phases = [story.ready(0).starts(1).state.phase, story.ready(1).state.phase]
    assert phases == [RunPhase.STARTING, RunPhase.RUNNING]
    assert story.due is None  # it has no limits
    assert story.exits(1).ordered() == []
    assert story.exits(0).ordered() == [TearDown(TeardownReason.FINISHED, JOB.failure_grace_s)]
    assert (story.end(), story.ends()) == ("succeeded 0", ["done", "done"])
    assert [task.state for task in story.result().tasks] == ["succeeded", "succeeded"]


def test_first_failure_ends_the_run_with_its_exit_code() -> None:
    ends = ((1, None, 1), (3, None, 3), (255, None, 255), (None, KILL, 137), (None, signal.SIGSEGV, 139))
    for index, (code, number, exit_code) in itertools.product((0, 1), ends):
        story = running().at(1).exits(index, code=code or 0, signal=number, ended_mono=START + 0.75)
        assert story.ordered() == [FAILURE]
        assert story.at(3).end() == f"failed {exit_code}: exited worker:{index}"
        assert (story.ends()[index], story.ends()[1 - index]) == ("failed", STOPPED)
        result = story.result()
        assert (result.detection_s, result.teardown_s, result.took_s) == (0.25, 2.0, 3.0)
        assert result.first_failure is not None
        assert (result.first_failure.exit_code, result.first_failure.signal) == (code, number)


def test_end_of_a_run() -> None:
    timeout, by_3, not_found = {"timeout_s": 30.0}, "failed 3: exited worker:0", "failed 127: exited worker:1"
    peers = running(3).exits(0, code=1, symptom=OWN).exits(1, code=1, symptom=COLLATERAL)
    saved = running().stops().exits(0, code=42).exits(1, code=143)
    full = Story(RESTART).ready().trains(0, 20)
    full.happens(events.StorageFailed, reason="/run/events.jsonl: No space left on device")
    over_limit = running().exits(1, signal=KILL, over_limit=(3 << 30, 2 << 30))
    rows = {
        "failures at the same time": (running(3).exits(0, 1, code=1), "failed 1: exited worker:0"),
        "command not found": (Story(JOB).starts(0).cannot_start(1), not_found, STOPPED, "failed"),
        "its place among the exits": (Story(JOB).starts(0).cannot_start(1).exits(0, code=1), not_found),
        "peers": (
            peers.exits(2, signal=KILL),
            "failed 1: exited worker:0",
            "failed",
            "failed because of it",
            STOPPED,
        ),
        "started too late": (Story(JOB).starts(0).exits(0, code=3).ready(), by_3, "failed", STOPPED),
        "stopped, and then a failure": (running().stops().exits(0, code=1), "stopped 130", STOPPED, STOPPED),
        "a failure, and then stopped": (running().exits(0, code=3).stops(), by_3),
        "done, and then stopped": (running().exits(0, 1).stops(), "succeeded 0"),
        "stopped, and a restart is asked for": (running().stops().restarts(), "stopped 130"),
        "stopped with its state saved": (saved, "stopped 130", SAVED, STOPPED),
        "--timeout": (running(**timeout).at(30), "timed_out 124: limit", STOPPED, STOPPED),
        "--timeout during a teardown": (running(**timeout).exits(0, code=3).at(30), by_3),
        "a client's time-out": (running().stops(StopReason.TIMEOUT), "timed_out 124: limit"),
        "lost agent": (running().loses_agent(), ORCH, LOST, LOST),
        "a failure, and then a lost agent": (running().exits(0, code=3).loses_agent(), by_3),
        "the agent does not end the tasks": (running().stops().at(60), ORCH, LOST, LOST),
        "the agent does not hold the ports": (Story(JOB).at(PLAN_MARGIN_S), ORCH),
        "over its memory limit": (over_limit, "failed 137: limit worker:1"),
        "full disk": (full, "failed 125: limit"),
    }
    assert other_ends(rows) == {}
    # A full disk ends the run without a restart.
    assert FAILURE in full.orders and full.result().attempts == 1
    assert "No space left" in full.cause.text


def test_text_of_causes() -> None:
    late = running(timeout_s=30.0)
    assert late.due == (30, Deadline.TIMEOUT)
    assert late.at(30).ordered() == [TearDown(TeardownReason.REQUEST, JOB.grace_s)]
    rows = {
        "no such file": Story(JOB).starts(0).cannot_start(1),
        "not done after 30 s (--timeout)": late,
        "did not hold the ports in time": Story(JOB).at(PLAN_MARGIN_S),
        "did not end the tasks in time; is it stopped?": running().stops().at(60),
        "the run ended before its tasks did": running().happens(events.TeardownEnded),
        "over --memory-limit 2 GiB": running().exits(1, signal=KILL, over_limit=(3 << 30, 2 << 30)),
    }
    causes = {text: story.cause.text for text, story in rows.items()}
    assert not [text for text, cause in causes.items() if text not in cause], causes


def test_stop_reason_determines_exit_code_and_grace() -> None:
    quick = {StopReason.CLIENT_GONE: 143, StopReason.OUTPUT_CLOSED: 141, StopReason.SOURCE_CHANGED: 143}
    slow = dict.fromkeys((StopReason.TERMINATE, StopReason.HANGUP, StopReason.DOWN), 143)
    for reason, code in (quick | slow | {StopReason.INTERRUPT: 130}).items():
        story = running().stops(reason)
        grace_s = JOB.failure_grace_s if reason in quick else JOB.grace_s
        assert story.ordered() == [TearDown(TeardownReason.REQUEST, grace_s)]
        # How the tasks exit after SIGTERM does not matter.
        assert (story.exits(0, code=45).end(), story.ends()) == (f"stopped {code}", [STOPPED, STOPPED])


def test_later_stops_only_shorten_the_grace_period() -> None:
    story = running().stops()
    assert story.due == (JOB.grace_s + TEARDOWN_MARGIN_S, Deadline.TEARDOWN)
    story.ordered()
    assert story.at(1).stops(StopReason.DOWN).ordered() == []
    assert story.stops(StopReason.CLIENT_GONE).ordered() == [
        TearDown(TeardownReason.REQUEST, JOB.failure_grace_s)
    ]
    assert story.at(2).stops(force=True).ordered() == [TearDown(TeardownReason.REQUEST, 0.0)]
    assert story.due == (2 + TEARDOWN_MARGIN_S, Deadline.TEARDOWN)
    assert story.stops(force=True).stops(StopReason.CLIENT_GONE).ordered() == []
    assert story.end() == "stopped 130" and story.result().teardown_s == 2.0

    failed = running().exits(0, code=3).stops(force=True)
    assert failed.ordered() == [FAILURE, TearDown(TeardownReason.FAILURE, 0.0)]
    assert failed.end() == "failed 3: exited worker:0"


def test_stop_before_the_plan_prevents_the_start_and_events_after_the_end_are_ignored() -> None:
    story = Story(JOB).stops().tell(*Story(JOB).plans().events)
    assert story.ordered() == [TearDown(TeardownReason.REQUEST, JOB.grace_s)]
    assert (story.end(), story.ends()) == ("stopped 130", ["never started"] * 2)
    story = running().exits(0, 1).torn_down()
    before = story.result()
    story.stops(force=True).loses_agent().happens(events.TeardownEnded).exits(0, code=1)
    assert story.result() is before and story.due is None


def test_lost_agent_is_swept_for_once() -> None:
    story = running().loses_agent()
    assert story.ordered() == [SweepHost()] and story.due is None
    assert {task.phase for task in story.state.tasks.values()} == {TaskPhase.LOST}
    assert story.stops().stops(StopReason.CLIENT_GONE).ordered() == []
    story = running().stops().at(JOB.grace_s + TEARDOWN_MARGIN_S)
    assert story.ordered()[1:] == [SweepHost()] and story.due is None


# -- signals, memory and disks


def test_signals_are_sent_to_live_tasks_only() -> None:
    story = running()
    kill = {"signal": 10, "by": "user"}
    assert story.happens(events.SignalRequested, task=0, **kill).ordered() == [SendSignal("worker:0", 10)]
    assert story.exits(0).happens(events.SignalRequested, task=0, **kill).ordered() == []


def test_teardown_of_a_fault_belongs_to_it_if_its_failure_ended_the_attempt() -> None:
    chaos = {"chaos": parse_chaos("kill worker:1 at 1s")}
    alone = running(3, **chaos).at(2).exits(1, signal=KILL).at(9)
    others = running(3, **chaos, on_failure=FailurePolicy.CONTINUE).at(2).exits(1, signal=KILL)
    others.at(2.1).exits(0, code=3).at(2.2).exits(2).at(9)
    faults = [story.result().faults[0] for story in (alone, others)]
    assert [(fault.detection_s, fault.teardown_s) for fault in faults] == [(1.0, 7.0), (1.0, None)]


def test_preload_option_without_effect_is_a_notice() -> None:
    refused = "it has 3 threads"
    stories = [Story(spec).happens(events.Preload, refused=refused) for spec in (job(preload=("np",)), JOB)]
    notices = [story.notices for story in stories]
    assert notices == [(f"--preload has no effect: {refused}",), ()]


# -- preemption notices


def test_tasks_end_before_the_machine_goes() -> None:
    graces = {60: 50, 8: 6, 0: 0, None: JOB.grace_s}
    found = {left_s: running().warns(left_s).ordered() for left_s in graces}
    assert found == {left_s: [TearDown(TeardownReason.NOTICE, grace_s)] for left_s, grace_s in graces.items()}
    story = running().warns()
    assert story.exits(0, 1, code=42).end() == "stopped 42: notice"
    result = story.result()
    assert result.first_failure is None
    assert "2 of 2 tasks said that the state is saved" in str(result.cause)


def test_end_of_a_run_with_a_notice() -> None:
    by_itself, notice = {"asked": False}, "stopped 42: notice"
    slurm = {"left_s": 30.0, "source": NoticeSource.SLURM}
    # worker:1 failed before SIGTERM reached it, because its peer had gone.
    no_handler = running().warns().exits(0, code=143).exits(1, code=1, **by_itself)
    in_place = Story(RESTART).ready().at(1).exits(1, code=42).warns().at(2).exits(0, code=42)
    rows = {
        "no handler": (no_handler, notice),
        "done by themselves": (running().warns().exits(0, 1, **by_itself), "succeeded 0"),
        "a failure before": (running().exits(1, code=3).warns(), "failed 3: exited worker:1"),
        "no restart in place": (in_place, notice),
        "between two attempts": (
            Story(RESTART).ready().exits(1, 0, code=42).torn_down().warns().at(9),
            notice,
        ),
        # Slurm signals the batch script, too.
        "SIGTERM by Slurm": (running().warns(**slurm).stops(StopReason.TERMINATE), notice),
        "SIGTERM by Slurm first": (running().stops(StopReason.TERMINATE).warns(**slurm), notice),
        "another stop": (running().warns(**slurm).stops(StopReason.DOWN), "stopped 143"),
        "SIGTERM and a person's notice": (running().stops(StopReason.TERMINATE).warns(), "stopped 143"),
    }
    assert other_ends(rows) == {}
    assert not [order for order in rows["between two attempts"][0].orders if isinstance(order, PlanAttempt)]
    assert "no task said that the state is saved" in str(no_handler.result().cause)


def test_later_notices_and_stops_shorten_the_grace_period_of_a_notice() -> None:
    for hasten, grace_s in (
        (lambda it: it.warns(8).warns(60), 6.0),
        (lambda it: it.stops(StopReason.DOWN), JOB.grace_s),
    ):
        story = running().warns(120)
        hasten(story)
        assert [order.grace_s for order in story.ordered()] == [110.0, grace_s]


@pytest.mark.parametrize("left_s", [19.0, None])
def test_end_of_the_allocation_gives_a_notice(left_s: float | None) -> None:
    story = Story(job(notice_s=20.0), ends_s=100).ready()
    assert story.due == (80, Deadline.NOTICE)
    story.at(79.5).reaches(Deadline.NOTICE, left_s=320.0)  # it was given more time
    assert (story.due, story.state.notice) == ((379.5, Deadline.NOTICE), None)
    given = story.at(379).reaches(Deadline.NOTICE, left_s=left_s).state.notice
    assert given is not None
    assert (given.source, given.left_s) == (NoticeSource.TIME_LIMIT, left_s or 20.0)
    assert story.due is not None and story.due[1] == Deadline.TEARDOWN


def test_time_left_as_slurm_writes_it() -> None:
    # A limit that was removed never causes a notice.
    texts = {
        "1-02:03:04": 93784.0,
        "2:03:04": 7384.0,
        "3:04": 184.0,
        "0:00": 0.0,
        "UNLIMITED": MAX_DURATION_S,
    }
    assert {text: parse_time_left(text) for text in texts} == texts
    assert [parse_time_left(text) for text in ("INVALID", "")] == [None, None]
