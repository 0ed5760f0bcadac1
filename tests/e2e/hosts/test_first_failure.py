"""The first failure on hosts with different clocks and latencies is named, however its peers end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from first_failure import Draw
from testbed import Testbed

DRAWS = 10


# The report of the first failure arrives last.
LATE = Draw(0, ("", "own", "lost"), (0.1, 0.0, 0.0))
DRAWN = [Draw.at_random(random.Random(seed)) for seed in range(DRAWS)]
# The exits of the peers are reported before its own, which the teardown then brings about.
SLOW_EXITS = [
    Draw(2, ("own", "exit", ""), (0.02,) * 3, exit_s=1.0),
    Draw(0, ("", "lost", "own"), (0.0,) * 3, exit_s=1.0),
]


@pytest.mark.parametrize(
    "draw", [LATE, *(pytest.param(draw, marks=pytest.mark.slow) for draw in (*DRAWN, *SLOW_EXITS))], ids=str
)
def test_first_failure_is_named(machines: Testbed, project: Path, draw: Draw) -> None:
    run = draw.start(machines, project)
    try:
        assert draw.named_wrongly(run) is None, run.text
    finally:
        run.clear()
