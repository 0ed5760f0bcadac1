"""A user's script: `fit` with BackupAndRestore. `fit_script.py DIRECTORIES VICTIM`.

DIRECTORIES: `shared` (one for all workers) or `own`.
VICTIM names the process that is killed in the first attempt: `nobody`; `training` (worker 1 in epoch 3); `saving` (the
chief, after the weights of its second backup and before the epoch); `late` (worker 1 before its second backup, after
the chief's); `chief-late` (the chief before its second backup, after worker 1's).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

directories, victim = sys.argv[1:]
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
output = Path(os.environ["ORCH_CHECKPOINT_DIR"])
if os.environ["ORCH_ATTEMPT"] != "1":
    victim = "nobody"

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(5)
x = np.random.RandomState(0).rand(96, 8).astype("float32")
y = x.sum(axis=1, keepdims=True)
with strategy.scope():
    layers = (keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3))
    model = keras.Sequential([keras.layers.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])


def backup_of(worker: int) -> Path:
    return output / ("backup" if directories == "shared" else f"backup-{worker}")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Victim(keras.callbacks.Callback):
    """Comes before the backup in the list of callbacks, so that it is called first."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (victim, rank, self.epoch, batch) == ("training", 1, 2, 3):
            die()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and (victim, rank) in (("late", 1), ("chief-late", 0)):
            others = backup_of(1 - rank) / "training_metadata.json"
            while not others.exists() or '"epoch": 2' not in others.read_text():
                time.sleep(0.01)
            die()


backup = keras.callbacks.BackupAndRestore(str(backup_of(rank)))
save_weights = model.save_weights


def save_weights_and_die(*args: Any, **kwargs: Any) -> None:
    save_weights(*args, **kwargs)
    if (victim, rank, backup._current_epoch) == ("saving", 0, 2):
        die()


model.save_weights = save_weights_and_die
options = {"batch_size": 16, "epochs": 5, "shuffle": False, "verbose": 0, "validation_data": (x, y)}
history = model.fit(x, y, callbacks=[Victim(), backup], **options)
np.savez(
    output / f"end-{rank}.npz",
    epochs=np.array(history.epoch),
    losses=np.array(history.history["loss"]),
    validated=np.array(history.history["val_loss"]),
    **{f"weight {number}": weight for number, weight in enumerate(model.get_weights())},
)
