"""The steps of Keras's `fit` that the bootstrap counts: reports are true, and few however quick the steps are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from worker.bootstrap.cluster_facts import StepCount


class Reports:
    """Stands for the progress pipe."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def report(self, fit: dict[str, Any]) -> None:
        self.sent.append(fit)


def counted() -> tuple[StepCount, list[dict[str, Any]]]:
    pipe = Reports()
    return StepCount(pipe), pipe.sent  # type: ignore[arg-type]


def test_slow_steps_are_all_reported() -> None:
    count, sent = counted()
    for epoch in (2, 3):
        count.begin_epoch(epoch, 5)
        for batch in range(5):
            count.step(batch, 5, now=epoch * 10.0 + batch)
    assert [fit["done"] for fit in sent] == [*range(1, 11)]
    assert {(fit["start"], fit["skips"]) for fit in sent} == {(10, False)}


def test_quick_steps_send_two_reports_per_interval_and_say_that_more_follow() -> None:
    count, sent = counted()
    count.begin_epoch(0, 1000)
    for batch in range(1000):
        count.step(batch, 1000, now=batch / 1000)
    assert sent[:2] == [
        {"done": 1, "start": 0, "skips": False},
        {"done": 2, "start": 0, "skips": True},
    ]
    assert 50 <= len(sent) <= 110
    # A report that claims to be exact is followed by one for the next step.
    for report, following in pairwise(sent):
        assert report["skips"] or following["done"] == report["done"] + 1


def test_start_is_known_once_the_length_of_an_epoch_is_known() -> None:
    count, sent = counted()
    count.begin_epoch(2, None)
    for batch in range(3):
        count.step(batch, None, now=float(batch))
    count.begin_epoch(3, None)
    count.step(0, None, now=9.0)
    assert [(fit["done"], fit["start"]) for fit in sent] == [(1, None), (2, None), (3, None), (4, 6)]


def test_several_steps_in_one_execution_end_with_the_epoch() -> None:
    count, sent = counted()
    count.begin_epoch(0, 5)
    for batch in (1, 3, 5):
        count.step(batch, 5, now=float(batch))
    assert [fit["done"] for fit in sent] == [2, 4, 5]
