"""Sums values over all workers of a strategy: what the other fixes need to know of tf.distribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# The strategies themselves live as long as the process.
_adders: dict[int, Any] = {}


def spans_workers(strategy: Any) -> bool:
    """Whether it is a MultiWorkerMirroredStrategy of more than one worker."""
    import tensorflow as tf

    # The public way to ask, `cluster_resolver`, is set without TF_CONFIG too.
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.extended._in_multi_worker_mode()
    )


def replica_context() -> Any | None:
    """The replica context of such a strategy if this code runs in one, else None."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context if context is not None and spans_workers(context.strategy) else None


def sum_in_step(values: Sequence[Any]) -> list[Any]:
    """Each tensor (or tf.IndexedSlices) summed over all replicas, in a replica context: one collective for
    all dense ones of a type in a traced step. None stays None."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    # TensorFlow joins what it is given into one vector, whatever their types are.
    kinds: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        if value is not None:
            kinds.setdefault(value.dtype, []).append(index)
    summed = list(values)
    sums: list[Any] = []
    for indices in kinds.values():
        # One after the other, in the same order on all workers.
        with tf.control_dependencies([one for one in sums if isinstance(one, tf.Tensor)]):
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [values[index] for index in indices])
        for index, total in zip(indices, sums, strict=True):
            summed[index] = total
    return summed


def sum_now(strategy: Any, values: Any) -> Any:
    """A tensor or array of this worker's summed over all workers, outside of any step, as a tensor; every
    worker must call it, with equal shapes and types."""
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync // strategy.extended._num_workers
    add = _adders.get(id(strategy))
    if add is None:
        add = _adders[id(strategy)] = _adder(strategy)
    total = add(tf.convert_to_tensor(values))
    return total if replicas == 1 else total // replicas if total.dtype.is_integer else total / replicas


def _adder(strategy: Any) -> Any:
    import tensorflow as tf

    def add_here(value: Any) -> Any:
        # An argument has no device, which all_reduce asks for.
        here = tf.identity(value)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
    def add(value: Any) -> Any:
        return first_local(strategy, strategy.run(add_here, args=(value,)))

    return add


def first_local(strategy: Any, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0]
