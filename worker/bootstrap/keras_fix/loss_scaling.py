"""Lets all replicas of one process take or leave a step together where the loss is scaled.

Keras asks the first replica alone whether its gradients are finite, and applies the others' as they are: one overflow
elsewhere and all weights are infinite.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .clusters import spans_workers
from .notices import Tell


def repair(keras: ModuleType, tell: Tell) -> None:
    """Repair the LossScaleOptimizer of the imported `keras`: all replicas have such gradients if one has."""
    import tensorflow as tf
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    original = LossScaleOptimizer.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        context, gradients = tf.distribute.get_replica_context(), list(grads)
        # Over several workers the gradients are summed before anything looks at them.
        if context is not None and context.num_replicas_in_sync > 1 and not spans_workers(context.strategy):
            tell("looks for overflow in the first replica alone")
            overflow = tf.cast(tf.logical_not(self.check_finite(gradients)), tf.float32)
            anywhere = context.all_reduce(tf.distribute.ReduceOp.SUM, overflow)
            gradients = _spoilt(gradients, tf.where(anywhere > 0, float("nan"), 0.0))
        return original(self, gradients, trainable_variables)

    LossScaleOptimizer.apply = apply


def _spoilt(gradients: list[Any], by: Any) -> list[Any]:
    """With the number `by` added to one of them; a dense one if there is any, as a sparse one may have no values."""
    import tensorflow as tf

    there = [index for index, gradient in enumerate(gradients) if gradient is not None]
    if not there:
        return gradients
    dense = (index for index in there if not isinstance(gradients[index], tf.IndexedSlices))
    chosen = next(dense, there[0])
    spoilt = tf.convert_to_tensor(gradients[chosen])
    return [*gradients[:chosen], spoilt + tf.cast(by, spoilt.dtype), *gradients[chosen + 1 :]]
