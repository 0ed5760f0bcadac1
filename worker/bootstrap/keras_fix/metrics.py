"""Reads and resets the metrics of all workers with one collective or none, where Keras takes one a variable."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .clusters import spans_workers, sum_now

# Larger states (a confusion matrix of a thousand classes) do not travel with every step's gradients.
MOST_METRIC_NUMBERS = 50_000


def replace_metrics_result(base_trainer: Any) -> None:
    """Read the metrics of all workers in one collective, where Keras takes one for each variable."""
    original = base_trainer.Trainer.get_metrics_result

    @functools.wraps(original)
    def get_metrics_result(self: Any) -> Any:
        import tensorflow as tf
        from keras.src import backend

        strategy = self.distribute_strategy
        variables = travelling(self)
        if (
            not variables
            or not tf.executing_eagerly()
            or (tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())
            or backend.common.stateless_scope.in_stateless_scope()
            or not spans_workers(strategy)
        ):
            return original(self)
        total = sum_now(strategy, _local_sum(variables, strategy))
        with backend.StatelessScope(state_mapping=_values(variables, total, strategy)):
            return original(self)

    base_trainer.Trainer.get_metrics_result = get_metrics_result


def replace_assign(core: Any) -> None:
    """Set a metric's variable on this worker without reading it back, which would be a collective."""
    original = core.Variable._direct_assign

    @functools.wraps(original)
    def direct_assign(self: Any, value: Any) -> None:
        if not _is_summed_variable(self._value):
            original(self, value)
            return
        import tensorflow as tf

        strategy = self._value.distribute_strategy
        share = tf.cast(value, self._value.dtype) / tf.cast(strategy.num_replicas_in_sync, self._value.dtype)
        for part in strategy.experimental_local_results(self._value):
            part.assign(tf.cast(share, self._value.dtype))

    core.Variable._direct_assign = direct_assign


def _is_summed_variable(variable: Any) -> bool:
    """Whether it is one whose value is the sum of its replicas', set here from outside of any step."""
    import tensorflow as tf

    strategy = getattr(variable, "distribute_strategy", None)
    return (
        getattr(variable, "aggregation", None) == tf.VariableAggregation.SUM
        and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
        and spans_workers(strategy)
        and tf.executing_eagerly()
        and (not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context())
    )


def travelling(model: Any) -> list[Any]:
    """The metric variables that are summed or averaged over the workers, each once."""
    found = {id(v): v for v in model.metrics_variables if v.aggregation in ("sum", "mean")}
    return list(found.values())


def can_travel(model: Any) -> bool:
    variables = travelling(model)
    return sum(_size(v) for v in variables) <= MOST_METRIC_NUMBERS


def _size(variable: Any) -> int:
    size = 1
    for side in variable.shape:
        size *= int(side)
    return size


def packed(variables: Sequence[Any]) -> list[Any]:
    """This replica's values of the variables in as few vectors as there are types to send them in."""
    import tensorflow as tf

    return [
        tf.concat([tf.reshape(tf.cast(one.value, wide), [-1]) for one in alike], axis=0)
        for wide, alike in _by_type(variables)
    ]


def unpacked(variables: Sequence[Any], totals: Sequence[Any], strategy: Any) -> list[tuple[Any, Any]]:
    """Each variable with its value over all replicas, from the sums of their packed vectors."""
    values = []
    for (_, alike), total in zip(_by_type(variables), totals, strict=True):
        values.extend(_values(alike, total, strategy))
    return values


def _by_type(variables: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """The variables by the type whose sums are exact enough for them."""
    found: dict[Any, list[Any]] = {}
    for variable in variables:
        found.setdefault(_wide([variable]), []).append(variable)
    return list(found.items())


def _wide(variables: Sequence[Any]) -> Any:
    """One type for the sums of all of them: counts above 2**24 are no longer whole in a float32."""
    import tensorflow as tf

    needs = any("64" in str(one.dtype) or "int32" in str(one.dtype) for one in variables)
    return tf.float64 if needs else tf.float32


def _local_sum(variables: Sequence[Any], strategy: Any) -> Any:
    """The values of all replicas of this worker, summed, in one vector."""
    import tensorflow as tf

    flat, wide = [], _wide(variables)
    for variable in variables:
        values = [tf.cast(value, wide) for value in strategy.experimental_local_results(variable.value)]
        flat.append(tf.reshape(tf.add_n(values), [-1]))
    return tf.concat(flat, axis=0)


def _values(variables: Sequence[Any], total: Any, strategy: Any) -> list[tuple[Any, Any]]:
    """Each variable with its value over all replicas, from one vector of them all."""
    import tensorflow as tf

    parts = tf.split(total, [_size(v) for v in variables]) if variables else []
    values = []
    for variable, part in zip(variables, parts, strict=True):
        if variable.aggregation == "mean":
            part = part / strategy.num_replicas_in_sync
        values.append((variable, tf.cast(tf.reshape(part, variable.shape), variable.dtype)))
    return values
