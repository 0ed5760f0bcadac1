"""BackupAndRestore is killed between any two changes of its files. The next process finds a state and its epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from worker.bootstrap.keras_fix import backups

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)


class Backup:
    """Has the attributes of Keras's callback for a directory."""

    def __init__(self, directory: Path, double: bool) -> None:
        self.double_checkpoint = double
        self._weights_path = str(directory / "latest.weights.h5")
        self._training_metadata_path = str(directory / "training_metadata.json")
        self._prev_weights_path = f"{self._weights_path}.bkp"
        self._prev_training_metadata_path = f"{self._training_metadata_path}.bkp"


class Killed(Exception):
    """Stands for the SIGKILL."""


class Change:
    """Allows a number of renames and removals, then raises Killed."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def __call__(self, change: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return change(*args, **kwargs)

        return counted


def state_in(directory: Path) -> tuple[str, str]:
    return (directory / "latest.weights.h5").read_text(), (directory / "training_metadata.json").read_text()


KILLS = [(0,), (1,), (2,), (3,), (4,), (1, 1), (2, 1), (3, 0)]


def test_a_kill_at_any_change_leaves_one_complete_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (double, committed, kills) in enumerate(product((False, True), (False, True), KILLS)):
        directory = tmp_path / str(number)
        directory.mkdir()
        assert settled(directory, double, committed, kills, monkeypatch), (double, committed, kills)


def settled(
    directory: Path, double: bool, committed: bool, kills: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Kill as often as `kills` says, each after so many changes; return whether one complete state is left."""
    files = backups._Files(Backup(directory, double))
    files.weights.write_text("weights 1")
    files.epoch.write_text("epoch 1")
    files.next_weights.write_text("weights 2")
    if committed:
        files.next_epoch.write_text("epoch 2")
    for allowed in kills:
        with monkeypatch.context() as context:
            stop = Change(allowed)
            context.setattr(Path, "replace", stop(Path.replace))
            context.setattr(Path, "unlink", stop(Path.unlink))
            try:
                files.settle()
            except Killed:
                assert stop.left == 0
    files.settle()
    number = 2 if committed else 1
    left = [state_in(directory), *map(str, directory.glob("next*"))]
    spare = ("weights 1", "epoch 1")
    if double and committed and (files.spare_weights.read_text(), files.spare_epoch.read_text()) != spare:
        return False
    return left == [(f"weights {number}", f"epoch {number}")]


def test_an_epoch_without_weights_is_removed(tmp_path: Path) -> None:
    files = backups._Files(Backup(tmp_path, False))
    files.epoch.write_text("epoch 4")
    files.settle()
    assert not files.epoch.exists()


SCRIPT = """
import json, os, signal, sys
import numpy as np
import keras
from worker.bootstrap import keras_fix

keras_fix.arm(1, print)
keras.utils.set_random_seed(3)
kill_at = int(sys.argv[1])
x = np.random.RandomState(0).rand(32, 4).astype("float32")
model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.4), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.05), "mse")
epochs = []


class Die(keras.callbacks.Callback):
    # It is called after the backup's weights are written, and before their epoch is.
    def on_epoch_begin(self, epoch, logs=None):
        epochs.append(epoch)


backup = keras.callbacks.BackupAndRestore("backup")
save = model.save_weights


def save_and_die(*args, **kwargs):
    save(*args, **kwargs)
    if backup._current_epoch == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


model.save_weights = save_and_die
model.fit(x, x.sum(1), batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=[backup, Die()])
print(json.dumps({"epochs": epochs, "weights": [w.tolist() for w in model.get_weights()]}))
"""


@pytest.mark.slow
def test_a_worker_killed_between_weights_and_epoch_gets_the_same_result(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def train(kill_at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "train.py", str(kill_at)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    undisturbed = json.loads(train(0).stdout)
    assert undisturbed["epochs"] == [0, 1, 2, 3]
    assert not (tmp_path / "backup").exists()
    assert train(2).returncode == -9
    resumed = train(0)
    assert resumed.returncode == 0, resumed.stderr
    # The second epoch's backup did not count yet.
    assert json.loads(resumed.stdout) == {**undisturbed, "epochs": [1, 2, 3]}
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
