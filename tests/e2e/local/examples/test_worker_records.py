"""The history of a training with two workers, its event files, and the three --checkpoint methods."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cluster import TRAINED_EPOCHS, Trained, names_in, run_workers
from trained_state import assert_same_training

from worker.training.options.parser import parse_options

pytestmark = pytest.mark.timeout(600)

SAVED = re.compile(r"^stop requested: .* as \S*/ckpt-(\d+)(-\d+)?$", re.MULTILINE)


def document(directory: Path) -> Any:
    return json.loads((directory / "history.json").read_text())


def test_history_equals_the_printed_figures(trained: Trained) -> None:
    history = document(trained.checkpoints)
    # Not anchored at the start of a line: native code writes to stderr, the same file, at any time.
    printed = re.findall(rf"epoch (\d+)/{TRAINED_EPOCHS}: loss (\S+), accuracy (\S+),", trained.outputs[0])
    assert [
        (str(one["epoch"]), f"{one['loss']:.4f}", f"{one['accuracy']:.4f}") for one in history["epochs"]
    ] == printed
    assert all(one["seconds"] > 0 and one["steps"] == 45 for one in history["epochs"])
    (held_out,) = re.findall(r"held-out accuracy (\S+), loss (\S+), on 355", trained.outputs[0])
    found = history["held_out"]
    assert (f"{found['accuracy']:.4f}", f"{found['loss']:.4f}", found["examples"]) == (*held_out, 355)
    assert (history["replicas"], history["global_batch"], history["strategy"]) == (
        2,
        32,
        "multi-worker-mirrored",
    )


def test_only_the_chief_writes_event_files_and_tensorboard_reads_them(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With that module TensorBoard reads the files without TensorFlow.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    assert names_in(trained.event_files) == ["held_out", "train"]
    assert [len(names_in(trained.event_files / part)) for part in ("held_out", "train")] == [1, 1]
    history = document(trained.checkpoints)
    training = scalars(trained.event_files / "train")
    assert set(training) == {"loss", "accuracy", "learning_rate", "steps_per_s"}
    assert [step for step, _ in training["loss"]] == [45 * epoch for epoch in range(1, TRAINED_EPOCHS + 1)]
    assert [value for _, value in training["loss"]] == pytest.approx(
        [one["loss"] for one in history["epochs"]]
    )
    assert training["learning_rate"][0][1] == pytest.approx(0.002 * 2**0.5)
    assert all(value > 0 for _, value in training["steps_per_s"])
    held_out = scalars(trained.event_files / "held_out")
    assert held_out["accuracy"] == [(45 * TRAINED_EPOCHS, pytest.approx(history["held_out"]["accuracy"]))]


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return {tag: [(step, value)]} as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(directory))
    events.Reload()
    tags = [
        tag
        for tag in events.Tags()["tensors"]
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    ]
    return {
        tag: [
            (event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)
        ]
        for tag in tags
    }


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--checkpoint", "backup", "--loop", "custom"], "BackupAndRestore is a callback of Keras fit"),
        (
            ["--checkpoint", "backup", "--strategy", "parameter-server"],
            "BackupAndRestore here is Keras 3's",
        ),
        (
            ["--checkpoint", "preemption", "--strategy", "parameter-server", "--loop", "custom"],
            "does not support ParameterServerStrategy",
        ),
        (
            ["--checkpoint", "preemption", "--strategy", "dtensor", "--mesh", "batch=2", "--loop", "custom"],
            "not those of DTensor",
        ),
    ],
)
def test_checkpoint_method_that_a_strategy_cannot_use_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With Keras 3 fit under parameter-server would be refused first.
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1" if "custom" not in words else "0")
    with pytest.raises(SystemExit) as ended:
        parse_options(words)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_the_directory_for_event_files_comes_from_orch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options([]).tensorboard is None
    assert parse_options(["--tensorboard"]).tensorboard == Path("tensorboard")
    assert parse_options(["--tensorboard", "here"]).tensorboard == Path("here")
    monkeypatch.setenv("ORCH_TENSORBOARD_DIR", "/run/tensorboard")
    assert parse_options([]).tensorboard == Path("/run/tensorboard")
    assert parse_options(["--tensorboard"]).tensorboard == Path("/run/tensorboard")
    assert parse_options(["--tensorboard", "here"]).tensorboard == Path("here")


@pytest.mark.slow
def test_preempted_process_saves_and_resumes(tmp_path: Path) -> None:
    words = ["--strategy", "one-device", "--loop", "custom", "--export", "savedmodel"]
    preempt_and_resume(tmp_path, 1, words)
    assert "export" in names_in(tmp_path / "checkpoints")
    assert "model.keras" not in names_in(tmp_path / "checkpoints")


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_preempted_workers_save_at_one_step_and_have_the_undisturbed_result(
    loop: str, tmp_path: Path
) -> None:
    words = ["--loop", loop, "--export", "none"]
    epochs = preempt_and_resume(tmp_path, 2, words)
    with run_workers(tmp_path / "undisturbed", 2, [*words, "--epochs", str(epochs)]) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        assert_same_training(
            tmp_path / "checkpoints" / f"ckpt-{epochs}",
            cluster.checkpoints / f"ckpt-{epochs}",
            but="save_counter",
        )


def preempt_and_resume(directory: Path, workers: int, words: Sequence[str]) -> int:
    """Train until SIGTERM to the last worker ends all with 42, resume, and return the number of epochs."""
    common = ["--checkpoint", "preemption", *words]
    with run_workers(directory, workers, [*common, "--epochs", "1000"]) as cluster:
        cluster.tasks[0].wait_for_line("epoch 2/")
        cluster.tasks[-1].process.send_signal(signal.SIGTERM)
        assert cluster.wait() == [42] * workers, cluster.describe()
        saved = {SAVED.findall(output)[0] for output in cluster.outputs}
    # All workers saved at the same step.
    ((epochs, steps),) = saved
    assert f"ckpt-{epochs}{steps}.index" in names_in(directory / "checkpoints")
    last = int(epochs) + 1
    with run_workers(directory, workers, [*common, "--epochs", str(last)]) as cluster:
        assert cluster.wait() == [0] * workers, cluster.describe()
        after = f", after {steps[1:]} of its" if steps else "\n"
        assert all(f"resumed at epoch {last}{after}" in output for output in cluster.outputs)
        assert all(output.count("\nepoch ") == 1 for output in cluster.outputs)
    history = document(directory / "checkpoints")["epochs"]
    assert [one["epoch"] for one in history] == [*range(1, last + 1)]
    assert history[-1]["steps"] == history[0]["steps"] - int(steps[1:] or 0)
    return last


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_workers_resume_from_their_backups(workers: int, tmp_path: Path) -> None:
    words = ["--export", "none"]
    with run_workers(tmp_path, workers, [*words, "--checkpoint", "backup", "--epochs", "1000"]) as cluster:
        cluster.tasks[0].wait_for_line("epoch 4/")
        for task in cluster.tasks:
            task.signal(signal.SIGKILL)
        cluster.wait()
    assert [one["epoch"] for one in document(tmp_path / "checkpoints")["epochs"]][:4] == [1, 2, 3, 4]
    backups = tmp_path / "checkpoints" / "backup"
    assert names_in(backups) == [f"worker-{index}" for index in range(workers)]
    with run_workers(tmp_path, workers, [*words, "--checkpoint", "backup", "--epochs", "6"]) as cluster:
        assert cluster.wait() == [0] * workers, cluster.describe()
        resumed = [re.findall(r"^resumed at epoch (\d+)$", one, re.MULTILINE) for one in cluster.outputs]
        first = int(resumed[0][0])
        # The fourth epoch had ended; its backup was being written or complete.
        assert first in (4, 5)
        assert resumed == [[str(first)]] * workers
        ends = [held_out(output) for output in cluster.outputs]
    with run_workers(tmp_path, workers, [*words, "--checkpoint", "backup", "--epochs", "6"]) as cluster:
        assert cluster.wait() == [0] * workers, cluster.describe()
        assert all("already trained for 6 epochs" in output for output in cluster.outputs)
        assert [held_out(output) for output in cluster.outputs] == ends
    with run_workers(tmp_path / "undisturbed", workers, [*words, "--epochs", "6"]) as cluster:
        assert cluster.wait() == [0] * workers, cluster.describe()
        assert [held_out(output) for output in cluster.outputs] == ends


def held_out(output: str) -> str:
    (line,) = re.findall(r"^held-out accuracy .*$", output, re.MULTILINE)
    return str(line)
