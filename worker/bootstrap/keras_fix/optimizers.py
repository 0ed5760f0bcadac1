"""Sums the gradients over the workers before anything looks at them: clipping, finiteness, weight decay.

Keras 3 sums them last, so every worker clips its own share of the gradient, and with dynamic loss scaling a
worker whose share is not finite skips the step, collective included, and the others wait for it for ever.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .clusters import replica_context, sum_in_step

# What TensorFlow's optimizers do across replicas and others alone. With gradients that are sums over all
# replicas each does the same by itself, and that works in a condition too, which meeting the others does not.
_UPDATES = (
    "_backend_update_step",
    "_backend_increment_gradient_accumulators",
    "_apply_weight_decay",
    "_overwrite_model_variables_with_average_value",
)

_here = threading.local()


def repair(keras: ModuleType, workers: int) -> str | None:
    """Repair Keras's optimizers; what was repaired."""
    import keras.src.backend.tensorflow.core as core
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
    from keras.src.optimizers.optimizer import Optimizer

    _sum_first(BaseOptimizer)
    _sum_first(LossScaleOptimizer)
    _decide_here(LossScaleOptimizer)
    for name in _UPDATES:
        _update_here(Optimizer, BaseOptimizer, name)
    _count_here(core.Variable)
    return "gradient clipping, accumulation and loss scaling"


@contextlib.contextmanager
def summed_gradients() -> Iterator[None]:
    """Within it, this thread's optimizers take gradients as sums over all workers already."""
    before = _are_summed()
    _here.summed = True
    try:
        yield
    finally:
        _here.summed = before


def _are_summed() -> bool:
    return bool(getattr(_here, "summed", False))


def _sum_first(optimizer_class: Any) -> None:
    original = optimizer_class.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if _are_summed() or replica_context() is None:
            return original(self, grads, trainable_variables)
        grads = sum_in_step(list(grads))
        with summed_gradients():
            return original(self, grads, trainable_variables)

    optimizer_class.apply = apply


def _decide_here(loss_scaling_class: Any) -> None:
    """All see the same sums, so each replica finds them finite or not by itself."""
    original = loss_scaling_class._tf_apply

    @functools.wraps(original)
    def tf_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if _are_summed():
            return self._common_apply(grads, trainable_variables)
        return original(self, grads, trainable_variables)

    loss_scaling_class._tf_apply = tf_apply


def _update_here(optimizer_class: Any, base_class: Any, name: str) -> None:
    """Let `name` do what it does without a distribution strategy, once the gradients are summed."""
    original, alone = getattr(optimizer_class, name), getattr(base_class, name)

    @functools.wraps(original)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (alone if _are_summed() else original)(self, *args, **kwargs)

    setattr(optimizer_class, name, update)


def _count_here(variable_class: Any) -> None:
    """Let each replica count its steps by itself: the optimizer's counter is set to the first replica's."""
    import tensorflow as tf
    from tensorflow.python.distribute.values_util import get_current_replica_id_as_int

    original = variable_class._direct_assign

    @functools.wraps(original)
    def direct_assign(self: Any, value: Any) -> None:
        aggregation = getattr(self._value, "aggregation", None)
        if (
            not _are_summed()
            or aggregation != tf.VariableAggregation.ONLY_FIRST_REPLICA
            # One of an optimizer that was made outside of the strategy's scope.
            or not isinstance(self._value, tf.distribute.DistributedValues)
        ):
            original(self, value)
            return
        part = self._value._get_replica(get_current_replica_id_as_int())
        part.assign(tf.cast(value, part.dtype))

    variable_class._direct_assign = direct_assign
