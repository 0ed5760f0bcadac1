"""The training program as real processes: it trains, saves, resumes, evaluates and exits."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, TRAINED_EPOCHS, Trained, names_in, run_workers
from forks import ForkServer
from trained_state import assert_same_training

# Seconds; a busy machine may be several times slower.
pytestmark = pytest.mark.timeout(600)

# Not anchored at the start of a line: native code writes to stderr, the same file, at any time.
EPOCH_LINE = re.compile(
    r"(epoch (\d+)/\d+: loss \d+\.\d{4}, accuracy \d\.\d{4}), \d+\.\d steps/s$", re.MULTILINE
)
HELD_OUT_LINE = re.compile(r"held-out accuracy (\d\.\d{4}), loss \d+\.\d{4}, on 355 examples$", re.MULTILINE)
PROGRESS_KEYS = {
    "phase", "epoch", "epochs", "step", "steps", "loss", "metrics", "steps_per_s", "examples_per_s",
    "start_step", "skips", "global_batch",
}  # fmt: skip
# Printed by TensorFlow if a process exits before others of its cluster.
EXIT_ERRORS = re.compile("tasks have crashed|heartbeat|Socket closed|UNAVAILABLE|Connection re|Traceback")


def test_workers_print_the_same_epochs_and_accuracy(trained: Trained) -> None:
    epochs = [[line for line, _ in EPOCH_LINE.findall(output)] for output in trained.outputs]
    assert len(epochs[0]) == TRAINED_EPOCHS
    assert epochs[0] == epochs[1]
    held_out = [HELD_OUT_LINE.findall(output) for output in trained.outputs]
    assert held_out[0] == held_out[1]
    (accuracy,) = held_out[0]
    assert float(accuracy) >= 0.9


def test_only_the_chief_prints_the_header_and_the_repair_of_keras(trained: Trained) -> None:
    assert "digits: 1442 training and 355 held-out images of 8x8x1, 10 classes" in trained.outputs[0]
    assert "2 workers, 16 examples each, global batch 32, 45 steps an epoch" in trained.outputs[0]
    assert "fixed for this process" in trained.outputs[0]
    assert "held-out images" not in trained.outputs[1]


def test_only_the_lines_of_the_program_are_printed(trained: Trained) -> None:
    own = re.compile(
        r"^(Keras |worker:|digits:|multi-worker-mirrored|2 workers,|checkpoints in |epoch \d|"
        r"model written to |SavedModel written to |held-out accuracy )"
    )
    for output in trained.outputs:
        assert [line for line in output.splitlines() if not own.match(line)] == []


def test_checkpoint_directory_holds_the_newest_checkpoints_and_the_model(trained: Trained) -> None:
    epochs = range(TRAINED_EPOCHS - 2, TRAINED_EPOCHS + 1)
    kept = [f"ckpt-{epoch}.{part}" for epoch in epochs for part in ("data-00000-of-00001", "index")]
    assert names_in(trained.checkpoints) == sorted(
        ["checkpoint", "export", "history.json", "model.keras", *kept]
    )
    # AutoGraph's files and their bytecode (__pycache__) may remain; orch removes the scratch directory.
    assert [[name for name in names if not name.startswith("__")] for names in trained.scratch] == [[], []]


def test_saved_and_served_models_have_the_same_accuracy_in_a_new_process(
    trained: Trained, tmp_path: Path, forks: ForkServer
) -> None:
    (accuracy,) = HELD_OUT_LINE.findall(trained.outputs[0])
    code = (
        "import sys, keras\n"
        "from worker.training.data.datasets import load_dataset\n"
        "digits = load_dataset('digits', 0)\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        "values = model.evaluate(digits.test_images, digits.test_labels, verbose=0, return_dict=True)\n"
        "print(f\"accuracy {values['accuracy']:.4f}\")\n"
        "import numpy, tensorflow as tf\n"
        "served = tf.saved_model.load(sys.argv[2]).signatures['serving_default']\n"
        "logits = [*served(images=tf.constant(digits.test_images)).values()][0].numpy()\n"
        "assert numpy.allclose(logits, model.predict(digits.test_images, verbose=0), atol=1e-4)\n"
        "print(f'served {(logits.argmax(1) == digits.test_labels).mean():.4f}')\n"
    )
    log = tmp_path / "log"
    words = ["-c", code, str(trained.checkpoints / "model.keras"), str(trained.checkpoints / "export")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    assert forks.start(words, log, env, tmp_path).wait(LONGEST_RUN_S) == 0, log.read_text()
    # Native code writes to stderr, the same file.
    assert log.read_text().endswith(f"accuracy {accuracy}\nserved {accuracy}\n")


def test_progress_reports_every_phase_and_epoch(trained: Trained) -> None:
    assert all(len(line) < 900 for line in trained.progress.splitlines())
    lines = [json.loads(line) for line in trained.progress.splitlines()]
    phases = [line["phase"] for line in lines]
    assert list(dict.fromkeys(phases)) == [
        "importing", "waiting", "starting", "training", "saving", "evaluating", "done",
    ]  # fmt: skip
    assert {key for line in lines for key in line} == PROGRESS_KEYS
    ends = [line for line in lines if line["phase"] == "training" and line["step"] == line["steps"]]
    assert {line["epoch"] for line in ends} == set(range(1, TRAINED_EPOCHS + 1))
    assert all(line["steps"] == 45 and line["epochs"] == TRAINED_EPOCHS for line in ends)
    assert 0 < ends[-1]["loss"] < ends[0]["loss"]
    assert ends[-1]["metrics"]["accuracy"] > 0.9
    assert ends[-1]["examples_per_s"] == pytest.approx(ends[-1]["steps_per_s"] * 32)


def test_second_run_resumes_from_the_newest_readable_checkpoint(
    trained: Trained, tmp_path: Path, forks: ForkServer
) -> None:
    shared = tmp_path / "checkpoints"
    shared.mkdir()
    for file in filter(Path.is_file, trained.checkpoints.iterdir()):
        (shared / file.name).write_bytes(file.read_bytes())
    last, more = TRAINED_EPOCHS, TRAINED_EPOCHS + 1
    torn = shared / f"ckpt-{last}.data-00000-of-00001"
    torn.write_bytes(torn.read_bytes()[:-5000] + bytes(5000))
    (shared / f"ckpt-{more}_temp").mkdir()
    # Parts of a checkpoint that was being deleted, and of one that was being written.
    (shared / "ckpt-1.data-00000-of-00001").write_bytes(b"index deleted")
    (shared / f".ckpt-{more}.worker-0-7.index").write_bytes(b"not renamed yet")
    words = ["--epochs", str(more), "--export", "none"]
    with run_workers(tmp_path, 2, words, checkpoints=shared, forks=forks) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        assert f"ckpt-{last} cannot be read" in cluster.outputs[0]
        for output in cluster.outputs:
            assert f"resumed at epoch {last}\n" in output
            assert [int(epoch) for _, epoch in EPOCH_LINE.findall(output)] == [last, more]
        assert [line for line, _ in EPOCH_LINE.findall(cluster.outputs[0])] == [
            line for line, _ in EPOCH_LINE.findall(cluster.outputs[1])
        ]
        (undisturbed,) = [
            line for line, epoch in EPOCH_LINE.findall(trained.outputs[0]) if int(epoch) == last
        ]
        assert EPOCH_LINE.findall(cluster.outputs[0])[0][0] == undisturbed.replace(f"/{last}:", f"/{more}:")
    names = names_in(shared)
    assert f"ckpt-{more}.index" in names
    assert not [name for name in names if "temp" in name or name.startswith((".", "ckpt-1."))]
    assert_same_training(shared / f"ckpt-{last}", trained.checkpoints / f"ckpt-{last}")


def test_finished_training_is_only_evaluated(trained: Trained, tmp_path: Path, forks: ForkServer) -> None:
    # A copy, because this run writes the history again and other tests read it.
    kept = shutil.copytree(trained.checkpoints, tmp_path / "kept")
    before = names_in(kept)
    with run_workers(
        tmp_path, 1, ["--epochs", str(TRAINED_EPOCHS)], checkpoints=kept, forks=forks
    ) as cluster:
        assert cluster.wait() == [0], cluster.describe()
        (output,) = cluster.outputs
    assert f"already trained for {TRAINED_EPOCHS} epochs: nothing to train" in output
    assert HELD_OUT_LINE.findall(output) == HELD_OUT_LINE.findall(trained.outputs[0])
    assert not EPOCH_LINE.findall(output)
    assert names_in(kept) == before


def test_checkpoints_of_another_model_are_refused(
    trained: Trained, tmp_path: Path, forks: ForkServer
) -> None:
    arguments = ["--dataset", str(colour_images(tmp_path)), "--epochs", "20"]
    with run_workers(tmp_path, 1, arguments, checkpoints=trained.checkpoints, forks=forks) as cluster:
        assert cluster.wait() == [2], cluster.describe()
        assert "does not fit this model" in cluster.outputs[0]


def colour_images(directory: Path) -> Path:
    import numpy as np

    path = directory / "colours.npz"
    images = np.random.RandomState(0).rand(40, 12, 10, 3)
    np.savez(path, images=images, labels=np.arange(40) % 4)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("present", [0, 1])
def test_signal_ends_a_worker_that_waits_for_a_missing_peer(
    number: signal.Signals, code: int, present: int, tmp_path: Path
) -> None:
    with run_workers(tmp_path, 2, started=[present]) as cluster:
        (task,) = cluster.tasks
        task.wait_for_line("waiting for the other worker to connect")
        if present == 0:
            # It listens inside the call that blocks and holds Python's lock.
            task.wait_for_listener()
        task.signal(number)
        assert task.wait() == code


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_signal_ends_training_and_leaves_complete_checkpoints(
    number: signal.Signals, code: int, tmp_path: Path, forks: ForkServer
) -> None:
    with run_workers(tmp_path, 2, ["--epochs", "1000", "--steps-per-epoch", "2"], forks=forks) as cluster:
        cluster.tasks[1].wait_for_line("epoch 4/")
        # Stopped first, because a worker fails if its peer ends before its own signal comes.
        for each in (signal.SIGSTOP, number, signal.SIGCONT):
            for task in cluster.tasks:
                task.signal(each)
        assert cluster.wait() == [code, code], cluster.describe()
    names = set(names_in(cluster.checkpoints))
    state = (cluster.checkpoints / "checkpoint").read_text()
    (newest,) = re.findall(r'^model_checkpoint_path: "(.*)"$', state, re.MULTILINE)
    assert {f"{newest}.index", f"{newest}.data-00000-of-00001"} <= names


@pytest.mark.slow
def test_error_ends_the_process_with_code_1_and_a_traceback(tmp_path: Path) -> None:
    with run_workers(tmp_path, 2, ["--epochs", "1000", "--steps-per-epoch", "2"]) as cluster:
        chief, peer = cluster.tasks
        peer.wait_for_line("epoch 2/")
        cluster.checkpoints.rename(tmp_path / "taken away")
        cluster.checkpoints.write_text("a file where the directory was")
        assert chief.wait() == 1, cluster.describe()
        assert "Traceback" in chief.output
        assert str(cluster.checkpoints) in chief.output
        assert peer.wait() == 1, cluster.describe()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_one_four_and_eight_workers_learn_the_digits(workers: int, tmp_path: Path) -> None:
    with run_workers(tmp_path, workers) as cluster:
        assert cluster.wait() == [0] * workers, cluster.describe()
        held_out = {tuple(HELD_OUT_LINE.findall(output)) for output in cluster.outputs}
        epochs = {tuple(line for line, _ in EPOCH_LINE.findall(output)) for output in cluster.outputs}
    assert len(held_out) == len(epochs) == 1
    ((accuracy,),) = held_out
    assert float(accuracy) >= 0.95


@pytest.mark.slow
def test_the_same_seed_trains_the_same_model(tmp_path: Path, trained: Trained) -> None:
    with run_workers(tmp_path, 2, ["--epochs", str(TRAINED_EPOCHS)]) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        again = [line for line, _ in EPOCH_LINE.findall(cluster.outputs[0])]
    assert again == [line for line, _ in EPOCH_LINE.findall(trained.outputs[0])]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["off", "auto"])
@pytest.mark.parametrize("dataset", ["synthetic", "file"])
def test_other_data_sets_and_policies_train(policy: str, dataset: str, tmp_path: Path) -> None:
    name = str(colour_images(tmp_path)) if dataset == "file" else dataset
    with run_workers(tmp_path, 2, ["--dataset", name, "--auto-shard", policy, "--epochs", "2"]) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        assert all("held-out accuracy" in output for output in cluster.outputs)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_clusters_of_four_exit_without_connection_errors(tmp_path: Path) -> None:
    for number in range(20):
        arguments = ["--epochs", "1", "--steps-per-epoch", "2"]
        with run_workers(tmp_path / str(number), 4, arguments) as cluster:
            assert cluster.wait() == [0] * 4, cluster.describe()
            assert not EXIT_ERRORS.search(cluster.describe()), cluster.describe()


@pytest.mark.slow
def test_without_tf_config_one_worker_trains(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-P", "-m", "worker", "--epochs", "1", "--checkpoint-dir", "here", "--summary"],
        env={name: value for name, value in os.environ.items() if not name.startswith(("TF_CONFIG", "ORCH_"))}
        | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "1 worker, 16 examples" in process.stdout
    assert 'Model: "digits_cnn"' in process.stdout
    assert "model.keras" in names_in(tmp_path / "here")
