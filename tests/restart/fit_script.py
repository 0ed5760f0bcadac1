"""A script of a user's: `fit` with BackupAndRestore. `fit_script.py DIRECTORIES VICTIM`.

DIRECTORIES: `shared` (all workers name one) or `own`. VICTIM says who dies in the first attempt: `nobody`; `training`
(worker 1 in the third epoch); `saving` (the chief, its second backup's weights written and their epoch not); `late`
(worker 1, before its second backup, the chief having its own); `chief-late` (the other way round).
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
    model = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])


def backup_of(worker: int) -> Path:
    return output / ("backup" if directories == "shared" else f"backup-{worker}")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_backup(worker: int, epoch: int) -> None:
    """Until that worker's backup is of so many epochs."""
    told = backup_of(worker) / "training_metadata.json"
    while not told.exists() or f'"epoch": {epoch}' not in told.read_text():
        time.sleep(0.01)


class Victim(keras.callbacks.Callback):
    """Stands before the backup, so that its turn comes first."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (victim, rank, self.epoch, batch) == ("training", 1, 2, 3):
            die()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and (victim, rank) in (("late", 1), ("chief-late", 0)):
            wait_for_backup(1 - rank, 2)
            die()


backup = keras.callbacks.BackupAndRestore(str(backup_of(rank)))
save_weights = model.save_weights


def save_weights_and_die(*args: Any, **kwargs: Any) -> None:
    save_weights(*args, **kwargs)
    if (victim, rank, backup._current_epoch) == ("saving", 0, 2):
        die()


model.save_weights = save_weights_and_die
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=5,
    shuffle=False,
    verbose=2,
    callbacks=[Victim(), backup],
    validation_data=(x, y),
)
np.savez(
    output / f"end-{rank}.npz",
    epochs=np.array(history.epoch),
    losses=np.array(history.history["loss"]),
    validated=np.array(history.history["val_loss"]),
    **{f"weight {number}": weight for number, weight in enumerate(model.get_weights())},
)
