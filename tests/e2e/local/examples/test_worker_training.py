"""The training program as real processes: it trains, resumes, evaluates and exits."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from cluster import LONGEST_RUN_S, ROOT, TRAINED_EPOCHS, Cluster, Clusters, names_in
from forks import ForkServer
from trained_state import assert_same_training

# Seconds; a busy machine may be several times slower.
pytestmark = pytest.mark.timeout(600)

TPU_PROGRAM = Path(__file__).with_name("tpu_program.py")
# Not anchored at the start of a line: native code writes to stderr, the same file, at any time.
EPOCH_LINE = re.compile(
    r"(epoch (\d+)/\d+: loss (\d+\.\d{4}), accuracy (\d\.\d{4})), \d+\.\d steps/s$", re.MULTILINE
)
HELD_OUT_LINE = re.compile(
    r"held-out accuracy (\d\.\d{4}), loss (\d+\.\d{4}), on 355 examples$", re.MULTILINE
)
PROGRESS_KEYS = {
    "phase", "epoch", "epochs", "step", "steps", "loss", "metrics", "steps_per_s", "examples_per_s",
    "start_step", "skips", "global_batch",
}  # fmt: skip
# Printed by TensorFlow if a process exits before others of its cluster.
EXIT_ERRORS = re.compile("tasks have crashed|heartbeat|Socket closed|UNAVAILABLE|Connection re|Traceback")
ENDLESS = ("--epochs", "1000", "--steps-per-epoch", "2")


def epoch_lines(output: str) -> list[str]:
    return [line for line, *_ in EPOCH_LINE.findall(output)]


def test_workers_print_the_same_epochs_and_accuracy(trained: Cluster) -> None:
    chief, worker = trained.outputs
    assert len(epoch_lines(chief)) == TRAINED_EPOCHS
    assert epoch_lines(chief) == epoch_lines(worker)
    ((accuracy, _),) = HELD_OUT_LINE.findall(chief)
    assert HELD_OUT_LINE.findall(worker) == HELD_OUT_LINE.findall(chief) and float(accuracy) >= 0.9
    # Only the chief prints the header and the repair of Keras; nothing else is printed.
    assert "digits: 1442 training and 355 held-out images of 8x8x1, 10 classes" in chief
    assert "2 workers, 16 examples each, global batch 32, 45 steps an epoch" in chief
    assert "fixed for this process" in chief
    assert "held-out images" not in worker
    own = re.compile(
        r"(Keras |worker:|digits:|multi-worker-mirrored|2 workers,|checkpoints in |epoch \d|"
        r"model written to |SavedModel written to |held-out accuracy )"
    )
    assert [line for line in f"{chief}{worker}".splitlines() if not own.match(line)] == []


def test_checkpoint_directory_holds_the_newest_checkpoints_and_the_model(trained: Cluster) -> None:
    epochs = range(TRAINED_EPOCHS - 2, TRAINED_EPOCHS + 1)
    kept = [f"ckpt-{epoch}.{part}" for epoch in epochs for part in ("data-00000-of-00001", "index")]
    assert names_in(trained.checkpoints) == sorted(
        ["checkpoint", "export", "history.json", "model.keras", *kept]
    )
    # AutoGraph's files and their bytecode (__pycache__) may remain; orch removes the scratch directory.
    scratch = [name for task in trained.tasks for name in names_in(task.scratch)]
    assert [name for name in scratch if not name.startswith("__")] == []


def test_history_equals_the_printed_figures(trained: Cluster) -> None:
    history, chief = trained.history, trained.outputs[0]
    assert [figures for _, *figures in EPOCH_LINE.findall(chief)] == [
        [str(one["epoch"]), f"{one['loss']:.4f}", f"{one['accuracy']:.4f}"] for one in history["epochs"]
    ]
    assert all(one["seconds"] > 0 and one["steps"] == 45 for one in history["epochs"])
    found = history["held_out"]
    assert [(f"{found['accuracy']:.4f}", f"{found['loss']:.4f}")] == HELD_OUT_LINE.findall(chief)
    rest = (found["examples"], history["replicas"], history["global_batch"], history["strategy"])
    assert rest == (355, 2, 32, "multi-worker-mirrored")


def test_only_the_chief_writes_event_files_and_tensorboard_reads_them(
    trained: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With that module TensorBoard reads the files without TensorFlow.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    events = trained.directory / "events"
    assert [(part, len(names_in(events / part))) for part in names_in(events)] == [
        ("held_out", 1),
        ("train", 1),
    ]
    training = scalars(events / "train")
    assert set(training) == {"loss", "accuracy", "learning_rate", "steps_per_s"}
    assert training["loss"] == [
        (45 * one["epoch"], pytest.approx(one["loss"])) for one in trained.history["epochs"]
    ]
    assert training["learning_rate"][0][1] == pytest.approx(0.002 * 2**0.5)
    assert all(value > 0 for _, value in training["steps_per_s"])
    accuracy = pytest.approx(trained.history["held_out"]["accuracy"])
    assert scalars(events / "held_out")["accuracy"] == [(45 * TRAINED_EPOCHS, accuracy)]


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return {tag: [(step, value)]} as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(directory))
    events.Reload()
    return {
        tag: [
            (event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)
        ]
        for tag in events.Tags()["tensors"]
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    }


def test_saved_and_served_models_have_the_same_accuracy_in_a_new_process(
    trained: Cluster, tmp_path: Path, forks: ForkServer
) -> None:
    ((accuracy, _),) = HELD_OUT_LINE.findall(trained.outputs[0])
    code = (
        "import sys, keras, numpy, tensorflow as tf\n"
        "from worker.training.data.datasets import load_dataset\n"
        "digits = load_dataset('digits', 0)\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        "values = model.evaluate(digits.test_images, digits.test_labels, verbose=0, return_dict=True)\n"
        "served = tf.saved_model.load(sys.argv[2]).signatures['serving_default']\n"
        "logits = [*served(images=tf.constant(digits.test_images)).values()][0].numpy()\n"
        "assert numpy.allclose(logits, model.predict(digits.test_images, verbose=0), atol=1e-4)\n"
        "print(f\"accuracy {values['accuracy']:.4f}\")\n"
        "print(f'served {(logits.argmax(1) == digits.test_labels).mean():.4f}')\n"
    )
    log = tmp_path / "log"
    words = ["-c", code, str(trained.checkpoints / "model.keras"), str(trained.checkpoints / "export")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    assert forks.start(words, log, env, tmp_path).wait(LONGEST_RUN_S) == 0, log.read_text()
    # Native code writes to stderr, the same file.
    assert log.read_text().endswith(f"accuracy {accuracy}\nserved {accuracy}\n")


def test_progress_reports_every_phase_and_epoch(trained: Cluster) -> None:
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
    trained: Cluster, tmp_path: Path, clusters: Clusters
) -> None:
    shared = Path(shutil.copytree(trained.checkpoints, tmp_path / "checkpoints"))
    last, more = TRAINED_EPOCHS, TRAINED_EPOCHS + 1
    torn = shared / f"ckpt-{last}.data-00000-of-00001"
    torn.write_bytes(torn.read_bytes()[:-5000] + bytes(5000))
    (shared / f"ckpt-{more}_temp").mkdir()
    # Parts of a checkpoint that was being deleted, and of one that was being written.
    (shared / "ckpt-1.data-00000-of-00001").write_bytes(b"index deleted")
    (shared / f".ckpt-{more}.worker-0-7.index").write_bytes(b"not renamed yet")
    resumed = clusters.train(2, "--epochs", str(more), "--export", "none", checkpoints=shared)
    chief, worker = resumed.outputs
    assert f"ckpt-{last} cannot be read" in chief
    assert all(f"resumed at epoch {last}\n" in output for output in resumed.outputs)
    undisturbed = epoch_lines(trained.outputs[0])[-1].replace(f"/{last}:", f"/{more}:")
    assert epoch_lines(chief) == epoch_lines(worker) == [undisturbed, epoch_lines(chief)[-1]]
    names = names_in(shared)
    assert f"ckpt-{more}.index" in names
    assert not [name for name in names if "temp" in name or name.startswith((".", "ckpt-1."))]
    assert_same_training(shared / f"ckpt-{last}", trained.checkpoints / f"ckpt-{last}")


def test_finished_training_is_only_evaluated(trained: Cluster, tmp_path: Path, clusters: Clusters) -> None:
    # A copy, because this run writes the history again and other tests read it.
    kept = Path(shutil.copytree(trained.checkpoints, tmp_path / "kept"))
    before = names_in(kept)
    (output,) = clusters.train(1, "--epochs", str(TRAINED_EPOCHS), checkpoints=kept).outputs
    assert f"already trained for {TRAINED_EPOCHS} epochs: nothing to train" in output
    assert HELD_OUT_LINE.findall(output) == HELD_OUT_LINE.findall(trained.outputs[0])
    assert not epoch_lines(output) and names_in(kept) == before


def test_checkpoints_of_another_model_are_refused(
    trained: Cluster, tmp_path: Path, clusters: Clusters
) -> None:
    images = np.random.RandomState(0).rand(40, 12, 10, 3)
    np.savez(tmp_path / "colours.npz", images=images, labels=np.arange(40) % 4)
    words = ("--dataset", f"{tmp_path}/colours.npz", "--epochs", "20")
    (output,) = clusters.train(1, *words, checkpoints=trained.checkpoints, code=2).outputs
    assert "does not fit this model" in output


def test_mnist_without_network_is_an_error_with_a_hint(tmp_path: Path, clusters: Clusters) -> None:
    env = dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9") | {
        "no_proxy": "",
        "NO_PROXY": "",
    }
    home = {"KERAS_HOME": str(tmp_path)}
    (output,) = clusters.train(1, "--dataset", "mnist", env=env | home, code=2).outputs
    assert re.search(r"^worker: error: MNIST cannot be downloaded.*--dataset digits", output, re.MULTILINE)


def test_tpu_is_resolved_connected_initialized_and_trained_on(clusters: Clusters) -> None:
    """Without TF_CONFIG there is one worker."""
    words = ["--strategy", "tpu", "--tpu", "stand-in", "--loop", "custom", "--export", "none", "--summary"]
    words += ["--epochs", "1", "--steps-per-epoch", "5"]
    (output,) = clusters.train(1, *words, program=[str(TPU_PROGRAM)], env={"TF_CONFIG": None}).outputs
    assert [line for line in output.splitlines() if "stand-in" in line] == [
        "resolve stand-in",
        "connect resolver of stand-in",
        "initialize resolver of stand-in",
        "strategy of resolver of stand-in",
    ]
    assert "tpu with custom: 2 replicas on CPU:0, CPU:1" in output
    assert 'Model: "digits_cnn"' in output
    assert "epoch 1/1: loss" in output
    assert "on 355 examples" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--strategy tpu --tpu grpc://127.0.0.1:1", "the TPU grpc://127.0.0.1:1 cannot be used"),
        ("--strategy tpu --tpu grpc://nowhere", "grpc://nowhere is not grpc://host:port"),
        ("--strategy tpu --tpu local", "the TPU local cannot be used"),
        ("--strategy one-device --device CPU:3", "there is no such device here; there is CPU:0"),
        ("--communication nccl", "this worker sees none"),
        ("--strategy mirrored --global-batch 33", "take a multiple of 2, or --loop custom"),
        ("--strategy one-device", "can be read (1 found)"),
        ("--strategy dtensor --mesh batch=1", "can be read (1 found)"),
    ],
)
def test_missing_hardware_and_unreadable_checkpoints_end_the_program_with_one_line(
    words: str, says: str, clusters: Clusters, tmp_path: Path
) -> None:
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001") if "found" in says else ():
        (tmp_path / name).write_bytes(b"torn")
    (output,) = clusters.train(1, *words.split(), checkpoints=tmp_path, code=2).outputs
    (line,) = [line for line in output.splitlines() if line.startswith("worker: error: ")]
    assert says in line and "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("present", ["worker:0", "worker:1"])
def test_signal_ends_a_worker_that_waits_for_a_missing_peer(
    number: signal.Signals, code: int, present: str, clusters: Clusters
) -> None:
    with clusters.start(2, only=present) as cluster:
        (task,) = cluster.tasks
        task.wait_for_line("waiting for the other worker to connect")
        if present == "worker:0":
            # It listens inside the call that blocks and holds Python's lock.
            task.wait_for_listener()
        task.signal(number)
        assert task.wait() == code


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_signal_ends_training_and_leaves_complete_checkpoints(
    number: signal.Signals, code: int, clusters: Clusters
) -> None:
    with clusters.start(2, ENDLESS) as cluster:
        cluster.tasks[1].wait_for_line("epoch 4/")
        # Stopped first, because a worker fails if its peer ends before its own signal comes.
        for each in (signal.SIGSTOP, number, signal.SIGCONT):
            for task in cluster.tasks:
                task.signal(each)
        assert cluster.wait() == [code, code], cluster.describe()
    state = (cluster.checkpoints / "checkpoint").read_text()
    (newest,) = re.findall(r'^model_checkpoint_path: "(.*)"$', state, re.MULTILINE)
    assert {f"{newest}.index", f"{newest}.data-00000-of-00001"} <= set(names_in(cluster.checkpoints))


@pytest.mark.slow
def test_error_ends_the_process_with_code_1_and_a_traceback(tmp_path: Path, clusters: Clusters) -> None:
    with clusters.start(2, ENDLESS) as cluster:
        chief, peer = cluster.tasks
        peer.wait_for_line("epoch 2/")
        cluster.checkpoints.rename(tmp_path / "taken away")
        cluster.checkpoints.write_text("a file where the directory was")
        assert cluster.wait() == [1, 1], cluster.describe()
        assert "Traceback" in chief.output and str(cluster.checkpoints) in chief.output


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_clusters_of_four_exit_without_connection_errors(clusters: Clusters) -> None:
    for _ in range(20):
        ended = clusters.train(4, "--epochs", "1", "--steps-per-epoch", "2").describe()
        assert not EXIT_ERRORS.search(ended), ended
