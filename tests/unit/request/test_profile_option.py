"""--profile: which steps may be asked for, and of which runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_making import Load

from orchestrator.core.errors import UsageError
from orchestrator.core.job.profiled_steps import ProfiledSteps


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("ten", '"ten" is not a range of steps; write 10-20'),
        ("0-5", "the first step is 1"),
        ("20-10", "20-10 ends before it begins; write 10-20"),
        ("1-5000", "1-5000 is more than 1000 steps"),
    ],
)
def test_wrong_steps(load_here: Load, steps: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--profile: {reason}"):
        load_here(profile=steps)


def test_runs_that_can_be_profiled(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert load_here(profile="7", command=["train.py"]).spec.profile == ProfiledSteps(first=7, last=7)
    assert load_here('profile = "3-4"\ncommand = "train.py"').spec.profile == ProfiledSteps(first=3, last=4)
    with pytest.raises(UsageError, match="--profile: true is not a Python program"):
        load_here(profile="3-4", command=["true"])
    with pytest.raises(UsageError, match="--profile: it reads the recordings on this machine"):
        load_here(profile="3-4", hosts="a:1", command=["train.py"])
