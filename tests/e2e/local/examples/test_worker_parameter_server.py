"""Parameter servers and the side-car evaluator as real processes: training, a lost worker, resuming, evaluation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT, Roles, run_roles
from forks import ForkServer

from worker.training.options.parser import parse_options

pytestmark = pytest.mark.timeout(600)

# Usually 0.98. A late gradient of a slow worker may disturb the last epoch (0.94 was seen).
LEAST_ACCURACY = 0.9
# Not anchored at the start of a line: native code writes to stderr, the same file, at any time.
HELD_OUT = re.compile(r"held-out accuracy (\d\.\d{4}), loss \d+\.\d{4}, on 355 examples$", re.MULTILINE)
EVALUATED = re.compile(r"ckpt-(\d+) of epoch \1/\d+: held-out accuracy (\d\.\d{4}), loss")
STRATEGY = ("--strategy", "parameter-server")
# 90 full batches of 16 in 1,442 examples.
STEPS_OF_TEN_EPOCHS = 900
# Steps that may be running on the lost worker.
RUNNING_STEPS = 1
ITERATIONS = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"


def checkpoint_values(path: Path, *names: str) -> dict[str, object]:
    """Return values of a checkpoint, read in a new process, and under `shapes` the shapes of all names."""
    code = (
        "import json, sys, tensorflow as tf\n"
        "reader = tf.train.load_checkpoint(sys.argv[1])\n"
        "values = {name: reader.get_tensor(name).tolist() for name in sys.argv[2:]}\n"
        "print(json.dumps({**values, 'shapes': reader.get_variable_to_shape_map()}))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(path), *names],
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=True,
    )
    values: dict[str, object] = json.loads(process.stdout)
    return values


def accuracy_of(model: Path, library: str = "keras") -> float:
    """Return the accuracy of a saved model on the held-out digits, in a new process."""
    code = (
        f"import sys, {library} as keras\n"
        "from worker.training.data.datasets import load_dataset\n"
        "digits = load_dataset('digits', 0)\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        "print(model.evaluate(digits.test_images, digits.test_labels, verbose=0, return_dict=True)['accuracy'])\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(model)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return float(process.stdout)


def assert_trained(roles: Roles, least: float) -> float:
    """Assert that the chief has exited with 0 and learnt; return its held-out accuracy."""
    assert roles.tasks["chief:0"].wait() == 0, roles.describe()
    (accuracy,) = HELD_OUT.findall(roles.tasks["chief:0"].output)
    assert float(accuracy) >= least, roles.describe()
    return float(accuracy)


def test_short_training_with_a_cut_model_is_evaluated_afterwards(tmp_path: Path, forks: ForkServer) -> None:
    arguments = (
        *STRATEGY,
        "--partitioner",
        "fixed",
        "--epochs",
        "1",
        "--steps-per-epoch",
        "3",
        "--export",
        "keras",
    )
    with run_roles(tmp_path, {"ps": 2, "worker": 1, "chief": 1}, arguments, forks=forks) as roles:
        assert_trained(roles, 0.0)
        for name in ("ps:0", "ps:1", "worker:0"):
            task = roles.tasks[name]
            assert task.output == f"{name}: serving the chief until it is stopped\n"
            task.signal(signal.SIGTERM)
            assert task.wait() == 143
        chief = roles.tasks["chief:0"].output
        assert "parameter-server, custom loop: 1 worker at its own pace, 16 examples a step, 3 steps" in chief
        assert "weights: 21,077 on ps:0, 14,837 on ps:1" in chief
        # A cut variable is saved whole, so the evaluator can read it.
        evaluator = roles.start("evaluator:0")
        assert evaluator.wait() == 0, roles.describe()
        assert EVALUATED.findall(evaluator.output) == [("1", HELD_OUT.findall(chief)[0])]


@pytest.mark.slow
def test_no_step_is_lost_with_a_killed_worker_and_the_last_checkpoint_is_evaluated(tmp_path: Path) -> None:
    counts = {"ps": 2, "worker": 2, "evaluator": 1, "chief": 1}
    arguments = (*STRATEGY, "--partitioner", "fixed")
    with run_roles(tmp_path, counts, arguments) as roles:
        roles.tasks["chief:0"].wait_for_line("epoch 2/10")
        roles.tasks["worker:1"].signal(signal.SIGKILL)
        assert roles.tasks["worker:1"].wait() == -signal.SIGKILL
        roles.start("worker:1").wait_for_listener()
        accuracy = assert_trained(roles, LEAST_ACCURACY)
        assert roles.tasks["evaluator:0"].wait() == 0, roles.describe()
        epoch, evaluated = EVALUATED.findall(roles.tasks["evaluator:0"].output)[-1]
        assert (epoch, float(evaluated)) == ("10", pytest.approx(accuracy, abs=1e-4))
    values = checkpoint_values(roles.checkpoints / "ckpt-10", ITERATIONS)
    steps = values[ITERATIONS]
    assert isinstance(steps, int)
    assert STEPS_OF_TEN_EPOCHS <= steps <= STEPS_OF_TEN_EPOCHS + RUNNING_STEPS
    assert [256, 64] in values["shapes"].values()  # type: ignore[attr-defined]
    assert accuracy_of(roles.checkpoints / "model.keras") == pytest.approx(accuracy, abs=1e-4)
    names = sorted(path.name for path in roles.checkpoints.glob("ckpt-*.index"))
    assert names == ["ckpt-10.index", "ckpt-8.index", "ckpt-9.index"]
    (tmp_path / "again").mkdir()
    (roles.checkpoints).rename(tmp_path / "again" / "checkpoints")
    counts = {"ps": 2, "worker": 1, "chief": 1}
    with run_roles(tmp_path / "again", counts, (*arguments, "--epochs", "11")) as roles:
        assert_trained(roles, LEAST_ACCURACY)
        chief = roles.tasks["chief:0"].output
        assert "resumed at epoch 11\n" in chief
        assert re.findall(r"^epoch (\d+)/11", chief, re.MULTILINE) == ["11"]
    resumed = checkpoint_values(roles.checkpoints / "ckpt-11", ITERATIONS)[ITERATIONS]
    assert resumed == steps + STEPS_OF_TEN_EPOCHS // 10


@pytest.mark.slow
def test_checkpoint_within_an_epoch_is_resumed(tmp_path: Path) -> None:
    arguments = (*STRATEGY, "--steps-per-epoch", "5", "--export", "none", "--epochs")
    counts = {"ps": 1, "worker": 1, "chief": 1}
    with run_roles(tmp_path, counts, (*arguments, "1")) as roles:
        assert_trained(roles, 0.0)
    # A preempted mirrored training leaves checkpoints of this form.
    for file in roles.checkpoints.glob("ckpt-1.*"):
        file.rename(file.with_name(file.name.replace("ckpt-1.", "ckpt-1-2.")))
    (tmp_path / "again").mkdir()
    roles.checkpoints.rename(tmp_path / "again" / "checkpoints")
    with run_roles(tmp_path / "again", counts, (*arguments, "2")) as roles:
        assert_trained(roles, 0.0)
        assert "resumed at epoch 2, after 2 of its 5 steps" in roles.tasks["chief:0"].output
    assert checkpoint_values(roles.checkpoints / "ckpt-2", ITERATIONS)[ITERATIONS] == 5 + 3


@pytest.mark.slow
def test_checkpoint_of_variables_cut_differently_is_refused(tmp_path: Path) -> None:
    """A variable on another host accepts any shape; without the check the training would fail later, in a graph."""
    arguments = (*STRATEGY, "--steps-per-epoch", "2", "--export", "none")
    counts = {"ps": 1, "worker": 1, "chief": 1}
    with run_roles(
        tmp_path, counts | {"ps": 2}, (*arguments, "--epochs", "1", "--partitioner", "fixed")
    ) as roles:
        assert_trained(roles, 0.0)
    (tmp_path / "again").mkdir()
    roles.checkpoints.rename(tmp_path / "again" / "checkpoints")
    with run_roles(tmp_path / "again", counts, (*arguments, "--epochs", "2")) as roles:
        assert roles.tasks["chief:0"].wait() == 2, roles.describe()
        said = roles.tasks["chief:0"].output
        assert (
            "/ckpt-1 does not fit these variables (" in said and "give the --partitioner and the --ps" in said
        )


@pytest.mark.slow
def test_fit_trains_on_tf_keras(tmp_path: Path) -> None:
    counts = {"ps": 2, "worker": 2, "evaluator": 1, "chief": 1}
    arguments = (*STRATEGY, "--partitioner", "min-size")
    with run_roles(tmp_path, counts, arguments, {"TF_USE_LEGACY_KERAS": "1"}) as roles:
        accuracy = assert_trained(roles, LEAST_ACCURACY)
        assert "parameter-server, fit loop" in roles.tasks["chief:0"].output
        assert roles.tasks["evaluator:0"].wait() == 0, roles.describe()
    assert accuracy_of(roles.checkpoints / "model.keras", "tf_keras") == pytest.approx(accuracy, abs=1e-4)


@pytest.mark.slow
def test_killed_parameter_server_ends_the_chief(tmp_path: Path) -> None:
    with run_roles(tmp_path, {"ps": 2, "worker": 1, "chief": 1}, STRATEGY) as roles:
        roles.tasks["chief:0"].wait_for_line("epoch 1/10")
        roles.tasks["ps:1"].signal(signal.SIGKILL)
        assert roles.tasks["chief:0"].wait() == 1, roles.describe()
        assert "/job:ps" in roles.tasks["chief:0"].output
        assert roles.tasks["worker:0"].process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--loop", "fit"], {}, "Keras 3 cannot fit under ParameterServerStrategy"),
        (["--loop", "custom"], {"TF_USE_LEGACY_KERAS": "1"}, "is only for parameter-server with fit"),
        (["--auto-shard", "off"], {}, "the chief of parameter-server chooses the examples"),
        (["--check-data"], {}, "the chief of parameter-server chooses the examples"),
        (["--input", "function"], {}, "the chief of parameter-server chooses the examples"),
        (
            ["--last-batch", "short"],
            {"TF_USE_LEGACY_KERAS": "1"},
            "fit under parameter-server takes an endless stream",
        ),
        (["--strategy", "mirrored", "--partitioner", "fixed"], {}, "mirrored has none"),
        (["--strategy", "mirrored"], {"TF_USE_LEGACY_KERAS": "1"}, "is only for parameter-server with fit"),
    ],
)
def test_options_that_parameter_server_cannot_use_are_refused(
    arguments: list[str],
    environment: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        parse_options([*STRATEGY, *arguments])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("legacy", "loop"), [("", "custom"), ("1", "fit")])
def test_default_loop_is_one_that_can_train(legacy: str, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    assert parse_options(STRATEGY).loop == loop


@pytest.mark.slow
def test_cut_model_is_saved_whole_and_restored_into_its_parts(tmp_path: Path) -> None:
    code = (
        "import sys, keras, numpy as np, tensorflow as tf\n"
        "from worker.bootstrap.keras_fix.variables import train_cut_variables\n"
        "cut = tf.__internal__.distribute.ShardedVariable\n"
        "def model():\n"
        "    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])\n"
        "train_cut_variables(keras, report=print)\n"
        "sharded, whole = model(), model()\n"
        "for variable in sharded.variables:\n"
        "    value = variable.numpy()\n"
        "    variable._value = cut([tf.Variable(value[:2]), tf.Variable(value[2:])], name=variable.name)\n"
        "saved = sharded.get_weights()\n"
        "path = tf.train.Checkpoint(model=sharded).write(sys.argv[1])\n"
        "[variable.assign(variable * 0) for variable in sharded.variables]\n"
        "for one in (sharded, whole):\n"
        "    tf.train.Checkpoint(model=one).read(path).assert_existing_objects_matched()\n"
        "    assert all(np.array_equal(a, b) for a, b in zip(saved, one.get_weights(), strict=True))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "saved")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
