"""A planned fault in the result of a run: a teardown belongs to it only if its failure ended the attempt."""

from __future__ import annotations

import signal

import pytest
from event_making import (
    START,
    deadline,
    emptied,
    exited,
    feed,
    lifecycle_of,
    planned,
    ready,
    started,
    the_result,
)
from job_making import JOB, changed

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.state.events import TaskExited


@pytest.mark.parametrize(
    ("policy", "exits", "teardown_s"),
    [
        (FailurePolicy.ABORT, [exited(1, signal=signal.SIGKILL, mono=START + 2)], 9.0),
        (
            FailurePolicy.CONTINUE,
            [
                exited(1, signal=signal.SIGKILL, mono=START + 2),
                exited(0, 3, order=1, mono=START + 2.1),
                exited(2, 0, order=2, mono=START + 2.2),
            ],
            None,
        ),
    ],
    ids=["its failure ended the attempt", "another task ended the attempt"],
)
def test_teardown_of_a_fault(
    policy: FailurePolicy, exits: list[TaskExited], teardown_s: float | None
) -> None:
    lifecycle = lifecycle_of(changed(JOB, chaos=parse_chaos("kill worker:1 at 1s"), on_failure=policy))
    feed(lifecycle, [planned(3), *map(started, range(3)), *map(ready, range(3))])
    actions = feed(lifecycle, [deadline("chaos", START + 1), *exits])
    actions += feed(lifecycle, [emptied(START + 9)])
    (fault,) = the_result(actions).faults
    assert (fault.detection_s, fault.teardown_s) == (1.0, teardown_s)
