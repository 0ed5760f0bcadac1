"""With the same data, global batch and seed, every strategy and loop has the same losses within a tolerance."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, run_workers
from forks import ForkServer

# Relative, for float32 sums in another order. Measured on the digits over 3 epochs: at most 4.5e-7.
TOLERANCE = 1e-5
# Relative, for products rounded to 11 or 8 bits. Measured on the loss of an epoch: 3 % and 7 %.
ROUNDED = {"mixed_float16": 0.10, "mixed_bfloat16": 0.15}
GLOBAL_BATCH = 32
EPOCHS = 3
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Setup:
    """A strategy, loop and cluster size for the same training."""

    strategy: str
    loop: str
    workers: int = 1
    replicas: int | None = None

    @property
    def name(self) -> str:
        return f"{self.strategy}-{self.loop}-{self.workers}x{self.replicas or 1}"


REFERENCE = Setup("one-device", "fit")
SETUPS = (
    Setup("one-device", "custom"),
    Setup("mirrored", "fit", replicas=2),
    Setup("mirrored", "custom", replicas=2),
    Setup("mirrored", "custom", replicas=4),
    Setup("central-storage", "fit", replicas=2),
    Setup("central-storage", "custom", replicas=2),
    Setup("multi-worker-mirrored", "fit", workers=2),
    Setup("multi-worker-mirrored", "custom", workers=2),
    Setup("multi-worker-mirrored", "fit", workers=4),
    Setup("multi-worker-mirrored", "custom", workers=4),
)


def losses(
    directory: Path,
    setup: Setup,
    *more: str,
    global_batch: int = GLOBAL_BATCH,
    forks: ForkServer | None = None,
) -> list[float]:
    """Return the training loss of each epoch and the held-out loss."""
    arguments = ["--strategy", setup.strategy, "--loop", setup.loop, "--export", "none", *more]
    arguments += ["--global-batch", str(global_batch), "--epochs", str(EPOCHS)]
    if setup.replicas is not None:
        arguments += ["--replicas", str(setup.replicas)]
    with run_workers(directory, setup.workers, arguments, forks=forks) as cluster:
        assert cluster.wait() == [0] * setup.workers, cluster.describe()
        history = json.loads((cluster.checkpoints / "history.json").read_text())
    assert history["replicas"] == setup.workers * (setup.replicas or 1)
    assert history["global_batch"] == global_batch
    return [epoch["loss"] for epoch in history["epochs"]] + [history["held_out"]["loss"]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses(tmp_path_factory.mktemp("reference"), REFERENCE)


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_losses_equal_those_of_one_device(setup: Setup, reference: list[float], tmp_path: Path) -> None:
    assert losses(tmp_path, setup) == pytest.approx(reference, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--last-batch", "short")], ids=["full", "short"])
def test_unequal_shares_count_each_example_once(more: tuple[str, ...], tmp_path: Path) -> None:
    alone = losses(tmp_path / "alone", Setup("one-device", "custom"), *more, global_batch=33)
    for setup in (
        Setup("mirrored", "custom", replicas=2),
        Setup("multi-worker-mirrored", "custom", workers=2),
    ):
        # Sums of 16 and 17 examples differ from sums of 33 by up to 4e-5; one example more or less makes 1e-2.
        assert losses(tmp_path / setup.name, setup, *more, global_batch=33) == pytest.approx(alone, rel=1e-4)


def test_custom_loop_on_one_device_and_fit_on_central_storage_have_equal_losses(
    tmp_path: Path, forks: ForkServer
) -> None:
    short = ("--steps-per-epoch", "10")
    alone = losses(tmp_path / "alone", Setup("one-device", "custom"), *short, forks=forks)
    central = losses(tmp_path / "central", Setup("central-storage", "fit", replicas=2), *short, forks=forks)
    assert alone[0] > 2 * alone[2] / 1.5, "the loss decreases"
    assert central == pytest.approx(alone, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize(
    "setup",
    [REFERENCE, *(setup for setup in SETUPS if setup.workers * (setup.replicas or 1) == 2)],
    ids=lambda setup: setup.name,
)
def test_mixed_precision_losses_are_close_to_float32(
    setup: Setup, precision: str, reference: list[float], tmp_path: Path
) -> None:
    rounded = losses(tmp_path, setup, "--precision", precision)
    assert rounded[:EPOCHS] == pytest.approx(reference[:EPOCHS], rel=ROUNDED[precision])
    assert rounded != reference, "the losses are rounded"


@pytest.mark.slow
def test_order_of_records_is_the_same_in_both_loops_and_after_a_resume(tmp_path: Path) -> None:
    records = tmp_path / "records"
    subprocess.run(
        [sys.executable, "-P", "-m", "worker.records", "synthetic", str(records), "--shards", "3"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        timeout=LONGEST_RUN_S,
        check=True,
    )
    # More than one pass per epoch: each pass has its own order.
    more = ("--dataset", str(records), "--steps-per-epoch", "60")
    alone = losses(tmp_path / "custom", Setup("one-device", "custom"), *more)
    directory = tmp_path / "fit"
    assert losses(directory, REFERENCE, *more) == pytest.approx(alone, rel=TOLERANCE)
    # Train again from the checkpoint of the first epoch.
    for newer in (2, 3):
        for file in (directory / "checkpoints").glob(f"ckpt-{newer}.*"):
            file.unlink()
    assert losses(directory, REFERENCE, *more) == pytest.approx(alone, rel=TOLERANCE)
