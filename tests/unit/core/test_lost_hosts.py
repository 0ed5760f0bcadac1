"""Runs on several hosts: hosts that are silent, come back or are lost, the first failure by several clocks, and which
hosts and workers each attempt of an elastic run has."""

from __future__ import annotations

import random
from typing import Any

from making import COLLATERAL, OWN, START, UNKNOWN, changed, job
from story import Story, other_ends

from orchestrator.client.stop import longest_stop_s
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.actions import (
    Action,
    Deadline,
    PlanAttempt,
    ReopenHosts,
    StartTasks,
    TearDown,
)
from orchestrator.core.lifecycle.elastic import REJOIN_S, RETRY_S
from orchestrator.core.lifecycle.lifecycle import LOSS_MARGIN_S, PLAN_MARGIN_S, TEARDOWN_MARGIN_S
from orchestrator.core.state.events import StopReason, Symptom, TeardownReason
from orchestrator.core.state.state import HostPhase, RunPhase, TaskPhase
from orchestrator.store.runs.run_end import mark_lost, result_from_events

STOPPED = "stopped by orch"
DONE = "succeeded 0"


def running(workers: int = 4, hosts: int = 2, **fields: Any) -> Story:
    """A run whose workers are spread over hosts a, b, c."""
    return Story(job(**{"workers": workers, "link_timeout_s": 10.0} | fields), hosts).ready().fresh()


def test_loss_of_a_host_ends_the_run_with_cause_and_code() -> None:
    story = running().at(13).silent("b").at(21).loses("b")
    assert story.ordered() == [TearDown(TeardownReason.FAILURE, 0.5)]
    # It is shown before the other hosts have ended their tasks.
    assert story.notices[1:] == ("b was lost: it has not answered for 10s",)
    phases = [task.phase for task in story.state.tasks.values()]
    assert phases == [TaskPhase.STOPPING, TaskPhase.STOPPING, TaskPhase.LOST, TaskPhase.LOST]
    assert story.at(22).end() == "failed 137: host b"
    assert story.ends() == [STOPPED, STOPPED, "lost with b", "lost with b"]
    result = story.result()
    assert result.cause is not None and result.cause.task is None
    assert result.cause.text == "b was lost: it has not answered for 10s; worker:2 and worker:3 ran on it"
    assert (result.first_failure, result.detection_s) == (None, 11)
    assert [(host.host, host.state, host.reason) for host in result.hosts] == [
        ("a", "joined", None),
        ("b", "lost", "it has not answered for 10s"),
    ]
    assert (result.hosts[0].cores, result.hosts[0].gpus) == (8, ("A100",))


def test_end_of_a_run_on_hosts() -> None:
    """A peer that fails while a host is silent has lost its peers on that host, unless it has its own exception."""
    silent = [running().at(13).silent("b").at(14) for _ in range(3)]
    early = running().at(9).exits(0, code=1, symptom=COLLATERAL).at(13).silent("b").at(21).loses("b")
    two = running(3, 3).at(12).silent("c").at(13).silent("b").at(20).loses("b").at(20.1).loses("c")
    before = Story(job(hosts="a:1,b:1")).joins("a").at(5).loses("b", "ssh: connection refused")
    unused = running(2).exits(1).at(5).loses("b", "it was switched off").exits(0)
    host, by_0 = "failed 137: host b", "failed 1: exited worker:0"
    rows = {
        "a host that is back": (running().at(13).silent("b").at(16).back("b").exits(0, 1, 2, 3), DONE),
        "a peer loses its peers": (silent[0].exits(0, code=1, symptom=COLLATERAL).at(21).loses("b"), host),
        "a peer says nothing": (silent[1].exits(0, code=1).at(21).loses("b"), host),
        "a peer fails by itself": (silent[2].exits(0, code=1, symptom=OWN).at(21).loses("b"), by_0),
        "a peer fails before": (early, by_0),
        "lost before the plan": (before, host),
        "its tasks have ended": (unused, DONE),
        # The host that was silent first.
        "two hosts": (two, "failed 137: host c"),
    }
    assert other_ends(rows) == {}
    assert "b was lost: ssh: connection refused" in str(before.result().cause)
    assert unused.notices == ("b is lost, but has no tasks: it was switched off",)


def test_silent_host_and_its_return() -> None:
    story = running(stall_timeout_s=5.0)
    # Its tasks are not blamed for their silence.
    assert story.due == (5, Deadline.STALL_LIMIT)
    assert story.at(4).silent("b").due is None
    assert (story.state.hosts["b"].phase, story.state.silent_hosts) == (HostPhase.SILENT, {"b"})
    assert story.at(7).back("b").ordered() == []
    assert (story.state.hosts["b"].phase, story.state.silent_hosts) == (HostPhase.JOINED, frozenset())
    assert story.reports(0, step=1).reports(1, step=1).due == (12, Deadline.STALL_LIMIT)
    assert story.notices == (
        "b has not answered for 3s; orch gives it up after --link-timeout",
        "b answers again after 6s",
    )


