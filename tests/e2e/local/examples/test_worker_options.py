"""The training program's options: defaults, bad values, and what is imported before they are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT
from hypothesis import given
from hypothesis import strategies as st

from worker.training.options.fields import LARGEST_SEED, Options
from worker.training.options.parser import parse_options


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_CHECKPOINT_DIR", raising=False)
    assert parse_options([]) == Options()


def test_checkpoint_dir_of_the_user_wins_over_that_of_orch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", "/from/orch")
    assert parse_options([]).checkpoint_dir == Path("/from/orch")
    assert parse_options(["--checkpoint-dir", "mine"]).checkpoint_dir == Path("mine")


def test_all_options() -> None:
    options = parse_options(
        [
            *["--epochs=3", "--batch-size=8", "--learning-rate=0.01", "--steps-per-epoch=5"],
            *["--dataset=synthetic", "--auto-shard=off", "--seed=0", "--checkpoint-dir=here"],
            *["--keep=1", "--summary"],
        ]
    )
    assert options == Options(
        epochs=3,
        batch_size=8,
        learning_rate=0.01,
        steps_per_epoch=5,
        dataset="synthetic",
        auto_shard="off",
        seed=0,
        checkpoint_dir=Path("here"),
        keep=1,
        summary=True,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--epochs", "0"], "argument --epochs: '0' is not a whole number from 1 to 100000000"),
        (["--epochs=--"], "argument --epochs: '--' is"),
        (["--epochs", "1.5"], "argument --epochs: '1.5' is not a whole number"),
        (["--batch-size", "-4"], "argument --batch-size: '-4' is not a whole number from 1 to 2147483647"),
        (["--keep", "none"], "argument --keep: 'none' is not"),
        (["--steps-per-epoch", "0"], "argument --steps-per-epoch"),
        (["--learning-rate", "0"], "argument --learning-rate: '0' is not a number above 0"),
        (["--learning-rate", "nan"], "argument --learning-rate: 'nan'"),
        (["--learning-rate", "inf"], "argument --learning-rate: 'inf'"),
        (["--seed", "-1"], "argument --seed: '-1'"),
        (["--seed", str(LARGEST_SEED + 1)], "argument --seed"),
        (
            ["--auto-shard", "file"],
            "--auto-shard file gives each worker its own files, and digits is held in memory",
        ),
        (
            ["--dataset", "cifar"],
            "argument --dataset: 'cifar' is not a data set; write digits, mnist, synthetic, a file",
        ),
        (["--dataset", "/nowhere/x.npz"], "argument --dataset: there is no file '/nowhere/x.npz'"),
        (["--checkpoint-dir", __file__], "is a file, not a directory"),
        (["--epoch", "3"], "'--epoch' is not known; did you mean \"--epochs\"?"),
        (["stray"], "'stray' is not known"),
    ],
)
def test_bad_values_are_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_options(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err


@given(st.text())
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        options = parse_options([f"--epochs={text}", f"--learning-rate={text}"])
    except SystemExit as stop:
        assert stop.code == 2
    else:
        assert options.epochs >= 1
        assert 0 < options.learning_rate < float("inf")


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-P", "-m", "worker", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )


def imported(process: subprocess.CompletedProcess[str]) -> set[str]:
    lines = [line for line in process.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip() for line in lines}


def test_bad_option_ends_the_program_before_slow_imports() -> None:
    process = run_program("--epochs", "many")
    assert process.returncode == 2
    assert "worker.training.options.parser" in imported(process)
    assert not imported(process) & {"tensorflow", "keras", "numpy"}


def test_bad_data_file_ends_the_program_before_tensorflow_is_imported(tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a zip archive")
    process = run_program("--dataset", str(broken))
    assert process.returncode == 2
    assert f"worker: error: {broken} cannot be read as a .npz file" in process.stderr
    assert "tensorflow" not in imported(process)


def test_parameter_server_task_is_refused_by_other_strategies() -> None:
    config = '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}'
    process = run_program(TF_CONFIG=config)
    assert process.returncode == 2
    assert "multi-worker-mirrored takes no parameter servers" in process.stderr


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_options(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name in vars(Options()):
        assert f"--{name.replace('_', '-')}" in text
