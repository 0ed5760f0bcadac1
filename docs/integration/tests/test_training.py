"""Tests the training on real clusters on this machine: its files, its result, and its failures."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest

from orchestrator.testing import assert_chief_checkpoint, assert_failed_first, assert_succeeded

PROJECT = Path(__file__).resolve().parents[1]
TRAIN = str(PROJECT / "train.py")
LONG = "100000"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write points of y = 3 x1 - 2 x2 + 1 in two parts."""
    directory = tmp_path / "data"
    directory.mkdir()
    for part in range(2):
        x = np.random.default_rng(part).normal(size=(320, 2))
        y = 3 * x[:, :1] - 2 * x[:, 1:] + 1
        np.savetxt(directory / f"part-{part}.csv", np.hstack([x, y]), delimiter=",")
    return directory


def losses(run, task: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^epoch \d+ loss ([\d.]+)$", run.log(task).read_text(), re.M)]


def test_chief_writes_a_checkpoint_per_epoch(orch_cluster, data: Path) -> None:
    run = orch_cluster(workers=2, command=[TRAIN, str(data), "--epochs", "3"])
    assert_succeeded(run)
    written = assert_chief_checkpoint(run, number=3, verify=True)
    assert [one.name for one in written] == ["ckpt-3"]
    # The other worker writes its checkpoints to another directory.
    assert len(assert_chief_checkpoint(run, at_least=3)) == 3


def test_workers_have_the_same_losses(orch_cluster, data: Path) -> None:
    run = orch_cluster(workers=2, command=[TRAIN, str(data), "--epochs", "3"])
    assert_succeeded(run)
    assert losses(run, "worker:0") == losses(run, "worker:1")
    assert losses(run, "worker:0")[-1] < 0.001


def test_second_run_resumes_where_the_first_ended(orch_preloaded, data: Path, tmp_path: Path) -> None:
    """TensorFlow is already imported for the second cluster."""
    kept = {"checkpoint_dir": tmp_path / "checkpoints"}
    first = orch_preloaded(workers=2, command=[TRAIN, str(data), "--epochs", "1"], **kept)
    assert_succeeded(first)
    second = orch_preloaded(workers=2, command=[TRAIN, str(data), "--epochs", "2"], **kept)
    assert_succeeded(second)
    assert "resumed after epoch 1\n" in second.log("worker:1").read_text()
    assert [one.number for one in assert_chief_checkpoint(second)] == [2]


def test_damaged_part_is_the_reported_cause(orch_cluster, data: Path) -> None:
    with (data / "part-1.csv").open("a") as part:
        part.write("no number,2,3\n")
    run = orch_cluster(workers=2, command=[TRAIN, str(data)])
    assert_failed_first(run, "worker:1", exit_code=1, exception="ValueError")


def test_killed_worker_ends_the_run(orch_cluster, data: Path) -> None:
    run = orch_cluster(workers=2, command=[TRAIN, str(data), "--epochs", LONG], wait=False)
    run.wait_ready()
    run.kill("worker:1")
    assert_failed_first(run, "worker:1", signal=signal.SIGKILL)
