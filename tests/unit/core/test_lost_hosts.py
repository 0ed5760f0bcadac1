"""Hosts that are silent, come back or are lost: events in, actions and results out."""

from __future__ import annotations

import pytest
from event_making import (
    COLLATERAL,
    OWN,
    START,
    deadline,
    emptied,
    exited,
    lifecycle_of,
    teardowns,
    the_result,
)
from host_making import HOSTS_JOB, back, feed_in_turn, joined, lost, placed, running_on, silent
from job_making import changed

from orchestrator.client.stop import longest_stop_s
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.hosts import parse_hosts
from orchestrator.core.lifecycle.actions import Deadline, Happen, PlanAttempt, TearDown
from orchestrator.core.lifecycle.lifecycle import PLAN_MARGIN_S, TEARDOWN_MARGIN_S
from orchestrator.core.state import events
from orchestrator.core.state.events import (
    Progress,
    StopReason,
    Symptom,
    TeardownReason,
    event_line,
    parse_event,
)
from orchestrator.core.state.result import CauseKind
from orchestrator.core.state.state import HostPhase, RunPhase, TaskPhase
from orchestrator.store.runs.run_end import mark_lost, result_from_events

T = START
TWO_EACH = ("a", "a", "b", "b")


def test_events_of_hosts_are_read_back() -> None:
    for event in (joined("a"), silent("a", 3, T), back("a", 6, T), lost("node-2.lan", T), lost("fd00::1", T)):
        assert parse_event(event_line(event)) == event
    with pytest.raises(ValueError, match="pattern"):
        joined("a\x1b[2J")


def test_loss_of_a_host_ends_the_run_with_cause_and_code() -> None:
    lifecycle = running_on(TWO_EACH)
    actions = feed_in_turn(lifecycle, [silent("b", 3, T + 13), lost("b", T + 21)])
    assert actions == [TearDown(TeardownReason.FAILURE, 0.5)]
    # It is shown before the other hosts have ended their tasks.
    assert lifecycle.state.notices[1:] == ("b was lost: it has not answered for 10s",)
    assert [task.phase for task in lifecycle.state.tasks.values()] == [
        TaskPhase.STOPPING,
        TaskPhase.STOPPING,
        TaskPhase.LOST,
        TaskPhase.LOST,
    ]
    stopped = [exited(index, None, 15, order=index, mono=T + 22) for index in (0, 1)]
    result = the_result(feed_in_turn(lifecycle, [*stopped, emptied(T + 22)]))
    assert (result.outcome, result.exit_code) == ("failed", 137)
    assert result.cause is not None and result.first_failure is None
    assert (result.cause.kind, result.cause.task, result.cause.host) == (CauseKind.HOST, None, "b")
    assert (
        result.cause.text == "b was lost: it has not answered for 10s; worker:2 and worker:3 ran on it"
        and result.detection_s == 11
    )
    assert [(end.host, end.end) for end in result.tasks] == [
        ("a", "stopped by orch"),
        ("a", "stopped by orch"),
        ("b", "lost with b"),
        ("b", "lost with b"),
    ]
    assert [(host.host, host.state, host.reason) for host in result.hosts] == [
        ("a", "joined", None),
        ("b", "lost", "it has not answered for 10s"),
    ]
    assert (result.hosts[0].cores, result.hosts[0].gpus) == (8, ("A100",))


def test_host_that_is_back_fails_nothing() -> None:
    lifecycle = running_on(TWO_EACH)
    assert not feed_in_turn(lifecycle, [silent("b", 3, T + 13)])
    assert lifecycle.state.hosts["b"].phase is HostPhase.SILENT and lifecycle.state.silent_hosts == {"b"}
    assert not feed_in_turn(lifecycle, [back("b", 6, T + 16)])
    assert lifecycle.state.hosts["b"].phase is HostPhase.JOINED and not lifecycle.state.silent_hosts
    assert lifecycle.state.notices == (
        "b has not answered for 3s; orch connects to it again",
        "b answers again after 6s",
    )
    done = [exited(index, order=index, mono=T + 20) for index in range(4)]
    assert the_result(feed_in_turn(lifecycle, [*done, emptied()])).outcome == "succeeded"


