"""Elastic runs: which hosts and workers each attempt has after losses and returns, on a virtual clock."""

from __future__ import annotations

from making import changed, job
from story import Story

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
from orchestrator.core.state.events import TeardownReason

ELASTIC = job(workers=4, fewest_workers=2, hosts="a:2,b:1,c:1", on_failure=FailurePolicy.RESTART)
BACK = "c is back: the next attempt uses it (`orch restart` starts one now)"


def running() -> Story:
    """4 workers on three hosts, of which none has trained yet."""
    story = Story(ELASTIC).ready()
    story.ordered()
    return story


def without_c() -> Story:
    """The second attempt, on the other hosts."""
    story = running().at(20).loses("c").at(21).torn_down().at(25).at(26).ready()
    story.ordered()
    return story


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
    story = running().at(20).loses("c").at(21).torn_down()
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
    story = running().at(20).loses("c")
    assert story.due is not None and story.due[1] == Deadline.TEARDOWN
    assert planned(story.at(21).torn_down().at(21.5).joins("c").at(22).ordered()) == (2, 4, "abc")
    (ended,) = story.state.history
    assert ended.cause is not None and (ended.cause.kind, ended.cause.host) == ("host", "c")
    story = without_c().at(80).trains(0, 3).at(90).exits(0, code=1).torn_down()
    assert planned(story.at(92).ordered()) == (3, 3, "ab")
    assert not [text for text in story.notices if "attempt 3" in text]


def test_host_lost_between_two_attempts_is_left_out() -> None:
    """Its ports were ordered already: they are ordered again without it, and at once."""
    story = running().at(20).loses("c").at(21).torn_down().at(28).silent("b").at(37)
    story.ordered()
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
    story = running().at(20).loses("a").at(21).torn_down().at(26).ready().at(40).loses("b").at(41).torn_down()
    story.ordered()
    end = story.at(45).ordered()
    assert end[0] == ReopenHosts() and isinstance(end[1], TearDown)
    assert end[1].reason is TeardownReason.FAILURE
    assert story.end() == "failed 137: host b"
    assert story.result().not_restarted == "c has too few slots for 2 workers, the fewest of --workers"
    alone = running().at(20).loses("a").loses("b").loses("c").torn_down().at(30)
    assert alone.result().not_restarted == "no host is left for 2 workers, the fewest of --workers"


def test_loss_before_the_first_step_is_restarted() -> None:
    """It says nothing about the program. Without a range, the program must have done a step."""
    assert len(running().at(1).loses("c").torn_down().state.history) == 1
    fixed = Story(changed(ELASTIC, fewest_workers=None)).ready().at(1).loses("c")
    assert fixed.result().not_restarted == "it failed before it reported a training step"
    assert not [order for order in fixed.orders if isinstance(order, ReopenHosts)]


def test_steps_of_other_batches_are_not_compared() -> None:
    found = {}
    for before, after in ((96, 96), (128, 96), (None, None)):
        story = running().at(10).trains(0, 20, global_batch=before).at(20).loses("c").torn_down()
        story.at(26).ready().at(30).trains(0, 1, start_step=0, global_batch=after)
        found[before, after] = story.state.history[0].steps_lost
    assert found == {(96, 96): 20, (128, 96): None, (None, None): None}
