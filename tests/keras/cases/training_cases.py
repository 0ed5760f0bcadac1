"""Cases: callbacks, options of compile and fit, saved models."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import (
    BATCH,
    FEATURES,
    UNEVEN,
    Place,
    Run,
    Values,
    compiled,
    cross_entropy,
    data,
    dense,
    descent,
    fit,
    mlp,
    outcome,
    predicted,
    scores,
    sequential,
    topic,
)
from keras import callbacks

case = topic("callbacks and options of training")


def quick_descent() -> Any:
    return keras.optimizers.SGD(3.0)


def watched(*some: Callable[[], Any], **options: Any) -> Run:
    """Return a case that trains too fast, so that the validation loss rises soon."""

    def run(place: Place) -> Values:
        chosen = {"epochs": 6, "validation_data": data(UNEVEN), **options}
        model = compiled(place, optimizer=lambda: keras.optimizers.SGD(3.0))
        values = fit(model, callbacks=[make() for make in some], **chosen)
        return values | {"rate": float(model.optimizer.learning_rate.numpy())}

    return run


case(
    "EarlyStopping with the best weights",
    watched(lambda: callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)),
    three=True,
)
case(
    "EarlyStopping by the training loss",
    watched(lambda: callbacks.EarlyStopping("loss", patience=0), validation_data=None),
)
case(
    "ReduceLROnPlateau",
    watched(lambda: callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=1)),
    three=True,
)
case(
    "LearningRateScheduler", watched(lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5))
)


@case("TerminateOnNaN")
def terminate(place: Place) -> Values:
    x, y = data()
    x[20:] = 1e30
    values = fit(compiled(place), x, y, epochs=4, callbacks=[callbacks.TerminateOnNaN()])
    return {"epochs": len(values["history loss"])}


@case("ModelCheckpoint of the best model, loaded again", three=True)
def best_model(place: Place) -> Values:
    path = place.directory / "best.keras"
    watched(lambda: callbacks.ModelCheckpoint(path, "val_loss", save_best_only=True))(place)
    return outcome(keras.models.load_model(path))


@case("ModelCheckpoint of weights in each epoch")
def each_epoch(place: Place) -> Values:
    path = place.directory / "{epoch}.weights.h5"
    watched(lambda: callbacks.ModelCheckpoint(path, save_weights_only=True), epochs=2)(place)
    model = compiled(place)
    model.load_weights(str(path).format(epoch=1))
    return fit(model, epochs=1)


@case("BackupAndRestore over two fits")
def backup(place: Place) -> Values:
    model = compiled(place)
    directory = place.directory / "backup"
    values = fit(model, callbacks=[callbacks.BackupAndRestore(directory, delete_checkpoint=False)])
    again = compiled(place)
    return values | fit(again, epochs=3, callbacks=[callbacks.BackupAndRestore(directory)])


@case("CSVLogger, its numbers")
def csv_logger(place: Place) -> Values:
    path = place.directory / "log.csv"
    model = compiled(place)
    fit(model, callbacks=[callbacks.CSVLogger(path)])
    # Another fit begins when all workers have ended the first one.
    values = fit(model)
    rows = list(csv.DictReader(path.open()))
    return values | {f"logged {name}": [float(row[name]) for row in rows] for name in ("loss", "accuracy")}


@case("TensorBoard beside the training")
def tensorboard(place: Place) -> Values:
    board = callbacks.TensorBoard(place.directory / "board", histogram_freq=1, update_freq=1)
    return watched(lambda: board, epochs=2)(place)


@case("SwapEMAWeights")
def swapped(place: Place) -> Values:
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True))
    swap = callbacks.SwapEMAWeights(swap_on_epoch=True)
    return fit(model, callbacks=[swap], validation_data=data(UNEVEN))


class Steps(callbacks.Callback):
    """Keeps the loss of each step, and stops after the fifth."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(logs["loss"]))
        if len(self.seen) == 5:
            self.model.stop_training = True


@case("own callback with the logs of each step, stops", three=True, quick=True)
def step_logs(place: Place) -> Values:
    steps = Steps()
    return fit(compiled(place), *data(UNEVEN), callbacks=[steps]) | {"seen": steps.seen}