def test_many_hosts_that_are_silent_together_are_named_in_one_line() -> None:
    names = tuple(f"n{number:03}" for number in range(235))
    lifecycle = running_on(names, changed(HOSTS_JOB, hosts=parse_hosts(",".join(names))))
    feed_in_turn(lifecycle, [silent(name, 3, T + 13 + 0.001 * at) for at, name in enumerate(names)])
    first = "n000 has not answered for 3s; orch connects to it again"
    assert lifecycle.state.notices == (first,)
    assert lifecycle.next_deadline() == (T + 14, Deadline.HOSTS)
    feed_in_turn(
        lifecycle, [back("n001", 4, T + 13.5), lost("n002", T + 13.6), deadline(Deadline.HOSTS, T + 14)]
    )
    shown = ", ".join(names[3:11])
    others = f"232 hosts ({shown} and 224 more) have not answered for 3s; orch connects to them again"
    assert [text for text in lifecycle.state.notices if "n002 was lost" not in text] == [first, others]
    rest = (names[0], *names[3:])
    feed_in_turn(lifecycle, [back(name, 4, T + 16 + 0.001 * at) for at, name in enumerate(rest)])
    feed_in_turn(lifecycle, [deadline(Deadline.HOSTS, T + 17)])
    assert lifecycle.state.notices[-2:] == (
        "n000 answers again after 4s",
        f"232 hosts ({shown} and 224 more) answer again after 4s",
    )


def test_task_of_a_silent_host_is_not_blamed_for_its_silence() -> None:
    spec = changed(HOSTS_JOB, stall_timeout_s=5.0)
    lifecycle = running_on(TWO_EACH, spec)
    due = lifecycle.next_deadline()
    assert due is not None and due[1] == Deadline.STALL_LIMIT
    feed_in_turn(lifecycle, [silent("b", 3, T + 4)])
    assert lifecycle.next_deadline() is None
    feed_in_turn(lifecycle, [back("b", 6, T + 7)])
    for index in (0, 1):
        progress = events.TaskProgressed(at=T, mono=T + 7, task=f"worker:{index}", progress=Progress(step=1))
        feed_in_turn(lifecycle, [progress])
    due = lifecycle.next_deadline()
    assert due is not None and due[0] == T + 12


@pytest.mark.parametrize(
    ("symptom", "mono", "kind"),
    [
        (COLLATERAL, T + 14, CauseKind.HOST),  # it lost the peers on the silent host
        (None, T + 14, CauseKind.HOST),
        (OWN, T + 14, CauseKind.EXITED),
        (COLLATERAL, T + 9, CauseKind.EXITED),  # before the host became silent
    ],
)
def test_peer_that_fails_while_a_host_is_silent(
    symptom: Symptom | None, mono: float, kind: CauseKind
) -> None:
    lifecycle = running_on(TWO_EACH)
    history: list[events.Event] = [
        silent("b", 3, T + 13),
        exited(0, 1, symptom=symptom, mono=mono),
        exited(1, None, 15, order=1, mono=mono + 1),
        lost("b", T + 21),
        emptied(T + 21),
    ]
    result = the_result(feed_in_turn(lifecycle, history))
    assert result.cause is not None and result.cause.kind is kind
    assert result.exit_code == (137 if kind is CauseKind.HOST else 1)


def test_run_is_restarted_after_the_loss_of_a_host() -> None:
    spec = changed(HOSTS_JOB, on_failure=FailurePolicy.RESTART, max_restarts=2)
    lifecycle = running_on(TWO_EACH, spec)
    progress = events.TaskProgressed(
        at=T, mono=T, task="worker:0", progress=Progress(phase="training", step=3)
    )
    feed_in_turn(lifecycle, [progress, lost("b", T + 21)])
    ends = [exited(index, None, 15, order=index, mono=T + 22) for index in (0, 1)]
    feed_in_turn(lifecycle, [*ends, emptied(T + 22)])
    ended = lifecycle.state.history[0]
    assert ended.cause is not None and (ended.cause.kind, ended.exit_code) == (CauseKind.HOST, 137)
    assert feed_in_turn(lifecycle, [deadline(Deadline.RESTART, T + 23)]) == [PlanAttempt(2)]
    feed_in_turn(lifecycle, [joined("b", T + 24), placed(TWO_EACH, T + 25).model_copy(update={"attempt": 2})])
    assert lifecycle.state.hosts["b"].phase is HostPhase.JOINED and lifecycle.state.lost_host is None
    done = [exited(index, order=index, mono=T + 30) for index in range(4)]
    assert the_result(feed_in_turn(lifecycle, [*done, emptied()])).outcome == "succeeded"


