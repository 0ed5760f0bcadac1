"""The cost of an event in the lifecycle does not grow with the number of tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from event_making import START, exited, lifecycle_of, planned, ready, started
from job_making import JOB, changed

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.lifecycle import Lifecycle
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
    return [_calls(lifecycle, [stage(index) for index in range(tasks - 1)]) for stage in STAGES]


def _calls(lifecycle: Lifecycle, happened: list[Event]) -> float:
    calls = 0

    def count(_frame: FrameType, what: str, _: object) -> None:
        nonlocal calls
        calls += what == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for event in happened:
            lifecycle.handle(event)
            lifecycle.next_deadline()
    finally:
        sys.setprofile(before)
    return calls / len(happened)