def test_many_hosts_that_are_silent_together_are_named_in_one_line() -> None:
    names = [f"n{number:03}" for number in range(40)]
    story = Story(job(workers=40, hosts=",".join(names))).ready()
    for place, name in enumerate(names):
        story.at(13 + 0.001 * place).silent(name)
    first = "n000 has not answered for 3s; orch gives it up after --link-timeout"
    assert (story.notices, story.due) == ((first,), (14, Deadline.HOSTS))
    story.at(13.5).back("n001", 4).at(13.6).loses("n002").at(14)
    many = f"37 hosts ({', '.join(names[3:11])} and 29 more)"
    others = f"{many} have not answered for 3s; orch gives them up after --link-timeout"
    assert [text for text in story.notices if "n002 was lost" not in text] == [first, others]
    for place, name in enumerate((names[0], *names[3:])):
        story.at(16 + 0.001 * place).back(name, 4)
    assert story.at(17).notices[-2:] == ("n000 answers again after 4s", f"{many} answer again after 4s")


def test_run_is_restarted_after_the_loss_of_a_host() -> None:
    story = running(on_failure=FailurePolicy.RESTART).trains(0, 3).at(21).loses("b").torn_down()
    (ended,) = story.state.history
    assert ended.cause is not None and (ended.cause.kind, ended.exit_code) == ("host", 137)
    assert story.at(22).orders[-1] == PlanAttempt(2)
    story.joins("b").ready()
    assert story.state.hosts["b"].phase is HostPhase.JOINED and story.state.lost_host is None
    assert story.exits(0, 1, 2, 3).end() == DONE


def test_deadlines_wait_for_silent_hosts() -> None:
    story = running().exits(0, code=3, symptom=OWN)
    lost_s = 10.0 + LOSS_MARGIN_S
    assert story.due == (0.5 + TEARDOWN_MARGIN_S + lost_s, Deadline.TEARDOWN)
    # The time to hold the ports counts from the last host.
    story = Story(job(hosts="a:1,b:1")).at(30).joins("a").at(50).joins("b")
    assert story.due == (50 + PLAN_MARGIN_S, Deadline.PLAN)
    spec = job(workers=4, hosts="a:2,b:2", link_timeout_s=60.0)
    for force in (False, True):
        due = Story(spec).ready().stops(StopReason.DOWN, force=force).due
        assert due is not None and due[1] == Deadline.TEARDOWN
        # Otherwise a client advises to kill a supervisor that works.
        assert longest_stop_s(spec.model_dump(mode="json"), force) > due[0]


def test_exit_before_the_stop_reached_the_task_is_its_own() -> None:
    story = running().exits(0, code=3, symptom=OWN).exits(1, code=1, asked=False)
    story.exits(2, code=1, asked=True).exits(3, asked=False)
    assert story.state.phase is RunPhase.STOPPING
    assert [end.state for end in story.result().tasks] == ["failed", "failed", "stopped", "succeeded"]
    assert story.result().exit_code == 3


def test_result_of_a_lost_run_has_the_hosts() -> None:
    result = result_from_events("run-1", mark_lost(running(2).state, START + 5), "")
    assert [(end.host, end.state) for end in result.tasks] == [("a", "lost"), ("b", "lost")]
    assert [(host.host, host.state) for host in result.hosts] == [("a", "joined"), ("b", "joined")]


# -- the first failure, whose time is only known within the uncertainty of the clocks


