"""The training step for several workers: gradients, metrics and batch sizes are summed in one collective.

Keras sums the gradients in the step and reduces every metric's result over the network after it. Here the
metrics are updated before the gradients are applied (they depend on the predictions alone), so their states
travel with the gradients and every step's logs are those of all workers' examples, exactly, for nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .clusters import replica_context, sum_in_step
from .metrics import can_travel, packed, travelling, unpacked
from .optimizers import summed_gradients

# A loss of these is a mean over its batch; Keras then divides it by the number of replicas.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@dataclass
class BatchUnit:
    """How many examples one replica usually gets a step, the same number on all workers; 0: not known."""

    examples: float = 0.0


# Of the data set that a model was last given. Right results do not depend on it, only their cheapness.
usual_batch = BatchUnit()


def replace_train_step(trainer: Any) -> None:
    """Give `trainer.TensorFlowTrainer` the step; models with a train_step of their own keep theirs."""
    original = trainer.TensorFlowTrainer.train_step

    @functools.wraps(original)
    def train_step(self: Any, data: Any) -> Any:
        if (
            replica_context() is None
            or self.optimizer is None
            or not self.trainable_weights
            or not is_kerass_own(self, "compute_metrics")
            or not can_travel(self)
        ):
            return original(self, data)
        return _train_step(self, data, trainer)

    trainer.TensorFlowTrainer.train_step = train_step


def travels(model: Any) -> bool:
    """Whether the logs of the model's training step are already those of all workers."""
    return (
        is_kerass_own(model, "train_step")
        and is_kerass_own(model, "compute_metrics")
        and model.optimizer is not None
        and bool(model.trainable_weights)
        and can_travel(model)
    )


def is_kerass_own(model: Any, name: str) -> bool:
    """Whether neither the model's class nor the model itself has a method `name` in place of Keras's."""
    import keras

    return getattr(getattr(model, name), "__func__", None) is getattr(keras.Model, name)


def _train_step(model: Any, data: Any, trainer: Any) -> Any:
    import tensorflow as tf
    from keras.src import backend

    x, y, sample_weight = trainer.data_adapter_utils.unpack_x_y_sample_weight(data)
    examples = _examples(x, trainer.tree)
    averages = [] if isinstance(examples, int) else _averages(model)
    before = [tf.identity(variable.value) for variable in averages]
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        unscaled = trainer.loss_module.unscale_loss_for_distribution(loss)
        model._loss_tracker.update_state(_if_any(examples, unscaled), sample_weight=examples)
        weight = _weight(model, examples)
        scaled = model.optimizer.scale_loss(loss * tf.cast(weight, loss.dtype))
    variables = model.trainable_weights
    gradients = tape.gradient(scaled, variables)
    gradients = [_if_any(examples, gradient) for gradient in gradients]
    for variable, old in zip(averages, before, strict=True):
        variable.assign(tf.where(tf.equal(examples, 0), old, variable.value))
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    states = travelling(model)
    sums = sum_in_step([*gradients, weight, *packed(states)])
    gradients, weights, numbers = sums[: len(variables)], sums[len(variables)], sums[len(variables) + 1 :]
    strategy = tf.distribute.get_strategy()
    with summed_gradients():
        model.optimizer.apply_gradients(zip(_averaged(gradients, weights, strategy), variables, strict=True))
    with backend.StatelessScope(state_mapping=unpacked(states, numbers, strategy)):
        return model.get_metrics_result()


def _examples(x: Any, tree: Any) -> Any:
    """How many examples are in this replica's batch: an int when all batches have as many, else a tensor."""
    import tensorflow as tf

    first = next(part for part in tree.flatten(x) if part is not None)
    return first.shape[0] if first.shape[0] is not None else tf.shape(first)[0]


def _averages(model: Any) -> list[Any]:
    """What layers keep of the batches they saw; a mean over no examples at all would spoil it."""
    return [v for v in model.non_trainable_variables if "float" in str(v.dtype) and v.aggregation == "none"]


def _if_any(examples: Any, value: Any) -> Any:
    """`value`, zero if there are no examples: a mean over none may be NaN."""
    import tensorflow as tf

    if value is None or isinstance(examples, int) or isinstance(value, tf.IndexedSlices):
        return value
    return tf.cond(tf.equal(examples, 0), lambda: tf.zeros_like(value), lambda: value)


def _weight(model: Any, examples: Any) -> Any:
    """What this replica's mean loss counts for among all replicas': its share of the examples, 1 if usual."""
    import tensorflow as tf

    if not _is_mean(model):
        return tf.constant(1.0)
    return tf.cast(examples, tf.float32) / (usual_batch.examples or 1.0)


def _is_mean(model: Any) -> bool:
    """Whether the loss is a mean over the batch in all its parts."""
    from keras.src.trainers.trainer import Trainer

    if type(model).compute_loss is not Trainer.compute_loss:
        return False
    compiled = model._compile_loss
    parts = [] if compiled is None else compiled._flat_losses
    return all(getattr(part.loss, "reduction", None) in _MEANS for part in parts)


def _averaged(gradients: Sequence[Any], weights: Any, strategy: Any) -> list[Any]:
    """The summed gradients of weighted losses as those of one batch; touched only where weights differ."""
    import tensorflow as tf

    replicas = float(strategy.num_replicas_in_sync)
    present = [gradient for gradient in gradients if gradient is not None]

    def scaled() -> list[Any]:
        factor = tf.math.divide_no_nan(replicas, weights)
        return [_times(gradient, factor) for gradient in present]

    uneven = tf.abs(weights - replicas) > 1e-3
    averaged = iter(tf.cond(uneven, scaled, lambda: list(present)))
    return [None if gradient is None else next(averaged) for gradient in gradients]


def _times(gradient: Any, factor: Any) -> Any:
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
