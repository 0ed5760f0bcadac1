"""Many small trainings: the values of workers are those of a reference, or docs/keras.md says why they differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_runs import LONGEST_RUN_S, Figures, differing_values, measure
from orch_command import Orch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "keras.md"
# A busy machine may take many times as long as an idle one.
pytestmark = pytest.mark.timeout(3600)


def assert_explained(directory: Path, figures: Figures) -> None:
    assert figures.is_explained, "\n".join([str(figures), *differing_values(directory, figures)])


@pytest.mark.slow
def test_quick_cases_on_two_workers(orch: Orch) -> None:
    found = list(measure(orch.directory, "quick", orch.environ(), workers=(2,), mirrored=False))
    assert len(found) >= 12
    for figures in found:
        assert_explained(orch.directory, figures)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_RUN_S)
def test_all_cases(orch: Orch) -> None:
    found = list(measure(orch.directory, "all", orch.environ()))
    for figures in found:
        assert_explained(orch.directory, figures)
    page, different = PAGE.read_text(), {figures.name for figures in found if not figures.equals_one}
    for figures in found:
        # The case has a row, and another one with its reason. "scripts/tools/cells numbers" writes both.
        assert page.count(f"| {figures.name} |") == 1 + (figures.name in different), figures.name
