"""Lets Keras 3 keep its metrics and its loss scale rightly under CentralStorageStrategy.

Each replica of a step assigns what it has made of a variable, and there is one variable for all of them. Keras writes
`total = total + mine` in each: the strategy adds these up, so what was there before counts once a replica, and the
first steps of an epoch outweigh the others more with each step. And a variable that is not to be aggregated, such as
the loss scale's, cannot be assigned in a replica at all.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .notices import Tell


def repair(keras: ModuleType, tell: Tell) -> None:
    """Repair what replicas of a CentralStorageStrategy assign to variables of the imported `keras`."""
    import keras.src.backend.tensorflow.core as core
    import tensorflow as tf

    original = core.Variable._direct_assign

    @functools.wraps(original)
    def direct_assign(self: Any, value: Any) -> None:
        kept, context = self._value, tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1 or not _is_shared(kept):
            original(self, value)
        elif kept.aggregation == tf.VariableAggregation.SUM:
            tell("sums up metrics wrongly under CentralStorageStrategy")
            context.merge_call(_add_what_each_added, args=(kept, tf.cast(value, kept.dtype)))
        elif kept.aggregation == tf.VariableAggregation.NONE:
            _assign_first(kept, value)
        else:
            original(self, value)

    core.Variable._direct_assign = direct_assign


def _is_shared(variable: Any) -> bool:
    """Whether it is the one variable that all replicas of a CentralStorageStrategy have."""
    from tensorflow.python.distribute.central_storage_strategy import CentralStorageStrategy
    from tensorflow.python.distribute.ps_values import AggregatingVariable

    return isinstance(variable, AggregatingVariable) and isinstance(
        variable.distribute_strategy, CentralStorageStrategy
    )


def _add_what_each_added(strategy: Any, variable: Any, new: Any) -> None:
    """In place of the sum of what the replicas want it to be, what it was and what each adds."""
    import tensorflow as tf

    kept = variable.get() if hasattr(variable, "get") else variable
    wanted = strategy.experimental_local_results(new)
    before = kept.read_value()
    total = before + tf.add_n([one - before for one in wanted])
    kept.assign(total)


def _assign_first(variable: Any, value: Any) -> None:
    """All replicas come to the same; it is written once. Within a condition replicas cannot meet, and need not."""
    import tensorflow as tf
    from tensorflow.python.distribute.values_util import get_current_replica_id_as_int

    if get_current_replica_id_as_int() == 0:
        kept = variable.get()
        kept.assign(tf.cast(value, kept.dtype))
