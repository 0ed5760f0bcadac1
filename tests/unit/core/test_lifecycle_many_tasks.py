"""The costs of an event in the lifecycle and of a row on the screen do not grow with the number of tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from making import JOB, RUN_ID, START, attempt_planned, exited, job, progressed, ready, started, state_of

from orchestrator.client.view.status_document import task_statuses
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.activity import waiting_for
from orchestrator.core.state.events import Event
from orchestrator.core.state.state import RunState


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
