"""Progress that a planned fault waits for is not held; other progress is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.progress.reported import INTERVAL_S, ProgressThrottle
from orchestrator.core.state.events import Progress
from orchestrator.core.state.position import position


def throttle_for(chaos: str) -> ProgressThrottle:
    """Return a throttle that has just passed step 1 of task a, at 100 s."""
    throttle = ProgressThrottle(parse_chaos(chaos))
    throttle.put("a", Progress(phase="training", epoch=1, steps=12, step=1))
    assert throttle.take(100.0)
    return throttle


def steps(told: list[tuple[str, Progress]]) -> list[int | None]:
    return [progress.step for _, progress in told]


def test_only_an_awaited_step_passes_immediately() -> None:
    throttle = throttle_for("kill 0 at step 5")
    for step, passes in ((4, False), (5, True), (6, False)):
        throttle.put("a", Progress(step=step))
        assert (throttle.take(100.1) != []) is passes
    assert throttle.due() == 100.1 + INTERVAL_S


def test_awaited_step_merged_with_later_ones_passes() -> None:
    throttle = throttle_for("kill 0 at step 5")
    throttle.put("a", Progress(step=9))
    due = throttle.due()
    assert due is not None and due <= 100.1
    assert steps(throttle.take(100.1)) == [9]


def test_step_of_a_later_epoch_counts_over_all_epochs() -> None:
    throttle = throttle_for("kill 0 at step 20")
    throttle.put("a", Progress(epoch=2, step=7))
    assert throttle.take(100.1) == []
    throttle.put("a", Progress(epoch=2, step=8))
    assert steps(throttle.take(100.2)) == [8]


def test_awaited_epoch_passes_immediately() -> None:
    throttle = throttle_for("kill 0 at epoch 3")
    throttle.put("a", Progress(epoch=2, step=0))
    assert throttle.take(100.1) == []
    throttle.put("a", Progress(epoch=3, step=0))
    assert steps(throttle.take(100.2)) == [0]


def test_any_task_can_be_the_awaited_one() -> None:
    throttle = throttle_for("kill 0 at step 5")
    throttle.put("b", Progress(step=5))
    assert throttle.take(100.1)
    throttle.put("a", Progress(step=5))
    assert throttle.take(100.2)


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(0, 0.4)), max_size=60))
def test_only_awaited_steps_pass_early(told: list[tuple[int, float]]) -> None:
    throttle = ProgressThrottle(parse_chaos("kill 0 at step 10; kill 0 at step 30"))
    now, reached, early = 100.0, -1, 0
    for step, later in told:
        now += later
        throttle.put("a", Progress(step=step))
        passed = any(reached < wanted <= step for wanted in (10, 30))
        taken = throttle.take(now)
        if passed:
            (given,) = taken
            assert position(given[1]) == step
            early += 1
        reached = step
    assert early <= sum(step >= 10 for step, _ in told)
