"""The costs of an event in the lifecycle and of a row on the screen do not grow with the number of tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from making import JOB, RUN_ID, START, attempt_planned, changed, event, exited, progressed, started

from orchestrator.client.view.status_document import task_statuses
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.activity import waiting_for
from orchestrator.core.state.events import Event, TaskReady
from orchestrator.core.state.state import RunState

STAGES: tuple[Callable[[int], Event], ...] = (
    started,
    lambda index: progressed(index, phase="importing"),
    lambda index: progressed(index, phase="waiting"),
    lambda index: event(TaskReady, task=index),
    lambda index: progressed(index, step=7),
    exited,
)


def test_cost_of_an_event_does_not_grow_with_tasks() -> None:
    for spec in (JOB, changed(JOB, stall_timeout_s=60.0, start_timeout_s=60.0)):
        for few, many in zip(calls_by_stage(spec, 20), calls_by_stage(spec, 200), strict=True):
            assert many < 1.2 * few


def calls_by_stage(spec: JobSpec, tasks: int) -> list[float]:
    """For each kind of event, the number of Python functions and generators that one event enters."""
    lifecycle = Lifecycle(spec, RUN_ID, START)
    lifecycle.handle(attempt_planned(tasks))

    def handle(happened: list[Event]) -> None:
        for each in happened:
            lifecycle.handle(each)
            lifecycle.next_deadline()

    stages = ([stage(index) for index in range(tasks - 1)] for stage in STAGES)
    return [calls(handle, happened) / len(happened) for happened in stages]


def test_cost_of_showing_a_task_that_waits_does_not_grow_with_tasks() -> None:
    def show(state: RunState) -> None:
        for task in state.tasks.values():
            waiting_for(task, state)

    few, many = (calls(show, half_ready(tasks)) / tasks for tasks in (20, 200))
    assert many < 1.5 * few


def test_document_of_tasks_that_wait_for_many_names_few_of_them() -> None:
    shown = task_statuses(half_ready(200), {}, START)
    assert [len(task.waiting_for) for task in shown] == [20] * 100 + [0] * 100
    assert shown[0].waiting_for[0] == "worker:100"


def half_ready(tasks: int) -> RunState:
    """A run in which half of the tasks wait for the others."""
    lifecycle = Lifecycle(JOB, RUN_ID, START)
    ready = (event(TaskReady, task=index) for index in range(tasks // 2))
    for each in (attempt_planned(tasks), *map(started, range(tasks)), *ready):
        lifecycle.handle(each)
    return lifecycle.state


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