def drawn_run(seed: int) -> tuple[str, Story]:
    """Draw a run of 8 tasks on 4 hosts that all fail because one did. Return that one, and the run.

    orch measures the offset of a clock by half a round trip: wrong by up to that if one direction is slower.
    """
    draw = random.Random(seed)
    links = [(draw.uniform(0, 0.2), draw.uniform(0, 0.2)) for _ in range(4)]
    origin, symptom = draw.randrange(8), draw.choice([OWN, UNKNOWN])
    failed = {index: 100 + (0 if index == origin else draw.uniform(0.001, 0.5)) for index in range(8)}
    arrival = {index: at + links[index // 2][1] for index, at in failed.items()}
    torn_down = min(arrival.values())
    story = running(8, 4)
    for index in sorted(arrival, key=lambda index: arrival[index]):
        to_host, from_host = links[index // 2]
        story.at(arrival[index]).exits(
            index,
            code=1,
            symptom=symptom if index == origin else COLLATERAL,
            ended_mono=START + failed[index] + (from_host - to_host) / 2,
            clock_error_s=(from_host + to_host) / 2,
            asked=failed[index] > torn_down + to_host,
        )
    return f"worker:{origin}", story.at(102)


def first_and_cause(story: Story) -> tuple[str | None, str | None]:
    first = story.result().first_failure
    return first and first.task, story.cause.task


def test_first_failure_is_found_with_any_clocks_and_latencies() -> None:
    runs = {seed: drawn_run(seed) for seed in range(100)}
    found = {seed: first_and_cause(story) for seed, (_, story) in runs.items()}
    assert found == {seed: (origin, origin) for seed, (origin, _) in runs.items()}


def raised(
    story: Story, task: int, raised_s: float, ended_s: float, symptom: Symptom = OWN, **facts: Any
) -> Story:
    """A task raises an exception and ends, at seconds that are known within 0.1 s."""
    symptom = symptom.model_copy(update={"raised_mono": START + raised_s})
    facts = {"code": 1, "asked": False, "clock_error_s": 0.1, "symptom": symptom} | facts
    return story.exits(task, ended_mono=START + ended_s, **facts)


def test_cause_among_failures_on_hosts() -> None:
    """A task that raised first may take longer to exit than peers that raised because of it."""
    own_clock = Story(job(hosts="a:2")).ready().exits(1, code=3, ended_mono=START + 9, clock_error_s=5.0)
    own_clock.exits(0, code=4, symptom=OWN, ended_mono=START + 1, clock_error_s=5.0, asked=False)
    # The peer on another host exits first, and blames a peer.
    slow_exit = running(2).exits(0, code=1, symptom=COLLATERAL, ended_mono=START + 1)
    slow_exit.exits(1, code=1, symptom=OWN, ended_mono=START + 2, asked=False)
    killed = raised(running(2).exits(0, signal=9, symptom=UNKNOWN, ended_mono=START + 1.4), 1, 1.0, 1.5)
    rows = [
        (own_clock, ("worker:1",) * 2),
        (slow_exit, ("worker:0", "worker:1")),
        (killed, ("worker:0",) * 2),
    ]
    for later_s in (0.3, 0.1):  # surely later, and within the uncertainty of the clocks
        story = raised(running(3, 3), 0, 1 + later_s, 1.4)
        raised(raised(story, 1, 1.1 + later_s, 1.6), 2, 1.0, 3.0)
        rows.append((story, ("worker:2", "worker:2")))
    # The exit of a peer came first, and the teardown ended the slow task.
    peers = [raised(running(2), 0, s, 1.4, clock_error_s=0.0) for s in (1.05, 1.3)]
    peers.append(running(2).exits(0, code=1, symptom=UNKNOWN, ended_mono=START + 1.4))
    for story in peers:
        raised(story, 1, 1.0, 1.5, code=0, signal=15, asked=True)
        rows.append((story, ("worker:0", "worker:1")))
    assert [first_and_cause(story) for story, _ in rows] == [expected for _, expected in rows]


def test_exit_with_0_that_is_surely_before_left_early() -> None:
    for error_s, kind in ((0.1, "left_early worker:0"), (2.0, "exited worker:1")):
        story = running(2).exits(0, ended_mono=START - 1, clock_error_s=error_s)
        assert story.exits(1, code=1, symptom=COLLATERAL).end() == f"failed 1: {kind}"


ELASTIC = job(workers=4, fewest_workers=2, hosts="a:2,b:1,c:1", on_failure=FailurePolicy.RESTART)
BACK = "c is back: the next attempt uses it (`orch restart` starts one now)"


def elastic() -> Story:
    """4 workers on three hosts, of which none has trained yet."""
    return Story(ELASTIC).ready().fresh()


def without_c() -> Story:
    """The second attempt, on the other hosts."""
    story = elastic().at(20).loses("c").at(21).torn_down().at(25).at(26).ready()
    return story.fresh()


def planned(orders: list[Action]) -> tuple[int, int, str]:
    """The attempt, its workers and its hosts."""
    (plan,) = [order for order in orders if isinstance(order, PlanAttempt)]
    assert plan.job is not None
    return plan.attempt, plan.job.workers, "".join(host.name for host in plan.job.hosts)


def test_first_attempt_has_all_hosts() -> None:
    story = Story(ELASTIC).joins("a").joins("c")
    assert story.ordered() == []
    assert planned(story.joins("b").ordered()) == (1, 4, "abc")


def test_run_continues_with_fewer_workers() -> None:
    story = elastic().at(20).loses("c").at(21).torn_down()
    assert story.ordered()[1:] == [ReopenHosts()]
    assert story.at(22).ordered() == [ReopenHosts()]
    # It was just lost, and may be back soon.
    assert story.due == (20 + REJOIN_S, Deadline.HOSTS_AWAITED)
    assert planned(story.at(25).ordered()) == (2, 3, "ab")
    assert story.notices[-1] == "attempt 2 has 3 workers instead of 4: c is lost"
    assert len(story.ready().state.tasks) == 3


def test_run_grows_when_a_host_is_back() -> None:
    story = without_c()
    # It is tried again while the attempt runs; nothing else happens when it is back.
    assert story.due == (22 + RETRY_S, Deadline.HOSTS_RETRY)
    assert story.at(22 + RETRY_S).ordered() == [ReopenHosts()]
    assert story.at(33).joins("c").ordered() == []
    assert story.notices[-1] == BACK
    assert (story.at(22 + 2 * RETRY_S).ordered(), story.due) == ([], None)

    story.at(50).restarts().torn_down()
    assert planned(story.at(51).ordered()) == (3, 4, "abc")
    assert story.notices[-1] == "attempt 3 has 4 workers again"
    result = story.ready().exits(0, 1, 2, 3).result()
    assert result.outcome == "succeeded"
    assert [end.workers for end in (*result.earlier_attempts, result)] == [4, 3, 4]


def test_hosts_of_the_next_attempt() -> None:
    """One that is back at once is used: its agent was killed, and not the machine. One of an earlier loss is not waited
    for. None is tried again in a teardown, which may take longer than the interval: it would no longer be the cause."""
    story = elastic().at(20).loses("c")
    assert story.due is not None and story.due[1] == Deadline.TEARDOWN
    assert planned(story.at(21).torn_down().at(21.5).joins("c").at(22).ordered()) == (2, 4, "abc")
    (ended,) = story.state.history
    assert ended.cause is not None and (ended.cause.kind, ended.cause.host) == ("host", "c")
    story = without_c().at(80).trains(0, 3).at(90).exits(0, code=1).torn_down()
    assert planned(story.at(92).ordered()) == (3, 3, "ab")
    assert not [text for text in story.notices if "attempt 3" in text]


def test_host_lost_between_two_attempts_is_left_out() -> None:
    """Its ports were ordered already: they are ordered again without it, and at once."""
    story = elastic().at(20).loses("c").at(21).torn_down().at(28).silent("b").at(37).fresh()
    assert planned(story.loses("b").ordered()) == (2, 2, "a")
    assert story.notices[-2:] == (
        "b was lost: it has not answered for 10s",
        "attempt 2 has 2 workers instead of 3: b and c are lost",
    )
    # A host that returns before the plan waits for the next attempt, too: it may fail in the same way again.
    assert story.at(38).joins("b").ordered() == []
    assert story.notices[-1] == BACK.replace("c", "b", 1)
    assert isinstance(story.plans().ordered()[0], StartTasks)


def test_run_ends_when_too_few_hosts_are_left() -> None:
    story = elastic().at(20).loses("a").at(21).torn_down().at(26).ready().at(40).loses("b").at(41).torn_down()
    end = story.fresh().at(45).ordered()
    assert end[0] == ReopenHosts() and isinstance(end[1], TearDown)
    assert end[1].reason is TeardownReason.FAILURE
    assert story.end() == "failed 137: host b"
    assert story.result().not_restarted == "c has too few slots for 2 workers, the fewest of --workers"
    alone = elastic().at(20).loses("a").loses("b").loses("c").torn_down().at(30)
    assert alone.result().not_restarted == "no host is left for 2 workers, the fewest of --workers"


def test_loss_before_the_first_step_is_restarted() -> None:
    """It says nothing about the program. Without a range, the program must have done a step."""
    assert len(elastic().at(1).loses("c").torn_down().state.history) == 1
    fixed = Story(changed(ELASTIC, fewest_workers=None)).ready().at(1).loses("c")
    assert fixed.result().not_restarted == "it failed before it reported a training step"
    assert not [order for order in fixed.orders if isinstance(order, ReopenHosts)]


def test_steps_of_other_batches_are_not_compared() -> None:
    found = {}
    for before, after in ((96, 96), (128, 96), (None, None)):
        story = elastic().at(10).trains(0, 20, global_batch=before).at(20).loses("c").torn_down()
        story.at(26).ready().at(30).trains(0, 1, start_step=0, global_batch=after)
        found[before, after] = story.state.history[0].steps_lost
    assert found == {(96, 96): 20, (128, 96): None, (None, None): None}
