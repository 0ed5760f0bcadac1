"""Cases of scripts that ignore other workers: every worker saves to one path, restores from it and logs to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import BATCH, SEED, Place, Values, compiled, data, outcome, topic
from state_cases import normalising, statistics

case = topic("")
EPOCHS = 4


class Interruption(Exception):
    """Interrupts a training."""


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            raise Interruption


def begin(place: Place) -> Path:
    """Return the directory that all workers share. Each worker gets its scratch directory, as in a task."""
    shared = place.directory / "shared"
    shared.mkdir(exist_ok=True)
    scratch = place.directory / "scratch" / str(place.rank)
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["ORCH_SCRATCH_DIR"] = str(scratch)
    return shared


def fit(place: Place, callbacks: list[Any], make: Callable[[], Any] = normalising, **options: Any) -> Any:
    x, y = data()
    model = compiled(place, make, optimizer=lambda: keras.optimizers.Adam(0.01))
    options = {"epochs": EPOCHS, "batch_size": BATCH, "verbose": 0, "shuffle": False, **options}
    model.fit(x, y, callbacks=callbacks, **options)
    return model


@case("every_checkpoint")
def every_checkpoint(place: Place) -> Values:
    """ModelCheckpoint in four ways. All workers read all files at the same time."""
    shared = begin(place)
    checkpoint = keras.callbacks.ModelCheckpoint
    x, y = data()
    model = fit(
        place,
        [
            checkpoint(str(shared / "deep" / "whole.keras")),
            checkpoint(str(shared / "deep" / "w.{epoch}.weights.h5"), save_weights_only=True),
            checkpoint(str(shared / "best.keras"), save_best_only=True, monitor="val_loss"),
            checkpoint(str(shared / "often.weights.h5"), save_weights_only=True, save_freq=3),
        ],
        validation_data=(x, y),
    )
    with place.scope():
        whole = keras.models.load_model(shared / "deep" / "whole.keras")
        keras.models.load_model(shared / "best.keras")
    model.save(shared / "later.keras")
    model.save_weights(shared / "later.weights.h5")
    model.load_weights(shared / "later.weights.h5")
    return outcome(model) | {f"whole {name}": weight for name, weight in outcome(whole).items()}


@case("averaged_often")
def averaged_often(place: Place) -> Values:
    """The chief alone saves within an epoch, to its own path. The other worker has no such callback."""
    shared = begin(place)
    often = keras.callbacks.ModelCheckpoint(
        str(shared / "chief.{batch}.weights.h5"), save_weights_only=True, save_freq=3
    )
    seen: list[Any] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                seen.append(statistics(self.model)["moving_mean"])

    fit(place, [Look(), *([often] if place.rank == 0 else [])], epochs=1)
    return {"seen": np.array(seen)}


@case("restored")
def restored(place: Place) -> Values:
    """A training that is interrupted and started again with one backup directory, and an uninterrupted one."""
    shared = begin(place)
    epochs: list[int] = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    backup = str(shared / "backup")
    try:
        fit(place, [keras.callbacks.BackupAndRestore(backup, double_checkpoint=True), StopAt(2)])
    except Interruption:
        place_has_backup = Path(backup, "latest.weights.h5").exists()
    keras.utils.set_random_seed(99)  # state that is not restored would differ
    second = fit(place, [keras.callbacks.BackupAndRestore(backup, double_checkpoint=True), note])
    keras.utils.set_random_seed(SEED)
    whole = fit(place, [])
    return outcome(second) | {
        "epochs": np.array(epochs),
        "had backup": np.array(place_has_backup),
        **{f"uninterrupted {name}": weight for name, weight in outcome(whole).items()},
    }


@case("started_apart")
def started_apart(place: Place) -> Values:
    """Only the chief has a backup, of epoch 1."""
    shared = begin(place)
    if place.rank == 0:
        (shared / "only").mkdir()
        model = normalising()
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model.optimizer.build(model.trainable_variables)
        model.save_weights(shared / "only" / "latest.weights.h5")
        (shared / "only" / "training_metadata.json").write_text('{"epoch": 1, "batch": 0}')
    epochs: list[int] = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    own = str(shared / ("only" if place.rank == 0 else "none"))
    model = fit(place, [keras.callbacks.BackupAndRestore(own), note], epochs=3)
    return outcome(model) | {"epochs": np.array(epochs)}


@case("logged")
def logged(place: Place) -> Values:
    """CSVLogger with one path for all, and the directory of TensorBoard's callback, without its package."""
    shared = begin(place)
    fit(place, [keras.callbacks.CSVLogger(str(shared / "log.csv"))])
    board = keras.callbacks.TensorBoard(str(shared / "board"), write_graph=False)
    board.on_train_batch_begin = board.on_train_batch_end = lambda batch, logs=None: None
    board.on_epoch_end = board.on_epoch_begin = lambda epoch, logs=None: None
    fit(place, [board], epochs=1)
    lines = (shared / "log.csv").read_text().splitlines()
    return {
        "lines": np.array(len(lines)),
        "on the chief's path": np.array(Path(board.log_dir) == shared / "board"),
    }


@case("checkpoint_manager")
def checkpoint_manager(place: Place) -> Values:
    """All workers write checkpoints of tf.train under one prefix several times, and read them."""
    shared = begin(place)
    with place.scope():
        variable = tf.Variable(tf.zeros((1000,)))
        count = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(variable=variable, count=count)
    manager = tf.train.CheckpointManager(checkpoint, str(shared / "ckpt"), max_to_keep=2)
    for number in range(1, 6):
        variable.assign(tf.fill((1000,), float(number)))
        manager.save(checkpoint_number=number)
        checkpoint.write(str(shared / "written"))
    variable.assign(tf.zeros((1000,)))
    checkpoint.read(str(shared / "written")).assert_consumed()
    written = variable.numpy()
    variable.assign(tf.zeros((1000,)))
    checkpoint.restore(str(shared / "ckpt" / "ckpt-5")).assert_consumed()
    return {"written": written, "restored": variable.numpy()}
