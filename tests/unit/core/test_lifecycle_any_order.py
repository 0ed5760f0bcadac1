"""Any order of events: a run ends once, and rightly. Story checks the rules after each event.

The costs of an event in the lifecycle and of a row on the screen do not grow with the number of tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from making import (
    AT_WORK,
    JOB,
    RUN_ID,
    START,
    STOPPED,
    attempt_planned,
    changed,
    exited,
    job,
    policies,
    progressed,
    ready,
    started,
    state_of,
)
from story import Story

from orchestrator.client.view.status_document import task_statuses
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.activity import waiting_for
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, NoticeSource, StopReason
from orchestrator.core.state.state import RunState

Step = Callable[[Story], object]
codes = st.sampled_from([0, 0, 1, 3, 42, 143])
reasons = st.sampled_from(StopReason)

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
        "chaos": st.sampled_from(
            ["kill any#1 at step 2; term any#2 at ready in attempt 2", "stop 0 at 3s for 2s"]
        )
        .map(parse_chaos)
        .flatmap(lambda faults: st.sampled_from([(), faults])),
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


def tell_again(story: Story, place: int) -> None:
    """An event of the attempt happens again, such as a second exit of a task or a start after its exit."""
    kinds = events.TaskStarted | events.TaskReady | events.TaskExited
    told = [each for each in story.events if isinstance(each, kinds) and each.task in story.state.tasks]
    if told:
        story.tell(told[-1 - place % len(told)])


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
    places.map(lambda at: lambda story: tell_again(story, at)),
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


def calls_by_stage(spec: JobSpec, tasks: int) -> list[float]:
    """For each kind of event, the number of Python functions and generators that one event enters."""
    lifecycle = Lifecycle(spec, RUN_ID, START)
    lifecycle.handle(attempt_planned(tasks))

    def handle(happened: list[Event]) -> None:
        for each in happened:
            lifecycle.handle(each)
            lifecycle.next_deadline()

    stages: tuple[Callable[[int], Event], ...] = (
        started,
        lambda index: progressed(index, phase="importing"),
        lambda index: progressed(index, phase="waiting"),
        ready,
        lambda index: progressed(index, step=7),
        exited,
    )
    by_stage = ([stage(index) for index in range(tasks - 1)] for stage in stages)
    return [calls(handle, happened) / len(happened) for happened in by_stage]


def test_cost_of_an_event_does_not_grow_with_tasks() -> None:
    for spec in (JOB, job(stall_timeout_s=60.0, start_timeout_s=60.0)):
        for few, many in zip(calls_by_stage(spec, 20), calls_by_stage(spec, 200), strict=True):
            assert many < 1.2 * few


def test_tasks_that_wait_for_many_are_shown_with_few_of_them_at_the_same_cost() -> None:
    def show(state: RunState) -> None:
        for task in state.tasks.values():
            waiting_for(task, state)

    few, many = (
        state_of(attempt_planned(tasks), *map(started, range(tasks)), *map(ready, range(tasks // 2)))
        for tasks in (20, 200)
    )
    assert calls(show, many) / 200 < 1.5 * calls(show, few) / 20
    shown = task_statuses(many, {}, START)
    assert [len(task.waiting_for) for task in shown] == [20] * 100 + [0] * 100
    assert shown[0].waiting_for[0] == "worker:100"


def calls(act: Callable[[Any], object], on: object) -> int:
    """The number of Python functions that are entered."""
    entered = 0

    def count(_frame: FrameType, what: str, _: object) -> None:
        nonlocal entered
        entered += what == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act(on)
    finally:
        sys.setprofile(before)
    return entered
