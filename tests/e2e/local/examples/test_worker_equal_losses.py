"""With the same data, global batch and seed, every strategy, loop and input has the same losses within a tolerance."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, Clusters
from forks import ForkServer

from worker.records import main

pytestmark = pytest.mark.timeout(600)

# Relative, for float32 sums in another order. Measured on the digits over 3 epochs: at most 4.5e-7.
TOLERANCE = 1e-5
# Relative, for products rounded to 11 or 8 bits. Measured on the loss of an epoch: 3 % and 7 %.
ROUNDED = {"mixed_float16": 0.10, "mixed_bfloat16": 0.15}
EPOCHS = 3
OVERFLOW_PROGRAM = Path(__file__).with_name("overflow_program.py")
FLOAT16 = ("--strategy=mirrored", "--precision=mixed_float16", "--steps-per-epoch=10", "--export=none")
EPOCH = re.compile(r"^epoch \d/2: loss \d+\.\d+, accuracy \d\.\d+", re.MULTILINE)
CHECKED = ("--epochs=2", "--export=none", "--check-data")
FAST = ("--steps-per-epoch=3", *CHECKED)
EACH_ONCE = "together the workers saw 1442 distinct examples of 1442: each exactly once"


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
    clusters: Clusters, setup: Setup, *more: str, global_batch: int = 32, checkpoints: Path | None = None
) -> list[float]:
    """Return the training loss of each epoch and the held-out loss."""
    words = ["--strategy", setup.strategy, "--loop", setup.loop, "--export", "none", *more]
    words += ["--global-batch", str(global_batch), "--epochs", str(EPOCHS)]
    if setup.replicas is not None:
        words += ["--replicas", str(setup.replicas)]
    history = clusters.train(setup.workers, *words, checkpoints=checkpoints).history
    assert history["replicas"] == setup.workers * (setup.replicas or 1)
    assert history["global_batch"] == global_batch
    return [epoch["loss"] for epoch in history["epochs"]] + [history["held_out"]["loss"]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> list[float]:
    return losses(Clusters(tmp_path_factory.mktemp("reference"), forks), REFERENCE)


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_losses_equal_those_of_one_device(setup: Setup, reference: list[float], clusters: Clusters) -> None:
    assert losses(clusters, setup) == pytest.approx(reference, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--last-batch", "short")], ids=["full", "short"])
def test_unequal_shares_count_each_example_once(more: tuple[str, ...], clusters: Clusters) -> None:
    alone = losses(clusters, Setup("one-device", "custom"), *more, global_batch=33)
    for setup in (
        Setup("mirrored", "custom", replicas=2),
        Setup("multi-worker-mirrored", "custom", workers=2),
    ):
        # Sums of 16 and 17 examples differ from sums of 33 by up to 4e-5; one example more or less makes 1e-2.
        assert losses(clusters, setup, *more, global_batch=33) == pytest.approx(alone, rel=1e-4)


def test_custom_loop_on_one_device_and_fit_on_central_storage_have_equal_losses(clusters: Clusters) -> None:
    short = ("--steps-per-epoch", "10")
    alone = losses(clusters, Setup("one-device", "custom"), *short)
    central = losses(clusters, Setup("central-storage", "fit", replicas=2), *short)
    assert alone[0] > 2 * alone[2] / 1.5, "the loss decreases"
    assert central == pytest.approx(alone, rel=TOLERANCE)


# -- precision


@pytest.mark.slow
@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize(
    "setup",
    [REFERENCE, *(setup for setup in SETUPS if setup.workers * (setup.replicas or 1) == 2)],
    ids=lambda setup: setup.name,
)
def test_mixed_precision_losses_are_close_to_float32(
    setup: Setup, precision: str, reference: list[float], clusters: Clusters
) -> None:
    rounded = losses(clusters, setup, "--precision", precision)
    assert rounded[:EPOCHS] == pytest.approx(reference[:EPOCHS], rel=ROUNDED[precision])
    assert rounded != reference, "the losses are rounded"


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_loss_scale_is_reported_with_every_epoch_and_step(loop: str, clusters: Clusters) -> None:
    cluster = clusters.train(1, *FLOAT16, "--loop", loop, "--epochs", "1")
    assert "2 replicas on CPU:0, CPU:1, mixed_float16" in cluster.outputs[0]
    assert ", loss_scale 32768, " in cluster.outputs[0]
    progress = [json.loads(line) for line in cluster.progress.splitlines()]
    with_metrics = [one for one in progress if one["phase"] == "training" and one.get("metrics")]
    assert with_metrics and progress[-1]["phase"] == "done"
    assert {one["metrics"]["loss_scale"] for one in (*with_metrics, progress[-1])} == {32768.0}


@pytest.mark.slow
def test_resumed_training_in_float16_has_the_same_losses(clusters: Clusters, tmp_path: Path) -> None:
    def epochs(number: int, **more: Path) -> list[float]:
        words = (*FLOAT16, "--loop", "custom", "--epochs", str(number))
        return [epoch["loss"] for epoch in clusters.train(1, *words, **more).history["epochs"]]

    whole = epochs(3)
    assert epochs(2, checkpoints=tmp_path) == whole[:2]
    assert epochs(3, checkpoints=tmp_path) == pytest.approx(whole, rel=1e-5)


# -- data


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("records") / "digits"
    assert main(["digits", str(directory), "--shards=5"]) == 0
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shares"),
    [
        ("--loop=fit --auto-shard=data", (721, 721)),
        ("--loop=fit --input=function", (721, 721)),
        ("--loop=fit --dataset=FILES --auto-shard=data", (721, 721)),
        ("--loop=fit --dataset=FILES --auto-shard=file", (865, 577)),
        ("--loop=fit --dataset=FILES --auto-shard=auto", (865, 577)),
        ("--loop=custom --dataset=FILES --auto-shard=file", (865, 577)),
        ("--loop=custom --dataset=FILES --auto-shard=file --input=function", (865, 577)),
        ("--loop=fit --last-batch=short", (721, 721)),
        ("--loop=custom --last-batch=short", (721, 721)),
    ],
)
def test_two_workers_see_each_example_once_and_print_the_same_losses(
    words: str, shares: tuple[int, int], files: Path, clusters: Clusters
) -> None:
    is_short = "short" in words
    outputs = clusters.train(
        2, *(CHECKED if is_short else FAST), *words.replace("FILES", str(files)).split()
    ).outputs
    for worker, (output, share) in enumerate(zip(outputs, shares, strict=True)):
        assert f"worker:{worker}: saw {share} distinct examples of 1442\n" in output
        assert (EACH_ONCE in output) == (worker == 0)
    # An epoch with a short last batch is one pass.
    assert ("46 steps an epoch" in outputs[0]) == is_short
    epochs = [EPOCH.findall(output) for output in outputs]
    assert len(epochs[0]) == 2 and epochs[0] == epochs[1]
    assert "nan" not in outputs[0]


@pytest.mark.slow
def test_without_sharding_each_worker_sees_all_examples(clusters: Clusters) -> None:
    outputs = clusters.train(2, *FAST, "--auto-shard=off").outputs
    assert "each 2 times, once by each worker, as expected of --auto-shard off" in outputs[0]
    assert all("saw 1442 distinct examples of 1442\n" in output for output in outputs)


@pytest.mark.slow
def test_damaged_record_ends_the_run_and_its_file_is_named(
    files: Path, clusters: Clusters, tmp_path: Path
) -> None:
    for path in files.iterdir():
        content = bytearray(path.read_bytes())
        if path.name.startswith("train-00003"):
            content[20000] ^= 1
        (tmp_path / path.name).write_bytes(content)
    with clusters.start(2, ["--export=none", f"--dataset={tmp_path}", "--auto-shard=file"]) as cluster:
        assert all(code != 0 for code in cluster.wait())
    # Worker 1 reads files 1 and 3.
    assert "train-00003-of-00005.tfrecord is damaged after record" in cluster.outputs[1]


@pytest.mark.slow
def test_order_of_records_is_the_same_in_both_loops_and_after_a_resume(
    clusters: Clusters, tmp_path: Path
) -> None:
    records, checkpoints = tmp_path / "records", tmp_path / "checkpoints"
    assert main(["synthetic", str(records), "--shards=3"]) == 0
    # More than one pass per epoch: each pass has its own order.
    more = ("--dataset", str(records), "--steps-per-epoch", "60")
    alone = losses(clusters, Setup("one-device", "custom"), *more)
    assert losses(clusters, REFERENCE, *more, checkpoints=checkpoints) == pytest.approx(alone, rel=TOLERANCE)
    # Train again from the checkpoint of the first epoch.
    for file in (*checkpoints.glob("ckpt-2.*"), *checkpoints.glob("ckpt-3.*")):
        file.unlink()
    assert losses(clusters, REFERENCE, *more, checkpoints=checkpoints) == pytest.approx(alone, rel=TOLERANCE)
