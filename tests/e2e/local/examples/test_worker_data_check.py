"""--check-data in a real cluster: two workers see each example once, with every kind of input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cluster import run_workers

from worker.records import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EPOCH = re.compile(r"^epoch \d/2: loss \d+\.\d+, accuracy \d\.\d+", re.MULTILINE)
FAST = ["--epochs=2", "--steps-per-epoch=3", "--export=none", "--check-data"]
EACH_ONCE = "together the workers saw 1442 distinct examples of 1442: each exactly once"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("records") / "digits"
    assert main(["digits", str(directory), "--shards=5"]) == 0
    return str(directory)


@pytest.mark.parametrize(
    ("loop", "options", "shares"),
    [
        ("fit", ["--auto-shard=data"], (721, 721)),
        ("fit", ["--input=function"], (721, 721)),
        ("fit", ["--dataset=FILES", "--auto-shard=data"], (721, 721)),
        ("fit", ["--dataset=FILES", "--auto-shard=file"], (865, 577)),
        ("fit", ["--dataset=FILES", "--auto-shard=auto"], (865, 577)),
        ("custom", ["--dataset=FILES", "--auto-shard=file"], (865, 577)),
        ("custom", ["--dataset=FILES", "--auto-shard=file", "--input=function"], (865, 577)),
    ],
)
def test_two_workers_see_each_example_once_and_print_the_same_losses(
    loop: str, options: list[str], shares: tuple[int, int], files: str, tmp_path: Path
) -> None:
    words = [word.replace("FILES", files) for word in options]
    with run_workers(tmp_path, 2, [*FAST, f"--loop={loop}", *words]) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        for worker, (output, share) in enumerate(zip(cluster.outputs, shares, strict=True)):
            assert f"worker:{worker}: saw {share} distinct examples of 1442\n" in output
            assert (EACH_ONCE in output) == (worker == 0)
        epochs = [EPOCH.findall(output) for output in cluster.outputs]
        assert len(epochs[0]) == 2
        assert epochs[0] == epochs[1]


def test_without_sharding_each_worker_sees_all_examples(tmp_path: Path) -> None:
    with run_workers(tmp_path, 2, [*FAST, "--auto-shard=off"]) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        assert "each 2 times, once by each worker, as expected of --auto-shard off" in cluster.outputs[0]
        assert all("saw 1442 distinct examples of 1442\n" in output for output in cluster.outputs)


@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_epoch_with_a_short_last_batch_is_one_pass(loop: str, tmp_path: Path) -> None:
    words = ["--epochs=2", "--export=none", "--check-data", "--last-batch=short", f"--loop={loop}"]
    with run_workers(tmp_path, 2, words) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        assert "46 steps an epoch" in cluster.outputs[0]
        assert EACH_ONCE in cluster.outputs[0]
        epochs = [EPOCH.findall(output) for output in cluster.outputs]
        assert len(epochs[0]) == 2
        assert epochs[0] == epochs[1]
        assert "nan" not in cluster.outputs[0]


def test_damaged_record_ends_the_run_and_its_file_is_named(files: str, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    for path in Path(files).iterdir():
        content = bytearray(path.read_bytes())
        if path.name.startswith("train-00003"):
            content[20000] ^= 1
        (tmp_path / "digits" / path.name).write_bytes(content)
    words = ["--export=none", f"--dataset={tmp_path / 'digits'}", "--auto-shard=file"]
    with run_workers(tmp_path / "run", 2, words) as cluster:
        assert all(code != 0 for code in cluster.wait())
        # Worker 1 reads files 1 and 3.
        assert "train-00003-of-00005.tfrecord is damaged after record" in cluster.outputs[1]


def test_fewer_files_than_workers_is_an_error_in_each_worker(files: str, tmp_path: Path) -> None:
    words = [f"--dataset={files}/train-00000*.tfrecord", "--auto-shard=file"]
    with run_workers(tmp_path, 2, words) as cluster:
        assert cluster.wait() == [2, 2], cluster.describe()
        for output in cluster.outputs:
            assert "there is 1 for 2 workers: write at least 2 shards, or take --auto-shard data" in output
