"""The training program's options: what each row of words and variables gives, and what is refused in one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import LONGEST_RUN_S, ROOT
from hypothesis import given
from hypothesis import strategies as st

from worker.training.options.checks import loop_problem, memory_problem
from worker.training.options.fields import LARGEST_SEED, LOOPS, STRATEGIES, Options
from worker.training.options.parser import parse_options
from worker.training.weights import bytes_per_device, dense_units, weight_table

DIGITS = ((8, 8, 1), 10)
TWO, SHORT = "ORCH_TRAINERS=2", "--last-batch short"
CENTRAL, MESH = "--strategy central-storage", "--strategy dtensor --mesh batch=2"
MIRRORED = "--strategy mirrored"
SERVERS, LEGACY = "--strategy parameter-server", "TF_USE_LEGACY_KERAS=1"
PREEMPTION = "--checkpoint preemption"
RUN = "ORCH_RUN_ID=run-1 ORCH_STRATEGY=mirrored"
WHOLE = "is not a whole number from 1 to"

# The files of a directory, by its name.
FILES = {
    "digits": ["dataset.json", "test.tfrecord", "train-0.tfrecord"],
    "two": ["dataset.json", "test.tfrecord", "train-0.tfrecord", "train-1.tfrecord"],
    "no-test": ["dataset.json", "train-0.tfrecord"],
    "no-description": ["test.tfrecord", "train-0.tfrecord"],
    "only-held-out": ["dataset.json", "test.tfrecord"],
    "no-files": ["dataset.json"],
    "saved": ["ckpt-9-3.index", "ckpt-10.index", "ckpt-8.index"],
    "backed-up": ["backup/worker-0/latest.weights.h5"],
    "both": ["backup/worker-0/latest.weights.h5", "ckpt-1.index"],
    "begun": ["backup/worker-0/other", "history.json", "ckpt-2.data-00000-of-00001"],
}

REFUSED = [
    # Values.
    ("--epochs 0", f"argument --epochs: '0' {WHOLE} 100000000"),
    ("--epochs=--", "argument --epochs: '--' is"),
    ("--epochs 1.5", f"argument --epochs: '1.5' {WHOLE}"),
    ("--batch-size -4", f"argument --batch-size: '-4' {WHOLE} 2147483647"),
    ("--keep none", "argument --keep: 'none' is not"),
    ("--steps-per-epoch 0", "argument --steps-per-epoch"),
    ("--learning-rate 0", "argument --learning-rate: '0' is not a number above 0"),
    ("--learning-rate nan", "argument --learning-rate: 'nan'"),
    ("--learning-rate inf", "argument --learning-rate: 'inf'"),
    ("--seed -1", "argument --seed: '-1'"),
    (f"--seed {LARGEST_SEED + 1}", "argument --seed"),
    ("--width 0", "argument --width: '0' is not a whole number"),
    ("--device-memory lots", "argument --device-memory: 'lots' is not a size"),
    ("--dataset cifar", "'cifar' is not a data set; write digits, mnist, synthetic, a file"),
    ("--dataset /nowhere/x.npz", "argument --dataset: there is no file '/nowhere/x.npz'"),
    (f"--checkpoint-dir {__file__}", "is a file, not a directory"),
    ("stray", "'stray' is not known"),
    # Misspelt words.
    ("--epoch 3", "'--epoch' is not known; did you mean \"--epochs\"?"),
    ("--loop custm", "argument --loop: 'custm' is not known; did you mean \"custom\"?"),
    ("--loop zzz", "argument --loop: 'zzz' is not known; choose from fit, custom"),
    ("--dataset mnits", "argument --dataset: 'mnits' is not a data set; did you mean \"mnist\"?"),
    ("--auto_shard=file", "'--auto_shard=file' is not known; did you mean \"--auto-shard\"?"),
    # Strategies, loops and devices.
    ("--replicas 2", "--replicas splits one process's CPU for mirrored and central-storage"),
    ("--strategy one-device --replicas 2", "not for one-device"),
    (f"{MIRRORED} --device CPU:0", "--device names the device of one-device"),
    ("--strategy one-device --device cpu", "'cpu' is not a device; write CPU:0 or GPU:1"),
    (f"{MIRRORED} --tpu mine", "--tpu names the TPU of --strategy tpu"),
    (f"{MIRRORED} --communication ring", "mirrored has none"),
    (f"{MIRRORED} --partitioner fixed", "mirrored has none"),
    (f"{MESH} --loop custom --precision mixed_float16", "dtensor computes in float32"),
    ("--strategy tpu --tpu mine --precision mixed_float16", "take --precision mixed_bfloat16"),
    ("--strategy tpu", "no TPU found: this machine has no TPU or lacks the package libtpu"),
    ("TPU_NAME= --strategy tpu", "no TPU found"),
    (f"{LEGACY} {MIRRORED}", "is only for parameter-server with fit"),
    (f"{SERVERS} --loop fit", "Keras 3 cannot fit under ParameterServerStrategy"),
    (f"{LEGACY} {SERVERS} --loop custom", "is only for parameter-server with fit"),
    # Data.
    (f"{SERVERS} --auto-shard off", "the chief of parameter-server chooses the examples"),
    (f"{SERVERS} --check-data", "the chief of parameter-server chooses the examples"),
    (f"{SERVERS} --input function", "the chief of parameter-server chooses the examples"),
    (f"{LEGACY} {SERVERS} {SHORT}", "fit under parameter-server takes an endless stream"),
    (f"{MESH} --check-data", "cuts each batch itself"),
    ("--auto-shard file", "--auto-shard file gives each worker its own files, and digits is held in memory"),
    (f"{SHORT} --auto-shard off", "take --auto-shard data"),
    (f"{SHORT} --steps-per-epoch 3", "give one"),
    ("ORCH_TRAINERS=3 --dataset two --auto-shard file", "there are 2 for 3 workers: write at least 3 shards"),
    ("--dataset no-test", "argument --dataset: no-test has no test*.tfrecord"),
    ("--dataset no-description", "has no dataset.json"),
    ("--dataset only-held-out", "names held-out files only"),
    ("--dataset no-files", "holds no *.tfrecord files"),
    # Global batches that the replicas cannot share.
    (f"{TWO} --global-batch 1", "no example for some of 2 replicas: take at least 2"),
    (f"{TWO} --global-batch 3 --input function", "cannot be shared evenly by 2 replicas"),
    (f"{TWO} --global-batch 3 --auto-shard off", "cannot be shared evenly by 2 replicas"),
    (f"{TWO} --global-batch 3 --auto-shard auto --dataset two", "cannot be shared evenly by 2 replicas"),
    (f"{MIRRORED} --replicas 4 --loop custom --global-batch 3", "for some of 4 replicas"),
    (f"{CENTRAL} --replicas 4 --global-batch 6", "take a multiple of 4"),
    # Meshes and memory.
    ("--strategy dtensor", "dtensor needs --mesh batch=B,model=M"),
    ("--mesh batch=2", "--mesh is for --strategy dtensor"),
    ("--strategy dtensor --mesh model=3", "--mesh model=3 cannot cut the dense layer's 64 units"),
    (f"{MESH} --global-batch 33", "--global-batch 33 cannot be cut into 2"),
    (f"{MESH} --loop fit", "take `-- --loop custom`"),
    ("--device-memory 500KB", "--device-memory is 500.0 KB: cut the model: --mesh model=2 takes"),
    ("--device-memory 8MB --dataset mnist --width 9", "a device; --device-memory is 8.0 MB"),
    # Checkpoints.
    ("--checkpoint backup --loop custom", "BackupAndRestore is a callback of Keras fit"),
    (f"{LEGACY} {SERVERS} --checkpoint backup", "BackupAndRestore here is Keras 3's"),
    (f"{SERVERS} {PREEMPTION}", "does not support ParameterServerStrategy"),
    (f"{MESH} {PREEMPTION}", "not those of DTensor"),
    ("ORCH_TASK=evaluator:0 --checkpoint backup", "--checkpoint backup writes none"),
    (f"ORCH_TASK=evaluator:0 {MESH}", "those of dtensor hold its own sharded weights"),
    (
        "--checkpoint backup --checkpoint-dir saved",
        "saved/ckpt-10 is of a training with --checkpoint manager or preemption, and backup cannot resume from it: "
        "take --checkpoint manager, or another --checkpoint-dir",
    ),
    (
        "--checkpoint-dir backed-up",
        "backed-up/backup/worker-0 is of a training with --checkpoint backup, and manager cannot resume from it: "
        "take --checkpoint backup, or another --checkpoint-dir",
    ),
    (f"{PREEMPTION} --checkpoint-dir backed-up", "and preemption cannot"),
    # What differs from the options of orch, by which it has started the processes.
    (f"{RUN} --strategy one-device", "--strategy one-device: this run has --strategy mirrored"),
    (f"{RUN} ORCH_REPLICAS=2 --replicas 3", "this run has --replicas 2"),
    (f"{RUN} --replicas 3", "this run was given no --replicas"),
    (f"{RUN} --mesh model=2", "put it before the --: orch up --mesh batch=1,model=2"),
]

ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("--seed 0 --summary", {"seed": 0, "summary": True}),
    ("--checkpoint-dir mine", {"checkpoint_dir": Path("mine")}),
    ("ORCH_CHECKPOINT_DIR=/orch", {"checkpoint_dir": Path("/orch")}),
    ("ORCH_CHECKPOINT_DIR=/orch --checkpoint-dir mine", {"checkpoint_dir": Path("mine")}),
    ("--tensorboard", {"tensorboard": Path("tensorboard")}),
    ("ORCH_TENSORBOARD_DIR=/orch", {"tensorboard": Path("/orch")}),
    ("ORCH_TENSORBOARD_DIR=/orch --tensorboard", {"tensorboard": Path("/orch")}),
    ("ORCH_TENSORBOARD_DIR=/orch --tensorboard mine", {"tensorboard": Path("mine")}),
    # The default loop is one that can train.
    (MIRRORED, {"loop": "fit"}),
    (MESH, {"loop": "custom"}),
    (SERVERS, {"loop": "custom"}),
    (f"{LEGACY} {SERVERS}", {"loop": "fit"}),
    (f"{MIRRORED} --replicas 4 --loop custom --precision mixed_float16", {"replicas": 4}),
    (f"{CENTRAL} --replicas 2 --precision mixed_bfloat16", {}),
    ("--strategy one-device --device gpu:1", {}),
    ("--strategy one-device --device /device:CPU:0", {}),
    ("--strategy tpu --tpu mine --precision mixed_bfloat16", {}),
    ("TPU_NAME=mine --strategy tpu", {}),
    ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS=mine --strategy tpu", {}),
    ("TPU_CONFIG=mine --strategy tpu", {}),
    ("--communication ring", {}),
    (f"{TWO} --global-batch 3", {}),
    (f"{TWO} --global-batch 3 {SHORT}", {}),
    ("--global-batch 1", {}),
    # A user's setting for orch, not the number of this run.
    ("ORCH_WORKERS=2 --global-batch 1", {}),
    (f"{TWO} --global-batch 6 --input function", {}),
    (f"{TWO} --global-batch 3 --auto-shard auto --dataset digits/train*.tfrecord", {}),
    (f"{MIRRORED} --replicas 4 --loop custom --global-batch 6", {}),
    (f"{TWO} --strategy one-device --global-batch 1", {}),
    (f"{TWO} {SERVERS} --global-batch 1", {}),
    # A directory named digits is written so. digits itself is the data set.
    ("--dataset ./digits --auto-shard file", {"dataset": "./digits"}),
    (f"{TWO} --dataset two --auto-shard file", {}),
    ("ORCH_TASK=evaluator:0", {}),
    ("ORCH_TASK=worker:0 --checkpoint backup", {}),
    *(
        (f"--checkpoint {method} --checkpoint-dir {directory}", {"checkpoint": method})
        for method, own in (("manager", "saved"), ("preemption", "saved"), ("backup", "backed-up"))
        for directory in ("new", "begun", "both", own)
    ),
    (RUN, {"strategy": "mirrored"}),
    (f"{RUN} ORCH_REPLICAS=2 --replicas 2", {}),
    ("ORCH_RUN_ID=1 ORCH_STRATEGY=dtensor ORCH_MESH=batch=2,model=1 --mesh batch=2", {"mesh": (2, 1)}),
    ("ORCH_RUN_ID=1 ORCH_STRATEGY=multi-worker-mirrored --communication ring", {}),
    # Not started by orch.
    ("ORCH_STRATEGY=mirrored --strategy one-device", {}),
    ("ORCH_RUN_ID=1 --strategy one-device", {}),
]


def parse(row: str) -> Options:
    """Return the options of a row, whose first words may be variables: `ORCH_TRAINERS=2 --epochs 3`."""
    words = row.split()
    with pytest.MonkeyPatch.context() as patch:
        while words and re.match("[A-Z_]+=", words[0]):
            patch.setenv(*words.pop(0).split("=", 1))
        return parse_options(words)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for directory, names in FILES.items():
        for name in names:
            path = tmp_path / directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    (tmp_path / "begun/backup/worker-0/other").unlink()


@pytest.mark.parametrize(("row", "says"), REFUSED)
def test_options_are_refused_in_one_sentence(row: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(row)
    sentence = capsys.readouterr().err.partition("error: ")[2]
    assert (stop.value.code, sentence.count("\n")) == (2, 1)
    assert says in sentence


def test_options_are_accepted() -> None:
    found = {row: parse(row) for row, _ in ACCEPTED}
    assert found == {row: replace(found[row], **changes) for row, changes in ACCEPTED}
    assert found[""] == Options()


def test_only_two_cells_of_strategy_and_loop_are_refused() -> None:
    cells = [(strategy, loop) for strategy in STRATEGIES for loop in LOOPS]
    refused = [cell for cell in cells if loop_problem(*cell, legacy_keras=False)]
    assert refused == [("parameter-server", "fit"), ("dtensor", "fit")]


@given(st.text())
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        options = parse_options([f"--epochs={text}", f"--learning-rate={text}"])
    except SystemExit as stop:
        assert stop.code == 2
    else:
        assert options.epochs >= 1
        assert 0 < options.learning_rate < float("inf")


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_options(["--help"])
    text = capsys.readouterr().out
    missing = [name for name in vars(Options()) if f"--{name.replace('_', '-')}" not in text]
    assert (stop.value.code, missing) == (0, [])


PLACE = '{"cluster": {"worker": ["a:1"%s]%s}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("words", "place", "says", "imports"),
    [
        ("--epochs many", "", "argument --epochs: 'many'", {"tensorflow", "keras", "numpy"}),
        ("--dataset broken.npz", "", "worker: error: broken.npz cannot be read as a .npz", {"tensorflow"}),
        ("--dataset two --auto-shard off", "{", "error: TF_CONFIG cannot be read", {"tensorflow", "numpy"}),
        ("", PLACE % ("", ', "ps": ["b:1"]'), "takes no parameter servers", {"tensorflow"}),
        ("--strategy one-device", PLACE % (', "b:2"', ""), "TF_CONFIG has 2 workers", {"tensorflow"}),
    ],
)
def test_program_ends_before_slow_imports(
    words: str, place: str, says: str, imports: set[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.npz").write_bytes(b"not a zip archive")
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-P", "-m", "worker", *words.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CONFIG": place},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 2 and says in process.stderr
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "worker.training.data.record_files" in imported
    assert not imported & imports


@given(st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_devices_together_hold_cut_weights_once_and_others_each(width: int, parts: int) -> None:
    table = weight_table((28, 20, 3), 7, width)
    kept = bytes_per_device([weight for weight in table if weight.cut is None])
    cut = bytes_per_device([weight for weight in table if weight.cut is not None])
    assert bytes_per_device(table, parts) * parts == cut + kept * parts


def test_training_within_the_budget_is_accepted() -> None:
    takes = bytes_per_device(weight_table(*DIGITS, 1))
    assert memory_problem(Options(device_memory=takes), *DIGITS) is None
    assert memory_problem(Options(device_memory=takes - 1), *DIGITS) is not None


def test_refusal_names_the_smallest_mesh_that_fits() -> None:
    asked = Options(width=64, device_memory=8_000_000)
    assert memory_problem(asked, *DIGITS) == (
        "weights, gradients and Adam's moments take 17.8 MB a device; --device-memory is 8.0 MB: "
        "cut the model: --mesh model=4 takes 4.7 MB"
    )
    fits = [
        parts
        for parts in range(1, 5)
        if dense_units(64) % parts == 0
        and memory_problem(replace(asked, strategy="dtensor", mesh=(1, parts)), *DIGITS) is None
    ]
    assert fits == [4]


@pytest.mark.parametrize(("width", "way"), [(1, "allow more"), (2, "take a smaller --width")])
def test_refusal_if_no_mesh_fits(width: int, way: str) -> None:
    found = memory_problem(Options(width=width, device_memory=1000), *DIGITS)
    assert found is not None
    assert "no --mesh cuts it far enough" in found and found.endswith(way)
