"""The examples of orch: each trains, all with the numbers of one device, and each can be written and run elsewhere."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from orch_command import Finished, Orch
from trained_state import assert_same_training

from orchestrator.request.command.examples import SHARED, examples_directory, summaries

ROOT = Path(__file__).resolve().parents[4]
LONGEST_RUN_S = 400.0
SHORT = ("--epochs", "2", "--steps-per-epoch", "12", "--global-batch", "32")
# Relative. The loss is printed with four digits.
TOLERANCE = 1e-3
pytestmark = pytest.mark.timeout(600)

# The strategy and loop of a training whose numbers are those of one device.
SAME_NUMBERS = (
    ("--workers", "2", "--"),
    ("--workers", "2", "--", "--loop", "custom"),
    ("--strategy", "mirrored", "--replicas", "2", "--"),
    ("--strategy", "mirrored", "--replicas", "4", "--", "--loop", "custom"),
    ("--strategy", "central-storage", "--replicas", "2", "--"),
    ("--strategy", "one-device", "--", "--loop", "custom"),
)


def up(orch: Orch, *words: str) -> Finished:
    done = orch("up", *words, timeout_s=LONGEST_RUN_S)
    assert done.code == 0, done.out + done.err
    return done


def held_out(done: Finished) -> tuple[float, ...]:
    """The accuracy and loss of each task that has evaluated the model, which must be equal."""
    found = {*re.findall(r"held-out accuracy (\S+), loss (\S+)", done.out)}
    assert len(found) == 1, done.out
    return tuple(map(float, found.pop()))


# -- a run of each kind


def test_two_workers_and_a_resumed_own_loop_have_the_numbers_of_one_device(orch: Orch) -> None:
    one = up(orch, "--strategy", "one-device", "--checkpoint-dir", "one", "--", *SHORT)
    up(orch, "--workers", "2", "--checkpoint-dir", "two", "--", "--loop", "custom", *SHORT, "--epochs", "1")
    two = up(orch, "--workers", "2", "--checkpoint-dir", "two", "--", "--loop", "custom", *SHORT)
    assert "epoch 2/2" in two.out and "epoch 1/2" not in two.out, "it continued after the first epoch"
    assert held_out(two) == pytest.approx(held_out(one), rel=TOLERANCE)
    assert (orch.directory / "two/model.keras").exists()


@pytest.mark.slow
def test_every_strategy_has_the_numbers_of_one_device(orch: Orch) -> None:
    one = held_out(up(orch, "--strategy", "one-device", "--", *SHORT))
    wrong = {
        words: found
        for words in SAME_NUMBERS
        if (found := held_out(up(orch, *words, *SHORT))) != pytest.approx(one, rel=TOLERANCE)
    }
    assert not wrong, f"one device: {one}"


@pytest.mark.slow
def test_backups_and_a_mesh_in_one_process(orch: Orch) -> None:
    assert held_out(up(orch, "--workers", "4", "--", "--checkpoint", "backup"))[0] >= 0.95
    (accuracy,) = re.findall(r"held-out accuracy (\S+)", up(orch, "--mesh", "model=2").out)
    assert float(accuracy) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_mixed_precision_is_close_to_float32(orch: Orch, precision: str, loop: str) -> None:
    words = ("--workers", "2", "--", "--loop", loop, *SHORT)
    exact, rounded = held_out(up(orch, *words)), held_out(up(orch, *words, "--precision", precision))
    assert rounded[1] == pytest.approx(exact[1], rel=0.15)
    assert rounded != exact


@pytest.mark.slow
def test_resumed_mesh_ends_like_an_undisturbed_one(orch: Orch) -> None:
    words = ("--mesh", "batch=2,model=2", "--workers", "2")
    up(orch, *words, "--checkpoint-dir", "whole", "--", "--epochs", "2")
    for epochs in ("1", "2"):
        up(orch, *words, "--checkpoint-dir", "again", "--", "--epochs", epochs)
    assert_same_training(orch.directory / "again/ckpt-2", orch.directory / "whole/ckpt-2")


@pytest.mark.slow
def test_tensorboard_and_data_in_files(orch: Orch) -> None:
    write = [sys.executable, examples_directory() / "common.py", "digits", orch.directory / "records"]
    subprocess.run(write, check=True, capture_output=True, timeout=LONGEST_RUN_S)
    for loop in ("fit", "custom"):
        done = up(
            orch,
            "--workers",
            "2",
            "--tensorboard",
            "--",
            "--loop",
            loop,
            "--dataset",
            "records",
            "--epochs",
            "4",
        )
        assert held_out(done)[0] > 0.9
        assert [*orch.run_dirs()[-1].glob("tensorboard/**/events.out.*")]


@pytest.mark.slow
def test_help_is_that_of_the_example_once(orch: Orch) -> None:
    done = orch("up", "--workers", "2", "--", "--help")
    assert (done.code, done.err, done.out.count("usage: fit.py")) == (0, "", 1)
    assert not orch.run_dirs()


@pytest.mark.slow
def test_wrong_option_is_a_usage_error_of_the_first_task(orch: Orch) -> None:
    done = orch("up", "--workers", "2", "--", "--nonsense", "1", timeout_s=LONGEST_RUN_S)
    assert done.code == 2
    assert "unrecognized arguments: --nonsense 1" in done.err


@pytest.mark.slow
def test_readme_script_trains(orch: Orch) -> None:
    (script,) = re.findall(r"```python\n(# train.py\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (orch.directory / "train.py").write_text(script)
    done = up(orch, "--workers", "2", "--", "train.py")
    losses = [float(number) for number in re.findall(r"worker:0 \|.*loss: (\S+)", done.out)]
    assert losses[-1] < losses[0] / 10


# -- `orch example`


def test_examples_are_listed_and_one_is_written_with_what_it_needs(orch: Orch) -> None:
    listed = orch.within("example")
    assert [line.split()[0] for line in listed.out.splitlines()] == [*summaries()]
    assert orch.within("example", "fit").code == 0
    written = {path.name: path.read_bytes() for path in orch.directory.iterdir() if path.is_file()}
    assert written.keys() >= {"fit.py", *SHARED}
    assert all(data == (examples_directory() / name).read_bytes() for name, data in written.items())
    assert orch.within("example", "fit").code == 0, "equal files may stay"
    assert orch.within("example", "dtensor", "-o", "mine.py").code == 0
    assert (orch.directory / "mine.py").read_bytes() == (examples_directory() / "dtensor.py").read_bytes()


def test_example_replaces_no_file_and_knows_its_names(orch: Orch) -> None:
    (orch.directory / "common.py").write_text("mine")
    done = orch.within("example", "fit")
    assert (done.code, "common.py exists and differs" in done.err) == (2, True)
    assert [path.name for path in orch.directory.glob("*.*")] == ["common.py"], "nothing was written"
    done = orch.within("example", "fti")
    assert (done.code, 'did you mean "fit"?' in done.err) == (2, True)


def test_example_that_cannot_be_written_is_a_usage_error(orch: Orch) -> None:
    (orch.directory / "there").mkdir()
    (orch.directory / "dangling.py").symlink_to("elsewhere.py")
    for output, said in {
        "missing/mine.py": "missing/mine.py cannot be written: No such file or directory",
        "there": "there cannot be written: Is a directory",
        "dangling.py": "dangling.py cannot be written: File exists",
        "common.py": "-o common.py: the example needs its own common.py there",
    }.items():
        done = orch.within("example", "fit", "-o", output)
        assert (done.code, said in done.err) == (2, True), done.err
    assert not (orch.directory / "elsewhere.py").exists()


@pytest.mark.slow
def test_evaluator_of_another_kind_of_checkpoints_is_refused() -> None:
    """It would wait for ever. The other tasks need not be there."""
    env = {**os.environ, "ORCH_TASK": "evaluator:0"}
    for script, words in {
        "fit.py": ("--checkpoint", "backup"),
        "custom_loop.py": ("--checkpoint", "preemption"),
        "parameter_server_fit.py": (),
    }.items():
        command = [sys.executable, examples_directory() / script, *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONGEST_RUN_S)
        assert (done.returncode, "an evaluator follows the checkpoints of" in done.stderr) == (2, True), (
            script
        )


def test_examples_need_nothing_of_orch() -> None:
    allowed = {"tensorflow", "keras", "numpy", "common", *sys.stdlib_module_names}
    for script in (*summaries(), "common"):
        tree = ast.parse((examples_directory() / f"{script.replace('-', '_')}.py").read_text())
        names = [
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        ]
        names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert {name.partition(".")[0] for name in names} <= allowed, script


@pytest.mark.slow
def test_written_example_runs_by_plain_python(orch: Orch) -> None:
    assert orch.within("example", "custom_loop").code == 0
    command = [sys.executable, "custom_loop.py", "--epochs", "1", "--steps-per-epoch", "2"]
    done = subprocess.run(command, cwd=orch.directory, capture_output=True, text=True, timeout=LONGEST_RUN_S)
    assert "held-out accuracy" in done.stdout, done.stderr