def test_host_lost_before_the_plan_ends_the_run() -> None:
    lifecycle = lifecycle_of(HOSTS_JOB)
    actions = feed_in_turn(
        lifecycle, [joined("a"), lost("b", T + 5, "ssh: connection refused"), emptied(T + 5)]
    )
    assert [action.reason for action in teardowns(actions)] == [TeardownReason.FAILURE]
    result = the_result(actions)
    assert result.cause is not None
    assert (result.exit_code, result.cause.text) == (137, "b was lost: ssh: connection refused")


def test_host_whose_tasks_have_ended_may_be_lost() -> None:
    lifecycle = running_on(("a", "b"))
    assert not feed_in_turn(lifecycle, [exited(1), lost("b", T + 5, "it was switched off")])
    assert lifecycle.state.notices == ("b is lost, but has no tasks: it was switched off",)
    result = the_result(feed_in_turn(lifecycle, [exited(0, order=1), emptied()]))
    assert result.outcome == "succeeded"


def test_first_of_several_lost_hosts_is_the_cause() -> None:
    lifecycle = running_on(("a", "b", "c"))
    history = [silent("c", 3, T + 12), silent("b", 3, T + 13), lost("b", T + 20), lost("c", T + 20.1)]
    result = the_result(feed_in_turn(lifecycle, [*history, exited(0, None, 15), emptied(T + 21)]))
    assert result.cause is not None and result.cause.host == "c"


def test_teardown_waits_until_a_silent_host_is_lost() -> None:
    lifecycle = running_on(TWO_EACH)
    feed_in_turn(lifecycle, [exited(0, 3, symptom=OWN)])
    due = lifecycle.next_deadline()
    assert due is not None and due[1] == Deadline.TEARDOWN
    assert due[0] >= T + HOSTS_JOB.failure_grace_s + TEARDOWN_MARGIN_S + HOSTS_JOB.link_timeout_s


@pytest.mark.parametrize("force", [False, True])
def test_client_waits_for_a_stop_until_a_silent_host_is_lost(force: bool) -> None:
    """Otherwise it advises to kill a supervisor that works."""
    job = changed(HOSTS_JOB, link_timeout_s=60.0)
    lifecycle = running_on(TWO_EACH, job)
    feed_in_turn(lifecycle, [events.StopRequested(at=T, mono=T, reason=StopReason.DOWN, force=force)])
    due = lifecycle.next_deadline()
    assert due is not None and due[1] == Deadline.TEARDOWN
    assert T + longest_stop_s(job.model_dump(mode="json"), force) > due[0]


def test_time_to_hold_the_ports_counts_from_the_last_host() -> None:
    lifecycle = lifecycle_of(HOSTS_JOB)
    feed_in_turn(lifecycle, [joined("a", T + 30), joined("b", T + 50)])
    assert lifecycle.next_deadline() == (T + 50 + PLAN_MARGIN_S, Deadline.PLAN)


def test_exit_before_the_stop_reached_the_task_is_its_own() -> None:
    lifecycle = running_on(TWO_EACH)
    feed_in_turn(lifecycle, [exited(0, 3, symptom=OWN)])
    ends = [
        exited(1, 1, order=1).model_copy(update={"asked": False}),
        exited(2, 1, order=2).model_copy(update={"asked": True}),
        exited(3, 0, order=3).model_copy(update={"asked": False}),
    ]
    result = the_result(feed_in_turn(lifecycle, [*ends, emptied()]))
    assert [end.state for end in result.tasks] == ["failed", "failed", "stopped", "succeeded"]
    assert lifecycle.state.phase is RunPhase.STOPPING and result.exit_code == 3


def test_no_notice_about_hosts_is_an_action() -> None:
    """The supervisor only appends the notice to its queue."""
    lifecycle = running_on(TWO_EACH)
    (notice,) = lifecycle.handle(silent("a", 3.04, T + 3))
    assert isinstance(notice, Happen) and isinstance(notice.event, events.Noticed)


def test_result_of_a_lost_run_has_the_hosts() -> None:
    state = running_on(("a", "b")).state
    result = result_from_events("run-1", mark_lost(state, T + 5), "")
    assert [(end.host, end.state) for end in result.tasks] == [("a", "lost"), ("b", "lost")]
    assert [(host.host, host.state) for host in result.hosts] == [("a", "joined"), ("b", "joined")]
