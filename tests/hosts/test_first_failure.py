"""The first failure on hosts with different clocks and latencies is named, however its peers end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from first_failure import Draw
from testbed import Testbed

DRAWS = 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(DRAWS))
def test_drawn_first_failure_is_named(machines: Testbed, project: Path, seed: int) -> None:
    draw = Draw.at_random(random.Random(seed))
    run = draw.start(machines, project)
    try:
        assert draw.named_wrongly(run) is None, run.text
    finally:
        run.clear()
