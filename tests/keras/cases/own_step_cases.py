"""Models with own steps and metrics, and fits within fits. All workers must get the same values."""

from __future__ import annotations

import csv
import os
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import BATCH, Place, Values, compiled, data, fit, outcome, topic
from shared_path_cases import begin

case = topic("")
EXAMPLES = 24
OPTIONS = {"batch_size": BATCH, "verbose": 0, "shuffle": False}


def straight_line() -> tuple[Any, Any]:
    """Data whose batches have different halves. Each worker gets one half."""
    x = np.arange(EXAMPLES, dtype=np.float32).reshape(-1, 1) / 10
    return x, 2 * x


class Line(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


class OwnTestStep(Line):
    def test_step(self, batch: Any) -> Any:
        x, y = batch
        return {"error": tf.reduce_mean(tf.abs(self(x) - y)), "count": tf.shape(x)[0]}


class OwnMetrics(Line):
    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        results["range"] = tf.reduce_max(y_pred) - tf.reduce_min(y_pred)
        return results


def line(place: Place, kind: type[Line], rate: float, **options: Any) -> Any:
    return compiled(place, kind, lambda: keras.optimizers.SGD(rate), loss="mse", metrics=None, **options)


def logged(model: Any, history: Any, **more: Any) -> Values:
    return outcome(model, **more) | {f"history {name}": values for name, values in history.history.items()}


@case("own_test_step")
def own_test_step(place: Place) -> Values:
    """Early stopping on a value of the model's own step. It falls on one half of the data, and rises on the other."""
    x, y = straight_line()
    model = line(place, OwnTestStep, 0.05)
    seen: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: seen.append(float(logs["error"]))
    )
    stop = keras.callbacks.EarlyStopping(monitor="val_error", patience=0, mode="min")
    halves = np.repeat([0.4, 3.0, 0.4, 3.0], EXAMPLES // 4).astype(np.float32).reshape(-1, 1)
    history = model.fit(x, y, epochs=8, validation_data=(x, y * halves), callbacks=[stop, note], **OPTIONS)
    scores = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    several = line(place, OwnTestStep, 0.05, steps_per_execution=2)
    several.fit(x, y, epochs=1, **OPTIONS)
    return logged(
        model,
        history,
        error=scores["error"],
        batches=np.array(seen),
        several=several.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)["error"],
    )


@case("test_step_of_the_object")
def test_step_of_the_object(place: Place) -> Values:
    x, y = straight_line()
    model = line(place, Line, 0.05)
    model.fit(x, y, epochs=1, **OPTIONS)
    model.test_step = types.MethodType(OwnTestStep.test_step, model)
    return {"error": model.evaluate(x, y, batch_size=EXAMPLES, verbose=0, return_dict=True)["error"]}


@case("own_metrics_method")
def own_metrics_method(place: Place) -> Values:
    """The rate is lowered when the validation loss does not change."""
    x, y = straight_line()
    model = line(place, OwnMetrics, 0.01)
    lower = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", min_delta=1e-3, patience=1, factor=0.1)
    history = model.fit(x, y, epochs=4, validation_data=(x * x, y), callbacks=[lower], **OPTIONS)
    scores = model.evaluate(x * x, y, batch_size=BATCH, verbose=0, return_dict=True)
    return logged(model, history, **{f"score {name}": value for name, value in scores.items()})


@case("fit_within_a_fit")
def fit_within_a_fit(place: Place) -> Values:
    """A callback trains the model during a fit. The outer fit continues with its validation and callbacks."""
    x, y = data()
    model = compiled(place)
    inner: list[Any] = []

    class Trains(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 0:
                inner.append(self.model.fit(x, y, epochs=1, **OPTIONS))

    values = fit(model, callbacks=[Trains()], validation_data=(x, y), epochs=3)
    return values | {"inner": inner[0].history["loss"]}


class Pennies(keras.metrics.Metric):
    """Counts more than a float32 has digits for."""

    def __init__(self) -> None:
        super().__init__(name="pennies")
        self.total = self.add_weight(shape=(), dtype="int64", initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        count = tf.shape(y_true, out_type=tf.int64)[0]
        odd = tf.cast(tf.reduce_sum(tf.round(5 * y_true)), tf.int64)
        self.total.assign(self.total + 10_000_001 * count + odd)

    def result(self) -> Any:
        return self.total.value


@case("counts_in_int64")
def counts_in_int64(place: Place) -> Values:
    x, y = straight_line()
    with place.scope():
        model = Line()
        model.compile("sgd", "mse", metrics=[Pennies()])
    counted: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: counted.append(int(logs["pennies"]))
    )
    history = model.fit(x, y, epochs=1, callbacks=[note], **OPTIONS)
    return {"epoch": np.array(history.history["pennies"], np.int64), "steps": np.array(counted, np.int64)}


@case("two_logs_of_one_name")
def two_logs_of_one_name(place: Place) -> Values:
    """Two loggers have the chief's paths, and TF_CONFIG is removed once the strategy exists."""
    shared = begin(place)
    tf_config = os.environ.pop("TF_CONFIG", "")
    logs = []
    for name in ("left", "right"):
        (shared / name).mkdir(exist_ok=True)
        logs.append(keras.callbacks.CSVLogger(str(shared / name / "log.csv")))
    try:
        fit(compiled(place), callbacks=logs)
    finally:
        os.environ["TF_CONFIG"] = tf_config
    return {
        "files": np.array(len({log.filename for log in logs})),
        "lines": np.array([len(list(csv.reader(Path(log.filename).open()))) for log in logs]),
        "shared": np.array([Path(log.filename).is_relative_to(shared) for log in logs]),
    }
