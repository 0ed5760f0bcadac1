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


def take(story: Story, what: int, place: int, code: int) -> None:
    """Let something happen if it can, to one of the tasks with a process or to one of the hosts that are not lost."""
    live = [task.name for task in story.state.tasks.values() if task.is_live] * 5
    here = [host.name for host in story.state.hosts.values() if host.phase != "lost"] * 5
    of_tasks = events.TaskStarted | events.TaskReady | events.TaskExited
    told = [
        each for each in story.events if isinstance(each, of_tasks) and each.task in story.state.tasks
    ] * 5
    seconds, notice = (0.1, 1.0, 3.0, 20.0, 70.0)[place], [*NoticeSource][place % len(NoticeSource)]
    reason, stack = [*StopReason][code % len(StopReason)], STOPPED if place % 2 else AT_WORK
    acts: list[tuple[object, Callable[[], object]]] = [
        (True, lambda: story.at(story.now + seconds)),
        (story.plan, story.plans),
        (story.plan or story.state.tasks, story.ready),
        (live, lambda: story.exits(live[place], code=code)),
        (live, lambda: story.exits(live[place], signal=9)),
        (live, lambda: story.trains(live[place], code % 4)),
        (live, lambda: story.reports(live[place], bad_loss={"value": "nan"})),
        (live, lambda: story.writes(live[place])),
        (True, lambda: story.stacks(AT_WORK, stack, why=story.asked_stacks or "user")),
        (here, lambda: story.silent(here[place])),
        (here, lambda: story.back(here[place])),
        (here, lambda: story.loses(here[place])),
        (story.spec.hosts, lambda: story.joins("abc"[place % 3])),
        (story.teardown, story.torn_down),
        (True, lambda: story.stops(reason, force=place > 2)),
        (True, story.restarts),
        (True, lambda: story.warns(30.0, notice)),
        (True, story.loses_agent),
        (True, lambda: story.happens(events.StorageFailed, reason="disk full")),
        # Again, such as a second exit of a task, or a start after its exit.
        (told, lambda: story.tell(told[-1 - place])),
    ]
    is_possible, act = acts[what]
    if is_possible:
        act()


steps = st.tuples(st.integers(0, 19), st.integers(0, 4), st.sampled_from([0, 0, 1, 3, 42, 143]))


@given(specs, st.lists(steps, max_size=40))
def test_any_story(spec: JobSpec, happened: list[tuple[int, int, int]]) -> None:
    story = Story(spec)
    for step in happened:
        take(story, *step)
    for _ in range(60):
        if story.lifecycle.result is not None:
            return
        if story.teardown is not None:
            story.torn_down()
        elif story.plan is not None:
            story.ready()
        elif away := [host.name for host in spec.hosts if host.name not in story.state.hosts]:
            story.joins(away[0])
        elif live := [task.name for task in story.state.tasks.values() if task.is_live]:
            story.exits(live[0])
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
