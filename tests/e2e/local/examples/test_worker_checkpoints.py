"""Checkpoints of real processes: each --checkpoint method resumes, and the evaluator alone follows them."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, Clusters, names_in
from forks import ForkServer
from trained_state import assert_same_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

SAVED = re.compile(r"^stop requested: .* as \S*/ckpt-(\d+)(-\d+)?$", re.MULTILINE)
HELD_OUT = re.compile(r"^held-out accuracy .*$", re.MULTILINE)
ALONE = {"evaluator": 1}
THREE = ("--epochs", "3")
WRITES = """
import sys, tensorflow as tf
from worker.training.network import build_network
kept = tf.train.Checkpoint(model=build_network((8, 8, 1), 10), epoch=tf.Variable(0, dtype=tf.int64))
kept.save_counter  # creates it, as CheckpointManager does
for epoch in (1, 2, 3):
    kept.epoch.assign(epoch)
    kept.write(f'{sys.argv[1]}/ckpt-{epoch}')
"""


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (1, "--strategy one-device --loop custom --export savedmodel"),
        (2, "--loop fit --export none"),
        (2, "--loop custom --export none"),
    ],
)
def test_preempted_workers_save_at_one_step_and_have_the_undisturbed_result(
    workers: int, words: str, clusters: Clusters, tmp_path: Path
) -> None:
    """SIGTERM to the last worker ends all with 42."""
    common, shared = ["--checkpoint", "preemption", *words.split()], tmp_path / "checkpoints"
    with clusters.start(workers, [*common, "--epochs", "1000"], checkpoints=shared) as cluster:
        cluster.tasks[0].wait_for_line("epoch 2/")
        cluster.tasks[-1].process.send_signal(signal.SIGTERM)
        assert cluster.wait() == [42] * workers, cluster.describe()
    ((epochs, steps),) = {SAVED.findall(output)[0] for output in cluster.outputs}
    assert f"ckpt-{epochs}{steps}.index" in names_in(shared)
    last = int(epochs) + 1
    resumed = clusters.train(workers, *common, "--epochs", str(last), checkpoints=shared)
    after = f", after {steps[1:]} of its" if steps else "\n"
    assert all(f"resumed at epoch {last}{after}" in output for output in resumed.outputs)
    assert all(output.count("\nepoch ") == 1 for output in resumed.outputs)
    history = resumed.history["epochs"]
    assert [one["epoch"] for one in history] == [*range(1, last + 1)]
    assert history[-1]["steps"] == history[0]["steps"] - int(steps[1:] or 0)
    assert ("export" in names_in(shared), "model.keras" in names_in(shared)) == ("savedmodel" in words, False)
    whole = clusters.train(workers, *common[2:], "--epochs", str(last)).checkpoints
    assert_same_training(shared / f"ckpt-{last}", whole / f"ckpt-{last}", but="save_counter")


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_workers_resume_from_their_backups(workers: int, clusters: Clusters, tmp_path: Path) -> None:
    shared, words = tmp_path / "checkpoints", ("--export", "none", "--epochs")
    by_backup = ("--checkpoint", "backup", *words)
    with clusters.start(workers, [*by_backup, "1000"], checkpoints=shared) as cluster:
        cluster.tasks[0].wait_for_line("epoch 4/")
        for task in cluster.tasks:
            task.signal(signal.SIGKILL)
        cluster.wait()
    assert [one["epoch"] for one in cluster.history["epochs"]][:4] == [1, 2, 3, 4]
    assert names_in(shared / "backup") == [f"worker-{index}" for index in range(workers)]
    resumed = clusters.train(workers, *by_backup, "6", checkpoints=shared).outputs
    # The fourth epoch had ended; its backup was being written or complete.
    (first,) = {tuple(re.findall(r"^resumed at epoch (\d+)$", one, re.MULTILINE)) for one in resumed}
    assert first in (("4",), ("5",))
    again = clusters.train(workers, *by_backup, "6", checkpoints=shared).outputs
    assert all("already trained for 6 epochs" in output for output in again)
    undisturbed = clusters.train(workers, *words, "6").outputs
    ends = [HELD_OUT.findall(output) for output in undisturbed]
    assert len(ends[0]) == 1
    assert [HELD_OUT.findall(output) for output in resumed] == ends
    assert [HELD_OUT.findall(output) for output in again] == ends


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Path:
    """A directory with ckpt-1 to ckpt-3 of the untrained network."""
    directory, log = tmp_path_factory.mktemp("written"), tmp_path_factory.mktemp("log") / "log"
    process = forks.start(["-c", WRITES, str(directory)], log, {"PYTHONPATH": str(ROOT)}, log.parent)
    assert process.wait(LONGEST_RUN_S) == 0, log.read_text()
    return directory


def put(written: Path, epoch: int, into: Path, *, torn: bool = False) -> None:
    """Copy ckpt-<epoch>, the index last as TensorFlow does; `torn`: only half of the data."""
    into.mkdir(parents=True, exist_ok=True)
    data, index = (f"ckpt-{epoch}.{part}" for part in ("data-00000-of-00001", "index"))
    content = (written / data).read_bytes()
    (into / data).write_bytes(content[: len(content) // 2] if torn else content)
    (into / f".{index}").write_bytes((written / index).read_bytes())
    (into / f".{index}").rename(into / index)


def test_torn_checkpoint_is_skipped_and_the_last_one_ends_the_evaluator(
    written: Path, clusters: Clusters
) -> None:
    with clusters.start(ALONE, THREE) as cluster:
        (evaluator,) = cluster.tasks
        put(written, 1, cluster.checkpoints)
        evaluator.wait_for_line("ckpt-1 of epoch 1/3: held-out accuracy")
        put(written, 2, cluster.checkpoints, torn=True)
        evaluator.wait_for_line("ckpt-2 cannot be read")
        put(written, 3, cluster.checkpoints)
        assert evaluator.wait() == 0, evaluator.output
    assert "ckpt-3 of epoch 3/3: held-out accuracy" in evaluator.output
    assert evaluator.output.count("cannot be read") == 1
    assert "ckpt-2 of epoch" not in evaluator.output


def test_newest_of_several_is_evaluated_and_a_torn_last_one_is_an_error(
    written: Path, clusters: Clusters, tmp_path: Path
) -> None:
    for epoch in (1, 2):
        put(written, epoch, tmp_path)
    with clusters.start(ALONE, THREE, checkpoints=tmp_path) as cluster:
        (evaluator,) = cluster.tasks
        evaluator.wait_for_line("ckpt-2 of epoch 2/3: held-out accuracy")
        put(written, 3, tmp_path, torn=True)
        assert evaluator.wait() == 2
    assert "ckpt-3, the last one, cannot be read" in evaluator.output
    assert not re.search(r"Traceback|ckpt-1 of", evaluator.output)


def test_checkpoint_of_another_model_is_an_error(written: Path, clusters: Clusters, tmp_path: Path) -> None:
    put(written, 1, tmp_path)
    (output,) = clusters.train(ALONE, *THREE, "--width", "2", checkpoints=tmp_path, code=2).outputs
    assert "ckpt-1 does not fit this model" in output and "Traceback" not in output