class Warmer(callbacks.Callback):
    """Sets the learning rate before each step, and the weights after an epoch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 / (1 + batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])


case("own callback that sets rate and weights", lambda place: fit(compiled(place), callbacks=[Warmer()]))


class Judge(callbacks.Callback):
    """Evaluates and predicts after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        x, y = data(UNEVEN)
        self.seen += self.model.evaluate(x, y, batch_size=BATCH, verbose=0)
        self.seen.append(float(self.model.predict(x, batch_size=BATCH, verbose=0).sum()))


@case("own callback that evaluates and predicts")
def judge(place: Place) -> Values:
    seen = Judge()
    return fit(compiled(place), callbacks=[seen]) | {"seen": seen.seen}


@case("steps_per_execution", three=True)
def several_steps(place: Place) -> Values:
    model = compiled(place, steps_per_execution=2)
    return fit(model, validation_data=data(UNEVEN)) | scores(model, *data()) | predicted(model, data()[0])


@case("steps_per_execution without an end")
def several_steps_without_end(place: Place) -> Values:
    batches = tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH)
    return fit(compiled(place, steps_per_execution=2), batches, steps_per_epoch=4)


case("run_eagerly", lambda place: fit(compiled(place, run_eagerly=True), epochs=1))
case("auto_scale_loss off", lambda place: fit(compiled(place, auto_scale_loss=False)))


@case("fit twice, initial_epoch")
def twice(place: Place) -> Values:
    model = compiled(place)
    fit(model, epochs=1)
    return fit(model, epochs=3, initial_epoch=1)


@case("fit on other batch sizes in turn", three=True)
def in_turn(place: Place) -> Values:
    model = compiled(place)
    fit(model, epochs=1, batch_size=12)
    fit(model, epochs=1, batch_size=5)
    return fit(model, *data(UNEVEN), epochs=1, batch_size=8)


@case("train_on_batch and test_on_batch", three=True)
def on_batches(place: Place) -> Values:
    model = compiled(place)
    x, y = data(BATCH)
    trained = [model.train_on_batch(x, y, return_dict=True) for _ in range(3)]
    tested = model.test_on_batch(x, y, sample_weight=np.linspace(0, 1, BATCH), return_dict=True)
    found = {f"trained {name}": [one[name] for one in trained] for name in tested}
    return outcome(model) | found | {f"tested {name}": value for name, value in tested.items()}


@case("model saved and loaded between two fits", three=True)
def saved(place: Place) -> Values:
    model = compiled(place, optimizer=lambda: keras.optimizers.Adam(0.01))
    fit(model)
    path = place.directory / "saved.keras"
    model.save(path)
    with place.scope():
        again = keras.models.load_model(path)
    return fit(again) | predicted(again, data()[0])


@case("tf.train.Checkpoint restored between two fits")
def checkpoint(place: Place) -> Values:
    model = compiled(place, optimizer=lambda: keras.optimizers.Adam(0.01))
    fit(model)
    kept = tf.train.Checkpoint(model=model)
    path = kept.write(str(place.directory / "kept"))
    fit(model)
    kept.read(path)
    return fit(model, epochs=1)


@case("clone_model, set_weights")
def cloned(place: Place) -> Values:
    model = compiled(place)
    fit(model)
    with place.scope():
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        clone.compile(descent(), cross_entropy())
    return fit(clone)


@case("two models trained in turn")
def both(place: Place) -> Values:
    one, other = compiled(place), compiled(place, lambda: sequential((FEATURES,), dense()))
    for _ in range(2):
        first, second = fit(one, epochs=1), fit(other, epochs=1)
    return first | {f"other {name}": value for name, value in second.items()}


@case("compiled again with another loss")
def compiled_again(place: Place) -> Values:
    model = compiled(place, mlp)
    fit(model)
    with place.scope():
        model.compile("adam", cross_entropy(), metrics=["accuracy"])
    return fit(model)


@case("compiled outside of the scope")
def outside(place: Place) -> Values:
    with place.scope():
        model = mlp()
    model.compile(descent(), cross_entropy(), metrics=["accuracy"])
    return fit(model)
