"""The costs of an event in the lifecycle and of a row on the screen do not grow with the number of tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from event_making import START, exited, lifecycle_of, planned, ready, started
from job_making import JOB, changed

from orchestrator.client.view.status_document import task_statuses
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.activity import waiting_for
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, Progress


def progressed(index: int, progress: Progress) -> Event:
    return events.TaskProgressed(at=START, mono=START, task=f"worker:{index}", progress=progress)


STAGES: tuple[Callable[[int], Event], ...] = (
    started,
    lambda index: progressed(index, Progress(phase="importing")),
    lambda index: progressed(index, Progress(phase="waiting")),
    ready,
    lambda index: progressed(index, Progress(phase="training", step=7)),
    lambda index: exited(index, 0),
)


@pytest.mark.parametrize("spec", [JOB, changed(JOB, stall_timeout_s=60.0, start_timeout_s=60.0)])
def test_cost_of_an_event_does_not_grow_with_tasks(spec: JobSpec) -> None:
    for few, many in zip(_calls_by_stage(spec, 20), _calls_by_stage(spec, 1000), strict=True):
        assert many < 1.2 * few


def _calls_by_stage(spec: JobSpec, tasks: int) -> list[float]:
    """For each kind of event, the number of Python functions and generators that one event enters."""
    lifecycle = lifecycle_of(spec)
    lifecycle.handle(planned(tasks))
    return [_calls_for(lifecycle, [stage(index) for index in range(tasks - 1)]) for stage in STAGES]


def test_cost_of_showing_a_task_that_waits_does_not_grow_with_tasks() -> None:
    few, many = (_calls_to_show(tasks) for tasks in (20, 1000))
    assert many < 1.5 * few


def test_document_of_tasks_that_wait_for_many_names_few_of_them() -> None:
    lifecycle = lifecycle_of(JOB)
    for event in (planned(200), *map(started, range(200)), *map(ready, range(100))):
        lifecycle.handle(event)
    shown = task_statuses(lifecycle.state, {}, START)
    assert [len(task.waiting_for) for task in shown] == [20] * 100 + [0] * 100
    assert shown[0].waiting_for[0] == "worker:100"


def _calls_to_show(tasks: int) -> float:
    lifecycle = lifecycle_of(JOB)
    for event in (planned(tasks), *map(started, range(tasks)), *map(ready, range(tasks // 2))):
        lifecycle.handle(event)
    state = lifecycle.state
    return _calls(lambda: [waiting_for(task, state) for task in state.tasks.values()]) / tasks


def _calls_for(lifecycle: Lifecycle, happened: list[Event]) -> float:
    def handle() -> None:
        for event in happened:
            lifecycle.handle(event)
            lifecycle.next_deadline()

    return _calls(handle) / len(happened)


def _calls(act: Callable[[], object]) -> int:
    calls = 0

    def count(_frame: FrameType, what: str, _: object) -> None:
        nonlocal calls
        calls += what == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls
