"""Makes an optimizer's variables outside of the step that first needs them, where those made within it would be wrong.

Replicas run in threads, each within a traced step; variables that are made there get no first value (`You must feed a
value for placeholder tensor`), and beside variables that lie in parts on several servers a wrong one. So the replicas
meet, and the variables are made as `optimizer.build` in the strategy's scope would have made them.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .cut_variables import partitioner_of
from .notices import Tell


def repair(keras: ModuleType, tell: Tell) -> None:
    """Repair the optimizers of the imported `keras`."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    for optimizer_class in (BaseOptimizer, LossScaleOptimizer):
        _build_before_applying(keras, optimizer_class, tell)


def _build_before_applying(keras: Any, optimizer_class: Any, tell: Tell) -> None:
    import tensorflow as tf

    original = optimizer_class.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if self.built or trainable_variables is None:
            return original(self, grads, trainable_variables)
        variables = list(trainable_variables)
        context = tf.distribute.get_replica_context()
        if context is not None and _cannot_make_variables(context.strategy):
            tell("cannot make an optimizer's variables in a step under this strategy")
            context.merge_call(lambda strategy: _build(keras, self, strategy, variables))
        return original(self, grads, variables)

    optimizer_class.apply = apply


def _cannot_make_variables(strategy: Any) -> bool:
    """Whether a step has several replicas in this process, each with copies of its own, or variables cut into parts."""
    import tensorflow as tf

    if isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy):
        return len(strategy.extended.worker_devices) > 1
    return partitioner_of(strategy) is not None


def _build(keras: Any, optimizer: Any, strategy: Any, variables: list[Any]) -> None:
    import tensorflow as tf

    with tf.init_scope(), strategy.scope(), keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True
