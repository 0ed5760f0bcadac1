"""The training step of several workers: gradients, metrics and batch sizes are summed in one collective.

Keras sums the gradients in the step, and reduces every metric over the network after it. Here the metrics are updated
before the gradients are applied, since they depend on the predictions only. Their states are summed with the gradients,
so the logs of every step are exact for all workers' examples without another collective. At the end of an epoch all
metrics are read in one collective.

Uneven batches: the step needs the sum of (gradient x examples) divided by the sum of examples, but Keras sums gradients
of means. Each replica therefore multiplies its loss by `weight`, its number of examples divided by the usual
number, and the summed gradients are divided by the mean of all weights. In even steps every weight is 1, and nothing
is divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import replace, tf
from .optimizers import summed_gradients
from .workers import is_between_steps, replica_context, spans_workers, sum_in_step, sum_now

# Reductions of losses that are a mean over their batch. Keras then divides them by the number of replicas.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
# Most numbers in metrics that are summed with every step's gradients. A confusion matrix may have a million.
MOST_METRIC_NUMBERS = 50_000


@dataclass
class UsualBatch:
    """The usual number of examples of one replica in a step of the last data set, 0 if unknown.
    It is equal on all workers. It saves time in uneven steps; results do not depend on it."""

    examples: float = 0.0


usual_batch = UsualBatch()


def replace_train_step(trainer: Any) -> None:
    """Replace `trainer.TensorFlowTrainer.train_step`. A model's own train_step is not affected."""

    @replace(trainer.TensorFlowTrainer, "train_step")
    def train_step(original: Any, self: Any, data: Any) -> Any:
        if replica_context() is None or not _can_sum_metrics(self):
            return original(self, data)
        return _train_step(self, data, trainer)


def has_summed_logs(model: Any) -> bool:
    """Whether the logs of the model's training step already are those of all workers."""
    return is_kerass_own(model, "train_step") and _can_sum_metrics(model)


def is_kerass_own(model: Any, name: str) -> bool:
    """Whether the method `name` is Keras's, and not one of the model's class or of the model itself."""
    import keras

    return getattr(getattr(model, name), "__func__", None) is getattr(keras.Model, name)


def _can_sum_metrics(model: Any) -> bool:
    return (
        is_kerass_own(model, "compute_metrics")
        and model.optimizer is not None
        and bool(model.trainable_weights)
        and sum(_size(variable) for variable in _metric_variables(model)) <= MOST_METRIC_NUMBERS
    )


def _train_step(model: Any, data: Any, trainer: Any) -> Any:
    from keras.src import backend

    x, y, sample_weight = trainer.data_adapter_utils.unpack_x_y_sample_weight(data)
    examples = _examples(x, trainer.tree)
    statistics = [] if isinstance(examples, int) else _statistics(model)
    before = [tf.identity(variable.value) for variable in statistics]
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        unscaled = trainer.loss_module.unscale_loss_for_distribution(loss)
        model._loss_tracker.update_state(_zero_if_empty(examples, unscaled), sample_weight=examples)
        weight = _weight(model, examples)
        scaled = model.optimizer.scale_loss(loss * tf.cast(weight, loss.dtype))
    variables = model.trainable_weights
    gradients = [_zero_if_empty(examples, gradient) for gradient in tape.gradient(scaled, variables)]
    for variable, old in zip(statistics, before, strict=True):
        variable.assign(tf.where(tf.equal(examples, 0), old, variable.value))
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    states = _metric_variables(model)
    sums = sum_in_step([*gradients, weight, *_packed(states)])
    gradients, weights, numbers = sums[: len(variables)], sums[len(variables)], sums[len(variables) + 1 :]
    strategy = tf.distribute.get_strategy()
    with summed_gradients():
        model.optimizer.apply_gradients(zip(_averaged(gradients, weights, strategy), variables, strict=True))
    with backend.StatelessScope(state_mapping=_unpacked(states, numbers, strategy)):
        return model.get_metrics_result()


def _examples(x: Any, tree: Any) -> Any:
    """The number of examples in this replica's batch: an int if all batches have the same, else a tensor."""
    first = next(part for part in tree.flatten(x) if part is not None)
    return first.shape[0] if first.shape[0] is not None else tf.shape(first)[0]


def _statistics(model: Any) -> list[Any]:
    """Variables that layers compute from batches. A mean over an empty batch would destroy them."""
    return [v for v in model.non_trainable_variables if "float" in str(v.dtype) and v.aggregation == "none"]


def _zero_if_empty(examples: Any, value: Any) -> Any:
    """Return `value`, or zero without examples: a mean over an empty batch may be NaN."""
    if value is None or isinstance(examples, int) or isinstance(value, tf.IndexedSlices):
        return value
    return tf.cond(tf.equal(examples, 0), lambda: tf.zeros_like(value), lambda: value)


def _weight(model: Any, examples: Any) -> Any:
    """The weight of this replica's mean loss among all replicas: its share of the examples, usually 1."""
    if not _is_mean(model):
        return tf.constant(1.0)
    return tf.cast(examples, tf.float32) / (usual_batch.examples or 1.0)


