"""Mixed precision: the loss scale is reported and saved, and an overflow skips one step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, run_workers

OVERFLOW_PROGRAM = Path(__file__).with_name("overflow_program.py")
FLOAT16 = [
    "--strategy",
    "mirrored",
    "--precision",
    "mixed_float16",
    "--steps-per-epoch",
    "10",
    "--export",
    "none",
]
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.mark.parametrize("strategy", ["mirrored", "central-storage"])
def test_overflow_on_one_replica_skips_the_step_on_all(strategy: str) -> None:
    process = subprocess.run(
        [sys.executable, "-P", str(OVERFLOW_PROGRAM), strategy],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [
        "weight 0.5 scale 4.0",
        "weight 0.5 scale 2.0",
        "weight 0.0 scale 2.0",
    ]


@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_loss_scale_is_reported_with_every_epoch_and_step(loop: str, tmp_path: Path) -> None:
    with run_workers(tmp_path, 1, [*FLOAT16, "--loop", loop, "--epochs", "1"], progress_of=0) as cluster:
        assert cluster.wait() == [0], cluster.describe()
        (output,) = cluster.outputs
        progress = [json.loads(line) for line in cluster.read_progress().splitlines()]
    assert "2 replicas on CPU:0, CPU:1, mixed_float16" in output
    assert ", loss_scale 32768, " in output
    with_metrics = [one for one in progress if one["phase"] == "training" and one.get("metrics")]
    assert with_metrics
    assert progress[-1]["phase"] == "done"
    with_metrics.append(progress[-1])
    assert {one["metrics"]["loss_scale"] for one in with_metrics} == {32768.0}


def test_resumed_training_has_the_same_losses(tmp_path: Path) -> None:
    custom = [*FLOAT16, "--loop", "custom", "--epochs"]

    def epochs(directory: Path, number: str, checkpoints: Path) -> list[float]:
        with run_workers(directory, 1, [*custom, number], checkpoints=checkpoints) as cluster:
            assert cluster.wait() == [0], cluster.describe()
        history = json.loads((checkpoints / "history.json").read_text())
        return [epoch["loss"] for epoch in history["epochs"]]

    whole = epochs(tmp_path / "whole", "3", tmp_path / "whole" / "checkpoints")
    shared = tmp_path / "shared"
    assert epochs(tmp_path / "first", "2", shared) == whole[:2]
    assert epochs(tmp_path / "second", "3", shared) == pytest.approx(whole, rel=1e-5)
