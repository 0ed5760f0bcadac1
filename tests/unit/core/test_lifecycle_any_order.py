"""Any order of events: a run ends once, and rightly. Story checks the rules after each event."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from making import (
    AT_WORK,
    COLLATERAL,
    OWN,
    STOPPED,
    attempt_planned,
    changed,
    event,
    exited,
    job,
    not_started,
    policies,
    started,
)
from story import Story

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.actions import Deadline, Finish, StartTasks
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, NoticeSource, StopReason
from orchestrator.core.state.state import TaskPhase

Step = Callable[[Story], object]
TASKS = 3
indices = st.integers(0, TASKS - 1)
codes = st.sampled_from([0, 0, 1, 3, 42, 143])
reasons = st.sampled_from(StopReason)


def made(kind: type[Any], **fields: Any) -> st.SearchStrategy[Event]:
    return st.builds(event, st.just(kind), **fields)


stops = made(events.StopRequested, reason=reasons, force=st.booleans())
impossible = st.one_of(
    st.builds(started, indices),
    st.builds(not_started, indices),
    made(events.TaskReady, task=indices),
    st.builds(
        exited,
        indices,
        codes,
        st.sampled_from([None, None, signal.SIGKILL, signal.SIGTERM]),
        order=st.integers(0, 5),
        symptom=st.sampled_from([None, OWN, COLLATERAL]),
        peers=st.dictionaries(indices.map("worker:{}".format), st.sampled_from("RSTtZX")),
    ),
    stops,
    made(events.DeadlineReached, deadline=st.sampled_from([Deadline.TIMEOUT, Deadline.TEARDOWN])),
    made(events.AgentLost, reason=st.just("the agent was lost")),
)


@given(st.lists(stops, max_size=2), st.lists(impossible), st.booleans())
def test_any_events(before: list[Event], after: list[Event], limited: bool) -> None:
    """Even impossible ones, such as two exits of a task or a start after its exit."""
    story = Story(job(workers=TASKS, timeout_s=60.0 if limited else None))
    history = [*before, attempt_planned(TASKS), *after]
    for each in history:
        story.tell(each)
        tasks = story.state.tasks.values()
        assert all(task.phase is not TaskPhase.RUNNING or task.pid is not None for task in tasks)
    story.happens(events.TeardownEnded)
    for each in history:
        story.tell(each)
    assert [isinstance(order, Finish) for order in story.orders].count(True) == 1
    starts = sum(isinstance(order, StartTasks) for order in story.orders)
    assert starts == (0 if before else 1)
    result = story.result()
    if result.outcome == "succeeded":
        assert {task.state for task in result.tasks} == {"succeeded"}


# -- possible events, with any settings

clusters = st.sampled_from(
    [
        {"roles": {"worker": 3}},
        {"roles": {"worker": 2, "evaluator": 1}},
        {"roles": {"chief": 1, "worker": 2, "ps": 1}},
        {"roles": {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}},
        {"roles": {"worker": 4}, "hosts": "a:2,b:2"},
        {"roles": {"worker": 4}, "hosts": "a:2,b:1,c:1", "fewest_workers": 2},
    ]
).map(lambda fields: job(**fields))
settings = st.fixed_dictionaries(
    {
        "on_failure": st.sampled_from(FailurePolicy),
        "max_restarts": st.integers(0, 3),
        "role_settings": st.dictionaries(
            st.sampled_from(["worker", "ps", "evaluator"]), st.sampled_from(FailurePolicy), max_size=2
        ).map(policies),
        "timeout_s": st.sampled_from([None, 200.0]),
        "start_timeout_s": st.sampled_from([None, 20.0]),
        "stall_timeout_s": st.sampled_from([None, 5.0]),
        "silence_notice_s": st.sampled_from([None, 30.0]),
        "evaluator_timeout_s": st.sampled_from([None, 0.0, 30.0]),
        "stop_on_nan": st.booleans(),
    }
)
specs = st.builds(lambda spec, fields: changed(spec, **fields), clusters, settings)


def with_task(story: Story, place: int, act: Callable[[str], object]) -> None:
    """Act on one of the tasks that have a process, if any."""
    live = [task.name for task in story.state.tasks.values() if task.is_live]
    if live:
        act(live[place % len(live)])


def with_host(story: Story, place: int, act: Callable[[str], object]) -> None:
    """Act on one of the hosts that are not lost, if any."""
    here = [host.name for host in story.state.hosts.values() if host.phase != "lost"]
    if here:
        act(here[place % len(here)])


def plan(story: Story) -> None:
    if story.plan is not None:
        story.plans()


def answer_stacks(story: Story, is_stopped: bool) -> None:
    """The stacks that were asked for last, or those that a person asked for."""
    story.stacks(AT_WORK, STOPPED if is_stopped else AT_WORK, why=story.asked_stacks or "user")


places = st.integers(0, 4)
steps: st.SearchStrategy[Step] = st.one_of(
    st.sampled_from([0.1, 1.0, 3.0, 20.0, 70.0]).map(lambda s: lambda story: story.at(story.now + s)),
    st.just(plan),
    st.just(lambda story: story.ready() if story.state.tasks else plan(story)),
    st.tuples(places, codes).map(
        lambda it: lambda story: with_task(story, it[0], lambda task: story.exits(task, code=it[1]))
    ),
    places.map(lambda at: lambda story: with_task(story, at, lambda task: story.exits(task, signal=9))),
    st.tuples(places, st.integers(0, 3)).map(
        lambda it: lambda story: with_task(story, it[0], lambda task: story.trains(task, it[1]))
    ),
    places.map(
        lambda at: (
            lambda story: with_task(story, at, lambda task: story.reports(task, bad_loss={"value": "nan"}))
        )
    ),
    places.map(lambda at: lambda story: with_task(story, at, story.writes)),
    st.booleans().map(lambda is_stopped: lambda story: answer_stacks(story, is_stopped)),
    places.map(lambda at: lambda story: with_host(story, at, story.silent)),
    places.map(lambda at: lambda story: with_host(story, at, story.back)),
    places.map(lambda at: lambda story: with_host(story, at, story.loses)),
    st.sampled_from("abc").map(lambda host: lambda story: story.joins(host) if story.spec.hosts else None),
    st.just(lambda story: story.torn_down() if story.teardown is not None else None),
    st.tuples(reasons, st.booleans()).map(lambda it: lambda story: story.stops(it[0], force=it[1])),
    st.just(lambda story: story.restarts()),
    st.sampled_from(NoticeSource).map(lambda source: lambda story: story.warns(30.0, source)),
    st.just(lambda story: story.loses_agent()),
    st.just(lambda story: story.happens(events.StorageFailed, reason="disk full")),
)


@given(specs, st.lists(steps, max_size=40))
def test_any_story(spec: Any, happened: list[Step]) -> None:
    story = Story(spec)
    for step in happened:
        step(story)
    for _ in range(60):
        if story.lifecycle.result is not None:
            return
        if story.teardown is not None:
            story.torn_down()
        elif story.plan is not None:
            story.ready()
        elif away := [host.name for host in spec.hosts if host.name not in story.state.hosts]:
            story.joins(away[0])
        elif any(task.is_live for task in story.state.tasks.values()):
            with_task(story, 0, lambda task: story.exits(task))
        elif story.due is not None:
            story.at(max(story.now, story.due[0]))
        else:
            story.ready()
    raise AssertionError("the run does not end")