def _is_mean(model: Any) -> bool:
    """Whether all parts of the loss are means over the batch."""
    from keras.src.trainers.trainer import Trainer

    if type(model).compute_loss is not Trainer.compute_loss:
        return False
    compiled = model._compile_loss
    parts = [] if compiled is None else compiled._flat_losses
    return all(getattr(part.loss, "reduction", None) in _MEANS for part in parts)


def _averaged(gradients: Sequence[Any], weights: Any, strategy: Any) -> list[Any]:
    """Turn the summed gradients of weighted losses into those of one batch. Equal weights need no change."""
    replicas = float(strategy.num_replicas_in_sync)
    present = [gradient for gradient in gradients if gradient is not None]

    def scaled() -> list[Any]:
        factor = tf.math.divide_no_nan(replicas, weights)
        return [_times(gradient, factor) for gradient in present]

    uneven = tf.abs(weights - replicas) > 1e-3
    averaged = iter(tf.cond(uneven, scaled, lambda: list(present)))
    return [None if gradient is None else next(averaged) for gradient in gradients]


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


# -- metrics


def replace_metrics_result(base_trainer: Any) -> None:
    """Read the metrics of all workers in one collective. Keras takes one for each variable."""

    @replace(base_trainer.Trainer, "get_metrics_result")
    def get_metrics_result(original: Any, self: Any) -> Any:
        from keras.src import backend

        strategy = self.distribute_strategy
        variables = _metric_variables(self)
        if (
            not variables
            or not is_between_steps()
            or backend.common.stateless_scope.in_stateless_scope()
            or not spans_workers(strategy)
        ):
            return original(self)
        total = sum_now(strategy, _local_sum(variables, strategy))
        with backend.StatelessScope(state_mapping=_values(variables, total, strategy)):
            return original(self)


def replace_assign(core: Any) -> None:
    """Set a metric's variable on this worker without reading it back, which would take a collective."""

    @replace(core.Variable, "_direct_assign")
    def direct_assign(original: Any, self: Any, value: Any) -> None:
        if not _is_summed_variable(self._value):
            original(self, value)
            return

        strategy = self._value.distribute_strategy
        share = tf.cast(value, self._value.dtype) / tf.cast(strategy.num_replicas_in_sync, self._value.dtype)
        for part in strategy.experimental_local_results(self._value):
            part.assign(tf.cast(share, self._value.dtype))


def _is_summed_variable(variable: Any) -> bool:
    """Whether the variable's value is the sum of its replicas', and this code runs outside of a step."""
    strategy = getattr(variable, "distribute_strategy", None)
    return (
        getattr(variable, "aggregation", None) == tf.VariableAggregation.SUM
        and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
        and spans_workers(strategy)
        and is_between_steps()
    )


def _metric_variables(model: Any) -> list[Any]:
    """The metric variables that are summed or averaged over the workers, each once."""
    found = {id(v): v for v in model.metrics_variables if v.aggregation in ("sum", "mean")}
    return list(found.values())


def _size(variable: Any) -> int:
    return math.prod(int(side) for side in variable.shape)


def _packed(variables: Sequence[Any]) -> list[Any]:
    """This replica's values of the variables, in one vector for each type that they are summed in."""
    return [
        tf.concat([tf.reshape(tf.cast(one.value, wide), [-1]) for one in alike], axis=0)
        for wide, alike in _by_type(variables)
    ]


def _unpacked(variables: Sequence[Any], totals: Sequence[Any], strategy: Any) -> list[tuple[Any, Any]]:
    """Each variable with its value over all replicas, from the sums of the packed vectors."""
    values = []
    for (_, alike), total in zip(_by_type(variables), totals, strict=True):
        values.extend(_values(alike, total, strategy))
    return values


def _by_type(variables: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """Group the variables by the type in which their sums are exact enough."""
    found: dict[Any, list[Any]] = {}
    for variable in variables:
        found.setdefault(_wide([variable]), []).append(variable)
    return list(found.items())


def _wide(variables: Sequence[Any]) -> Any:
    """The type in which the variables are summed. float32 cannot count above 2**24."""
    needs = any("64" in str(one.dtype) or "int32" in str(one.dtype) for one in variables)
    return tf.float64 if needs else tf.float32


def _local_sum(variables: Sequence[Any], strategy: Any) -> Any:
    """The sum over this worker's replicas, all variables in one vector."""
    flat, wide = [], _wide(variables)
    for variable in variables:
        values = [tf.cast(value, wide) for value in strategy.experimental_local_results(variable.value)]
        flat.append(tf.reshape(tf.add_n(values), [-1]))
    return tf.concat(flat, axis=0)


def _values(variables: Sequence[Any], total: Any, strategy: Any) -> list[tuple[Any, Any]]:
    """Each variable with its value over all replicas, from one vector of all variables."""
    parts = tf.split(total, [_size(v) for v in variables]) if variables else []
    values = []
    for variable, part in zip(variables, parts, strict=True):
        if variable.aggregation == "mean":
            part = part / strategy.num_replicas_in_sync
        values.append((variable, tf.cast(tf.reshape(part, variable.shape), variable.dtype)))
    return values
