"""Cases: metrics, over batches of which the last is smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from case import CLASSES, UNEVEN, Place, Plain, Run, Values, compiled, data, fit, labels, mlp, scores, topic
from keras import metrics
from loss_cases import one_hot, positive, sign, size, two

case = topic("metrics")
Make = Callable[[], Any]


def measured(make: Make, targets: Make, activation: Any = None) -> Run:
    """Return a case that trains with a metric, or a list of them, and evaluates."""

    def run(place: Place) -> Values:
        y = targets()
        outputs = y.shape[-1] if y.ndim > 1 else CLASSES
        loss = "mse" if y.ndim > 1 else "sparse_categorical_crossentropy"

        def several() -> list[Any]:
            made = make()
            return made if isinstance(made, list) else [made]

        model = compiled(place, lambda: mlp(outputs, activation), loss=loss, metrics=several)
        x, _ = data()
        return fit(model, x[:UNEVEN], y[:UNEVEN]) | scores(model, x, y)

    return run


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


for (_activation, _targets), _metrics in GROUPS.items():
    for _name, _make in _metrics.items():
        case(_name, measured(_make, _targets, _activation), three=_name in ("AUC of ROC", "R2Score"))


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


def spread(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_max(y_pred, axis=-1) - tf.reduce_min(y_pred, axis=-1)


case("own metric that returns its variable", measured(Counter, labels, "softmax"), three=True)


@case("own metric, made outside of the scope", three=True)
def outside(place: Place) -> Values:
    made = Counter()
    return measured(lambda: made, labels, "softmax")(place)


case("own metric with several results", measured(Both, labels, "softmax"))
case("own function as a metric", measured(lambda: spread, labels, "softmax"), three=True)


class Level(metrics.Mean):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.reduce_mean(y_pred, axis=-1))


def error(y_true: Any, y_pred: Any) -> Any:
    return tf.abs(tf.cast(y_true[:, 0], tf.float32) - y_pred[:, 0])


case(
    "MeanMetricWrapper and Mean of an own class",
    measured(lambda: [Level(), metrics.MeanMetricWrapper(error, name="error")], size),
)


@case("weighted metrics", quick=True)
def weighted(place: Place) -> Values:
    x, y = data(UNEVEN)
    model = compiled(place, weighted_metrics=lambda: ["accuracy"])
    weights = np.linspace(0.1, 2, UNEVEN).astype(np.float32)
    return fit(model, x, y, sample_weight=weights)


class Confusion(metrics.MeanIoU):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_true, tf.argmax(y_pred, axis=-1), sample_weight)


case("MeanIoU, confusion of classes", measured(lambda: Confusion(CLASSES), labels, "softmax"))


class Inside(Plain):
    """Updates its own metric in call."""

    def __init__(self) -> None:
        super().__init__()
        self.level = metrics.Mean(name="level")

    def call(self, x: Any, training: bool = False) -> Any:
        y = super().call(x)
        self.level.update_state(tf.reduce_mean(y, axis=-1))
        return y


case(
    "metric that the model updates in call",
    lambda place: fit(compiled(place, Inside), *data(UNEVEN)),
    three=True,
    quick=True,
)


class OwnMetrics(Plain):
    """Overrides compute_metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = metrics.Mean(name="extra")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.extra.update_state(tf.reduce_mean(y_pred, axis=-1))
        return super().compute_metrics(x, y, y_pred, sample_weight)


case("own compute_metrics", lambda place: fit(compiled(place, OwnMetrics), *data(UNEVEN)))
