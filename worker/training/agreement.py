"""Small collectives by which the workers agree on a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from worker.training.cluster import Place


def sum_over_workers(strategy: Any, place: Place, values: list[float]) -> npt.NDArray[np.float64]:
    """The element-wise sum of all workers' `values`, the same on each; all must call it with as many."""
    if place.workers == 1:
        return np.asarray(values, dtype=np.float64)
    replicas_here = strategy.num_replicas_in_sync // place.workers

    def one_replica() -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        # A worker with several devices speaks once.
        return tf.cond(
            tf.equal(tf.math.floormod(replica, replicas_here), 0),
            lambda: tf.constant(values, tf.float64),
            lambda: tf.zeros(len(values), tf.float64),
        )

    def total() -> Any:
        return strategy.reduce("SUM", strategy.run(one_replica), axis=None)

    return np.asarray(tf.function(total)().numpy(), dtype=np.float64)


def told_by_chief(strategy: Any, place: Place, number: int) -> int:
    """The chief's `number` on every worker; what the others pass does not matter."""
    return int(sum_over_workers(strategy, place, [float(number) if place.is_chief else 0.0])[0])
