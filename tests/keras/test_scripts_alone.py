"""Scripts that import parts of the Keras fixes by themselves, each in its own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).parent
ENV = {"PYTHONPATH": str(HERE.parents[1]), "TF_CPP_MIN_LOG_LEVEL": "2"}


def run(directory: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | ENV
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=env, cwd=directory, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("exit", 7),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in (("return", 0), ("_exit", 9), ("raise", 1))),
    ],
)
def test_dropped_iterators_are_destroyed_and_the_exit_is_the_same(
    end: str, code: int, tmp_path: Path
) -> None:
    done = run(tmp_path, HERE / "iterating.py", end)
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == code, output
    # A single iterator is alive: those of the loops are destroyed.
    for text in ("sum 5050", "held 1 next 0 1", "unflushed"):
        assert text in done.stdout, output
    assert ("the script's own atexit handler" in done.stdout) == (end != "_exit"), output
    assert ("RuntimeError: the script's own error" in done.stderr) == (end == "raise"), output


@pytest.mark.slow
def test_cut_variables_are_trained_like_whole_ones_and_saved_whole(tmp_path: Path) -> None:
    done = run(tmp_path, HERE / "cut_program.py", tmp_path / "saved")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal"


@pytest.mark.slow
def test_files_opened_before_the_import_are_flushed_by_a_stop(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, HERE / "stopped_with_open_files.py", tmp_path],
        env={**os.environ, **ENV},
        stdout=subprocess.PIPE,
        text=True,
    ) as script:
        try:
            assert script.stdout is not None
            assert script.stdout.readline() == "ready\n"
            script.terminate()
            assert script.wait(120) == 143
        finally:
            script.kill()
    assert (tmp_path / "before").read_text() == "before\nfinally\n"
    assert (tmp_path / "after").read_text() == "after\nfinally\n"


BACKED_UP = """
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
    (tmp_path / "train.py").write_text(BACKED_UP)
    undisturbed = json.loads(run(tmp_path, "train.py", "0").stdout)
    assert undisturbed["epochs"] == [0, 1, 2, 3]
    assert not (tmp_path / "backup").exists()
    assert run(tmp_path, "train.py", "2").returncode == -9
    resumed = run(tmp_path, "train.py", "0")
    assert resumed.returncode == 0, resumed.stderr
    # The second epoch's backup did not count yet.
    assert json.loads(resumed.stdout) == {**undisturbed, "epochs": [1, 2, 3]}
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
