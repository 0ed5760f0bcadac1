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


def test_only_awaited_progress_passes_immediately() -> None:
    step, epoch = "kill 0 at step 5", "kill 0 at epoch 3"
    rows: list[tuple[str, list[Progress], list[bool]]] = [
        (step, [Progress(step=4), Progress(step=5), Progress(step=6)], [False, True, False]),
        # Merged with later ones.
        (step, [Progress(step=9)], [True]),
        # A step of a later epoch counts over all epochs.
        ("kill 0 at step 20", [Progress(epoch=2, step=7), Progress(epoch=2, step=8)], [False, True]),
        (epoch, [Progress(epoch=2, step=0), Progress(epoch=3, step=0)], [False, True]),
    ]
    for chaos, reports, passes in rows:
        throttle = throttle_for(chaos)
        for progress, is_awaited in zip(reports, passes, strict=True):
            throttle.put("a", progress)
            due = throttle.due()
            assert due is not None and (due <= 100.1) is is_awaited
            assert [each.step for _, each in throttle.take(100.1)] == ([progress.step] if is_awaited else [])
    # Any task can be the awaited one.
    throttle = throttle_for(step)
    throttle.put("b", Progress(step=5))
    assert throttle.take(100.1)
    throttle.put("a", Progress(step=5))
    assert throttle.take(100.2)
    throttle.put("a", Progress(step=6))
    assert throttle.due() == 100.2 + INTERVAL_S


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
