"""Cases: metrics, over batches of which the last is smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import CLASSES, UNEVEN, Place, Values, compiled, data, fit, labels, mlp, scores, topic
from keras import metrics
from loss_cases import one_hot, positive, sign, size, two

case = topic("metrics")
Make = Callable[[], Any]


def measured(
    place: Place, make: Callable[[], list[Any]], y: Any, activation: Any = None, **options: Any
) -> Values:
    outputs = y.shape[-1] if y.ndim > 1 else CLASSES
    chosen = {"loss": "mse" if y.ndim > 1 else "sparse_categorical_crossentropy", **options}
    model = compiled(place, lambda: mlp(outputs, activation), metrics=make, **chosen)
    x, _ = data()
    return fit(model, x[:UNEVEN], y[:UNEVEN]) | scores(model, x, y)


def negatives() -> list[Any]:
    names = ("TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives")
    return [getattr(metrics, name)() for name in names]


def at_thresholds() -> list[Any]:
    return [
        metrics.SensitivityAtSpecificity(0.5),
        metrics.SpecificityAtSensitivity(0.5),
        metrics.PrecisionAtRecall(0.5),
        metrics.RecallAtPrecision(0.5),
    ]


# By the activation of the outputs and the targets: the names of cases and their metrics.
GROUPS: dict[tuple[Any, Callable[[], Any]], dict[str, Make]] = {
    ("softmax", labels): {
        "accuracies of classes": lambda: ["accuracy", metrics.SparseTopKCategoricalAccuracy(2)],
    },
    ("softmax", one_hot): {
        "accuracies of one-hot targets": lambda: ["accuracy", metrics.TopKCategoricalAccuracy(2)],
        "Precision and Recall of a class": lambda: [metrics.Precision(top_k=2), metrics.Recall(class_id=1)],
        "F1Score and FBetaScore": lambda: [metrics.F1Score("macro"), metrics.FBetaScore("micro", beta=2.0)],
        "CategoricalCrossentropy as a metric": lambda: metrics.CategoricalCrossentropy(label_smoothing=0.1),
    },
    ("sigmoid", two): {
        "BinaryAccuracy": lambda: metrics.BinaryAccuracy(threshold=0.4),
        "AUC of ROC": metrics.AUC,
        "AUC of PR, several labels": lambda: metrics.AUC(curve="PR", multi_label=True, num_labels=2),
        "AUC of 20,000 thresholds": lambda: metrics.AUC(num_thresholds=20_000),
        "Precision and Recall": lambda: [metrics.Precision(), metrics.Recall()],
        "true and false positives and negatives": negatives,
        "sensitivity, specificity and the like": at_thresholds,
        "IoU of classes": lambda: [metrics.BinaryIoU(), metrics.OneHotMeanIoU(2)],
        "entropies as metrics": lambda: [
            metrics.BinaryCrossentropy(),
            metrics.KLDivergence(),
            metrics.Poisson(),
        ],
    },
    ("softplus", positive): {
        "relative and logarithmic errors": lambda: ["mape", metrics.MeanSquaredLogarithmicError()],
    },
    ("tanh", sign): {
        "hinges as metrics": lambda: [metrics.Hinge(), metrics.SquaredHinge(), metrics.CategoricalHinge()],
    },
    (None, size): {
        "mean errors": lambda: ["mse", "mae", metrics.RootMeanSquaredError(), metrics.LogCoshError()],
        "R2Score": metrics.R2Score,
        "correlations": lambda: [metrics.PearsonCorrelation(), metrics.ConcordanceCorrelation()],
        "CosineSimilarity as a metric": metrics.CosineSimilarity,
    },
}


def _declare(name: str, make: Callable[[], Any], targets: Callable[[], Any], activation: Any) -> None:
    def several() -> list[Any]:
        made = make()
        return made if isinstance(made, list) else [made]

    @case(name, three=name in ("AUC of ROC", "R2Score"))
    def run(place: Place) -> Values:
        return measured(place, several, targets(), activation)


for (_activation, _targets), _metrics in GROUPS.items():
    for _name, _make in _metrics.items():
        _declare(_name, _make, _targets, _activation)


class Counter(metrics.Metric):
    """A counter whose result is its own variable, and an integer."""

    def __init__(self) -> None:
        super().__init__(name="counter")
        self.right = self.add_weight(shape=(), initializer="zeros", name="right")
        self.seen = self.add_weight(shape=(), initializer="zeros", dtype="int32", name="seen")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        right = tf.equal(tf.cast(tf.reshape(y_true, [-1]), tf.int64), tf.argmax(y_pred, axis=-1))
        self.right.assign_add(tf.reduce_sum(tf.cast(right, tf.float32)))
        self.seen.assign_add(tf.shape(y_pred)[0])

    def result(self) -> Any:
        return self.right


class Both(Counter):
    def result(self) -> Any:
        return {"share": self.right / tf.cast(self.seen, tf.float32), "seen": self.seen}


@case("own metric that returns its variable", three=True)
def counter(place: Place) -> Values:
    return measured(place, lambda: [Counter()], labels(), "softmax")


@case("own metric, made outside of the scope", three=True)
def outside(place: Place) -> Values:
    made = [Counter()]
    return measured(place, lambda: made, labels(), "softmax")


@case("own metric with several results")
def several_results(place: Place) -> Values:
    return measured(place, lambda: [Both()], labels(), "softmax")


@case("own function as a metric", three=True)
def function(place: Place) -> Values:
    def spread(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_max(y_pred, axis=-1) - tf.reduce_min(y_pred, axis=-1)

    return measured(place, lambda: [spread], labels(), "softmax")


@case("MeanMetricWrapper and Mean of an own class")
def wrapped(place: Place) -> Values:
    class Level(metrics.Mean):
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            super().update_state(tf.reduce_mean(y_pred, axis=-1))

    def error(y_true: Any, y_pred: Any) -> Any:
        return tf.abs(tf.cast(y_true[:, 0], tf.float32) - y_pred[:, 0])

    return measured(place, lambda: [Level(), metrics.MeanMetricWrapper(error, name="error")], size())


@case("weighted metrics", quick=True)
def weighted(place: Place) -> Values:
    x, y = data(UNEVEN)
    model = compiled(place, weighted_metrics=lambda: ["accuracy"])
    weights = np.linspace(0.1, 2, UNEVEN).astype(np.float32)
    return fit(model, x, y, sample_weight=weights)


@case("MeanIoU, confusion of classes")
def mean_iou(place: Place) -> Values:
    class Confusion(metrics.MeanIoU):
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return super().update_state(y_true, tf.argmax(y_pred, axis=-1), sample_weight)

    return measured(place, lambda: [Confusion(CLASSES)], labels(), "softmax")


class Inside(keras.Model):
    """Updates its own metric in call."""

    def __init__(self) -> None:
        super().__init__()
        self.last = keras.layers.Dense(CLASSES)
        self.level = metrics.Mean(name="level")

    def call(self, x: Any) -> Any:
        y = self.last(x)
        self.level.update_state(tf.reduce_mean(y, axis=-1))
        return y


@case("metric that the model updates in call", three=True, quick=True)
def inside(place: Place) -> Values:
    model = compiled(place, Inside)
    return fit(model, *data(UNEVEN))


class OwnMetrics(keras.Model):
    """Overrides compute_metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.last = keras.layers.Dense(CLASSES)
        self.extra = metrics.Mean(name="extra")

    def call(self, x: Any) -> Any:
        return self.last(x)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.extra.update_state(tf.reduce_mean(y_pred, axis=-1))
        return super().compute_metrics(x, y, y_pred, sample_weight)


@case("own compute_metrics")
def own_compute_metrics(place: Place) -> Values:
    model = compiled(place, OwnMetrics)
    return fit(model, *data(UNEVEN))
