"""The side-car evaluator alone: new checkpoints, torn ones, and ones that do not fit the model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, run_roles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ALONE = {"evaluator": 1}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with ckpt-1 to ckpt-3 of the untrained network."""
    directory = tmp_path_factory.mktemp("written")
    code = (
        "import sys, tensorflow as tf\n"
        "from worker.training.network import build_network\n"
        "kept = tf.train.Checkpoint(model=build_network((8, 8, 1), 10), epoch=tf.Variable(0, dtype=tf.int64))\n"
        "kept.save_counter\n"  # creates it, as CheckpointManager does
        "for epoch in (1, 2, 3):\n"
        "    kept.epoch.assign(epoch)\n"
        "    kept.write(f'{sys.argv[1]}/ckpt-{epoch}')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(directory)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=LONGEST_RUN_S,
        check=True,
    )
    return directory


def put(checkpoints: Path, epoch: int, into: Path, *, torn: bool = False) -> None:
    """Copy ckpt-<epoch>, the index last as TensorFlow does; `torn`: only half of the data."""
    into.mkdir(parents=True, exist_ok=True)
    data, index = (f"ckpt-{epoch}.{part}" for part in ("data-00000-of-00001", "index"))
    content = (checkpoints / data).read_bytes()
    (into / data).write_bytes(content[: len(content) // 2] if torn else content)
    (into / f".{index}").write_bytes((checkpoints / index).read_bytes())
    (into / f".{index}").rename(into / index)


def test_torn_checkpoint_is_skipped_and_the_last_one_ends_the_evaluator(
    checkpoints: Path, tmp_path: Path
) -> None:
    with run_roles(tmp_path, ALONE, ("--epochs", "3")) as roles:
        evaluator = roles.tasks["evaluator:0"]
        put(checkpoints, 1, roles.checkpoints)
        evaluator.wait_for_line("ckpt-1 of epoch 1/3: held-out accuracy")
        put(checkpoints, 2, roles.checkpoints, torn=True)
        evaluator.wait_for_line("ckpt-2 cannot be read")
        put(checkpoints, 3, roles.checkpoints)
        assert evaluator.wait() == 0, evaluator.output
        assert "ckpt-3 of epoch 3/3: held-out accuracy" in evaluator.output
        assert evaluator.output.count("cannot be read") == 1
        assert "ckpt-2 of epoch" not in evaluator.output


def test_newest_of_several_is_evaluated_and_a_torn_last_one_is_an_error(
    checkpoints: Path, tmp_path: Path
) -> None:
    for epoch in (1, 2):
        put(checkpoints, epoch, tmp_path / "checkpoints")
    with run_roles(tmp_path, ALONE, ("--epochs", "3")) as roles:
        evaluator = roles.tasks["evaluator:0"]
        evaluator.wait_for_line("ckpt-2 of epoch 2/3: held-out accuracy")
        put(checkpoints, 3, roles.checkpoints, torn=True)
        assert evaluator.wait() == 2
        assert "Traceback" not in evaluator.output
        assert "ckpt-3, the last one, cannot be read" in evaluator.output
        assert "ckpt-1 of" not in evaluator.output


def test_checkpoint_of_another_model_is_an_error(checkpoints: Path, tmp_path: Path) -> None:
    put(checkpoints, 1, tmp_path / "checkpoints")
    with run_roles(tmp_path, ALONE, ("--epochs", "3", "--width", "2")) as roles:
        evaluator = roles.tasks["evaluator:0"]
        assert evaluator.wait() == 2
        assert "Traceback" not in evaluator.output
        assert "ckpt-1 does not fit this model" in evaluator.output
