"""Collectives: a training step takes one all-reduce for the gradients, and a test step none."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_workers import run_cases

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

CASES = Path(__file__).with_name("collective_cases.py")


def test_a_step_takes_one_collective_whatever_the_metrics(tmp_path: Path) -> None:
    for values in run_cases(tmp_path, 2, CASES, ["collectives"]).of("collectives"):
        assert values["in a training step"] == 1
        assert values["in a test step"] == 0
        assert values["steps"] == 8
        assert values["at once"] == 0
